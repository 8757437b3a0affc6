"""Kafka's own tools and clients, through the server in front of a real Kafka.

All that goes by is looked at: which requests they send, and that no answer names a broker of Kafka.
"""

import json
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from deploy.reference.kafka_api_page import api_name
from proxy.kafka.served_versions import advertised, forwarded_versions
from tests.clients.client import CODECS, JAVA, Consuming, Producing
from tests.clients.judge import Acked, Read, check_exactly_once
from tests.clients.tools import run_tool, table
from tests.crash.readback import consume
from tests.kafka_backend.new_topics import create_topic
from tests.kafka_backend.watching import WatchingRelay, addresses
from tests.kafka_listener.client import WireClient, fetched
from tests.kafka_listener.messages import FETCH
from tests.servers.kafka import KafkaServer, dump_log_segments
from tests.servers.pidlease import in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [needs_kafka, pytest.mark.kafka]

_SECONDS: Final = WAIT_S
#: The protocols of consumer groups: the new one is KIP-848.
_CLASSIC, _NEW = "classic", "consumer"
_JOIN_GROUP, _CONSUMER_GROUP_HEARTBEAT, _CONSUMER_GROUP_DESCRIBE = 11, 68, 69
#: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit; DescribeTransactions and the list.
_OF_TRANSACTIONS: Final = {24, 25, 26, 28, 65, 66}
#: Requests that name brokers in their answers, or are about what is not served: share groups,
#: streams groups, telemetry, the quorum, what is on brokers' disks.
_NEVER_SERVED: Final = {27, 35, 43, 45, 55, 71, 72, 75, 76, 77, 78, 79, 88, 89}


@dataclass(frozen=True)
class Front:
    """A server, seen through a relay; and Kafka behind it."""

    kafka: KafkaServer
    relay: WatchingRelay
    folder: Path

    @property
    def bootstrap(self) -> str:
        """Where clients find the server."""
        return self.relay.bootstrap

    def run(self, tool: str, *args: str, stdin: str = "") -> list[str]:
        """Run one of Kafka's tools; what it printed."""
        return run_tool(tool, self.bootstrap, self.folder, *args, stdin=stdin)

    def new_topic(self, partitions: int = 3) -> str:
        """Make a topic."""
        topic = f"tools-{uuid.uuid4().hex[:8]}"
        create_topic(self.bootstrap, NewTopic(topic, partitions))
        return topic

    def fill(self, counts: Sequence[int]) -> str:
        """Make a topic with so many records in its partitions."""
        topic = self.new_topic(len(counts))
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        for number, count in enumerate(counts):
            for each in range(count):
                producer.produce(topic, b"%d" % each, partition=number)
        assert producer.flush(_SECONDS) == 0
        return topic


@pytest.fixture(scope="module")
def running(kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("tools")
    with in_front_of(kafka, folder) as server:
        relay = WatchingRelay(server.kafka_port, addresses(kafka))
        server.settings["kafka_advertise"] = relay.bootstrap
        server.start()
        with relay:
            yield Front(kafka, relay, folder)
        assert server.stop() == 0


@pytest.fixture
def front(running: Front) -> Iterator[Front]:
    """The server; what it answered in this test named nobody else."""
    answered = running.relay.answered
    yield running
    assert running.relay.answered > answered
    assert running.relay.naming == []


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Do some things at a time: most of them wait for a Java that starts."""
    with ThreadPoolExecutor(max_workers=len(calls)) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]


# ---------------------------------------------------------------------- admin


def test_topics_settings_and_versions(front: Front) -> None:
    topic = f"made-{uuid.uuid4().hex[:8]}"
    named = ("--topic", topic)
    made, versions = together(
        partial(front.run, "kafka-topics", "--create", *named, "--partitions", "3",
                "--config", "retention.ms=1000000"),
        partial(front.run, "kafka-broker-api-versions"),
    )  # fmt: skip
    assert made == [f"Created topic {topic}."]
    _check_versions(versions)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    altered, _ = together(
        partial(front.run, "kafka-configs", "--alter", *entity, "--add-config",
                "segment.bytes=2000000", "--delete-config", "retention.ms"),
        partial(front.run, "kafka-topics", "--alter", *named, "--partitions", "5"),
    )  # fmt: skip
    assert altered == [f"Completed updating config for topic {topic}."]
    settings, (head, *partitions), listed = together(
        partial(front.run, "kafka-configs", "--describe", *entity),
        partial(front.run, "kafka-topics", "--describe", *named),
        partial(front.run, "kafka-topics", "--list"),
    )
    assert [line.split()[0] for line in settings[1:]] == ["segment.bytes=2000000"]
    assert "PartitionCount: 5" in head
    assert "segment.bytes=2000000" in head
    assert [line.split("\t")[2] for line in partitions] == [f"Partition: {n}" for n in range(5)]
    assert all("Leader: 1" in line for line in partitions)
    assert topic in listed
    front.run("kafka-topics", "--delete", *named)
    direct = AdminClient({"bootstrap.servers": front.kafka.bootstrap})
    assert topic not in direct.list_topics(timeout=_SECONDS).topics


def _check_versions(lines: list[str]) -> None:
    """`kafka-broker-api-versions` printed what is served in front of a Kafka that has all."""
    told = {line.split("(")[0].strip(): line for line in lines[1:-1] if "UNSUPPORTED" not in line}
    everything = dict.fromkeys(range(100), (0, 99))
    due = advertised(forwarded_versions(everything))
    assert not due.keys() & _NEVER_SERVED
    for key, (lowest, highest) in due.items():
        versions = f"{lowest} to {highest}" if lowest < highest else str(lowest)
        assert f"({key}): {versions} [usable" in told.pop(api_name(key))
    assert not told, "more than is served"


def test_offsets_and_records_that_are_deleted(front: Front) -> None:
    topic = front.fill([7, 4])
    places = front.folder / f"{topic}.json"
    partitions = [{"topic": topic, "partition": 0, "offset": 5}]
    places.write_text(json.dumps({"version": 1, "partitions": partitions}))
    said = front.run("kafka-delete-records", "--offset-json-file", str(places))
    assert said[-1] == f"partition: {topic}-0\tlow_watermark: 5"
    named = ("--topic", topic)
    latest, earliest = together(
        partial(front.run, "kafka-get-offsets", *named),
        partial(front.run, "kafka-get-offsets", *named, "--time", "earliest"),
    )
    assert latest == [f"{topic}:0:7", f"{topic}:1:4"]
    assert earliest == [f"{topic}:0:5", f"{topic}:1:0"]


# ---------------------------------------------------------------------- records


def test_consoles_with_keys_headers_and_codecs(front: Front) -> None:
    """By both group protocols; in Kafka the batches have the codec that their producer chose."""
    random = Random(0)
    sent = [
        f"n:{n},m:{random.randrange(1000)}\tkey {n}\tvalue {n} {'.' * random.randrange(50)}"
        for n in range(300)
    ]
    topics = [front.new_topic(1) for _ in CODECS]
    ways = [(codec, topic, (_CLASSIC, _NEW)[number % 2])
            for number, (codec, topic) in enumerate(zip(CODECS, topics, strict=True))]  # fmt: skip
    due = [f"Offset:{offset}\t{line}" for offset, line in enumerate(sent)]
    assert together(*(partial(_through_consoles, front, sent, *way) for way in ways)) == [due] * 5
    logs = [next(front.kafka.partition_dir(topic).glob("*.log")) for topic in topics]
    dump = dump_log_segments(logs)
    assert dump.problems == []
    for codec, log in zip(CODECS, logs, strict=True):
        assert {each.codec for each in dump.files[log].batches} == {codec}
        assert all(each.producer_id >= 0 for each in dump.files[log].batches), "not idempotent"
    assert {_JOIN_GROUP, _CONSUMER_GROUP_HEARTBEAT} <= front.relay.keys


def _through_consoles(
    front: Front, sent: list[str], codec: str, topic: str, protocol: str
) -> list[str]:
    front.run("kafka-console-producer", "--topic", topic, "--compression-codec", codec,
              "--property", "parse.key=true", "--property", "parse.headers=true",
              stdin="".join(f"{line}\n" for line in sent))  # fmt: skip
    return front.run("kafka-console-consumer", "--topic", topic, "--from-beginning",
                     "--group", f"eyes-{topic}",
                     "--consumer-property", f"group.protocol={protocol}",
                     "--max-messages", str(len(sent)), "--timeout-ms", "60000",
                     "--property", "print.key=true", "--property", "print.headers=true",
                     "--property", "print.offset=true")  # fmt: skip


def test_verifiable_producers_and_consumers(front: Front) -> None:
    """Two idempotent producers; both group protocols read all, once, where it was acknowledged."""
    count, topic = 1500, front.new_topic()
    acked = dict(
        zip((0, 1), together(*(partial(_produce, front, topic, n, count) for n in (0, 1))),
            strict=True)
    )  # fmt: skip
    consuming = [
        Consuming(front.bootstrap, topic, f"verifiable-{protocol}-{topic}", 2 * count, protocol)
        for protocol in (_CLASSIC, _NEW)
    ]
    for found in together(*(partial(_consume, each, front.folder) for each in consuming)):
        check_exactly_once(acked, found, count)
    for each in consuming:
        assert sum(_committed(front.kafka.bootstrap, each.group, topic)) == 2 * count


def _produce(front: Front, topic: str, stream: int, count: int) -> list[Acked]:
    producing = Producing(front.bootstrap, topic, CODECS[stream], stream, count)
    lines = _lines(JAVA.producer(producing, front.folder).command)
    return [acked for line in lines if (acked := JAVA.acked(line))]


def _consume(what: Consuming, folder: Path) -> list[Read]:
    lines = _lines(JAVA.consumer(what, folder).command)
    return [read for line in lines if (read := JAVA.read(line))]


def _lines(command: Sequence[str]) -> list[str]:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=2 * _SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.splitlines()


def _committed(bootstrap: str, group: str, topic: str, partitions: int = 3) -> list[int]:
    """What a group has committed, 0 where it has nothing."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        places = consumer.committed([TopicPartition(topic, n) for n in range(partitions)], _SECONDS)
    finally:
        consumer.close()
    return [max(each.offset, 0) for each in places]


# ---------------------------------------------------------------------- groups


def test_consumer_groups(front: Front) -> None:
    """Groups of both protocols, listed, described, reset, and deleted."""
    topic = front.fill([10, 5])
    groups = {protocol: f"{protocol}-{topic}" for protocol in (_CLASSIC, _NEW)}
    for protocol, group in groups.items():
        _read_some(front, topic, group, protocol)

    def tool(*args: str) -> Callable[[], list[str]]:
        return partial(front.run, "kafka-consumer-groups", *args)

    listed, states, *described = together(
        tool("--list", "--type", "consumer"),
        tool("--describe", "--state", "--group", groups[_NEW]),
        *(tool("--describe", "--group", group) for group in groups.values()),
    )
    assert groups[_NEW] in {line.split()[0] for line in listed}
    assert groups[_CLASSIC] not in {line.split()[0] for line in listed}
    assert states[-1].split()[-2:] == ["Empty", "0"]
    assert front.bootstrap in states[-1], "it names another coordinator"
    for lines in described:
        assert _offsets_in(lines) == {"0": ("10", "0"), "1": ("5", "0")}
    assert _CONSUMER_GROUP_DESCRIBE in front.relay.keys
    together(*(
        tool("--reset-offsets", "--group", group, "--topic", f"{topic}:0", "--shift-by", "-6",
             "--execute")
        for group in groups.values()
    ))  # fmt: skip
    for group in groups.values():
        assert _committed(front.kafka.bootstrap, group, topic, 2) == [4, 5]
    front.run("kafka-consumer-groups", "--delete", "--group", groups[_NEW],
              "--group", groups[_CLASSIC])  # fmt: skip
    left = AdminClient({"bootstrap.servers": front.kafka.bootstrap}).list_consumer_groups()
    assert not {each.group_id for each in left.result(_SECONDS).valid} & set(groups.values())


def _offsets_in(lines: list[str]) -> dict[str, tuple[str, str]]:
    return {row["PARTITION"]: (row["CURRENT-OFFSET"], row["LAG"]) for row in table(lines, "GROUP")}


def _member(front: Front, group: str, protocol: str) -> Consumer:
    return Consumer({
        "bootstrap.servers": front.bootstrap, "group.id": group, "group.protocol": protocol,
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip


def _read_some(front: Front, topic: str, group: str, protocol: str) -> None:
    consumer = _member(front, group, protocol)
    try:
        consumer.subscribe([topic])
        found: list[Any] = []
        while len(found) < 15:
            messages = consumer.consume(15 - len(found), _SECONDS)
            assert messages, f"only {len(found)}"
            assert all(each.error() is None for each in messages)
            found += messages
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def test_members_of_a_new_group_share(front: Front) -> None:
    """By the new protocol of groups: partitions go from who has them to who joins."""
    topic = front.new_topic()
    group = f"sharing-{topic}"
    first, second = (_member(front, group, _NEW) for _ in range(2))
    try:
        first.subscribe([topic])
        _poll_until(lambda: len(first.assignment()) == 3, first)
        second.subscribe([topic])
        _poll_until(lambda: len(second.assignment()) > 0, first, second)
        _poll_until(lambda: len(first.assignment()) + len(second.assignment()) == 3, first, second)
        members = table(
            front.run("kafka-consumer-groups", "--describe", "--members", "--group", group), "GROUP"
        )
        assert sorted(each["#PARTITIONS"] for each in members) == ["1", "2"]
    finally:
        first.close()
        second.close()


def _poll_until(happened: Callable[[], bool], *consumers: Consumer) -> None:
    polls = 0
    while not happened():
        polls += 1
        assert polls < _SECONDS * 10, "the group does not get on"
        for each in consumers:
            message = each.poll(0.1)
            assert message is None or message.error() is None


async def test_fetch_sessions_are_not_kept(front: Front) -> None:
    """A client that asks for a session is told that there is none, and asks in full each time."""
    topic = front.fill([3])
    port = int(front.bootstrap.rsplit(":", 1)[1])
    async with await WireClient.connect("127.0.0.1", port) as client:
        for session_epoch in (0, -1):
            asked = {**fetched([(topic, 0, 0)]), "session_id": 0, "session_epoch": session_epoch}
            body = await client.call(FETCH, 11, **asked)
            assert (body.session_id, int(body.error_code)) == (0, 0)
            assert body.responses[0].partitions[0].high_watermark == 3


# ---------------------------------------------------------------------- transactions


def test_a_java_client_reads_processes_and_writes(front: Front) -> None:
    """Kafka's own copier, which aborts now and then; and kafka-transactions."""
    source, target = front.fill([200, 200, 200]), front.new_topic()
    group, transactional_id = f"copiers-{target}", f"copier-{target}"
    lines = front.run(
        "transactional-message-copier", "--input-topic", source, "--input-partition", "0",
        "--output-topic", target, "--consumer-group", group, "--transaction-size", "60",
        "--transactional-id", transactional_id, "--enable-random-aborts", "--group-mode",
        "--use-group-metadata", "--max-messages", "600",
    )  # fmt: skip
    assert json.loads(lines[-1])["remaining"] == 0
    copied = Counter(each.value for each in consume(front.kafka.bootstrap, target, 3, markers=True))
    assert copied == Counter({b"%d" % number: 3 for number in range(200)})
    assert sum(_committed(front.kafka.bootstrap, group, source)) == 600

    listed, described, read = together(
        partial(front.run, "kafka-transactions", "list"),
        partial(front.run, "kafka-transactions", "describe", "--transactional-id",
                transactional_id),
        partial(front.run, "kafka-console-consumer", "--topic", target, "--from-beginning",
                "--isolation-level", "read_committed", "--max-messages", "600",
                "--timeout-ms", "60000"),
    )  # fmt: skip
    assert Counter(read) == Counter({str(number): 3 for number in range(200)})
    rows = {row["TransactionalId"]: row for row in table(listed, "TransactionalId")}
    assert rows[transactional_id]["TransactionState"] in ("CompleteCommit", "CompleteAbort")
    headings, cells = ([each.strip() for each in line.split("\t")] for line in described)
    told = dict(zip(headings, cells, strict=False))  # the last one, of partitions, is empty
    assert told["TransactionalId"] == transactional_id
    assert told["ProducerId"] == rows[transactional_id]["ProducerId"]
    assert told["CoordinatorId"] == rows[transactional_id]["Coordinator"] == "1"
    assert front.relay.keys >= _OF_TRANSACTIONS


# ---------------------------------------------------------------------- the watching itself


def test_who_asks_kafka_itself_is_told_its_address(kafka: KafkaServer) -> None:
    """So what is looked for in answers can be found."""
    with WatchingRelay(int(kafka.bootstrap.rsplit(":", 1)[1]), addresses(kafka)) as relay:
        AdminClient({"bootstrap.servers": relay.bootstrap}).list_topics(timeout=_SECONDS)
        assert relay.naming
