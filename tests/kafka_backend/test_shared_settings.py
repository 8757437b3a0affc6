"""Two active servers share a Kafka: settings of topics that are changed at one count at both."""

import asyncio
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pidlease.testing.loopback_ports import LOOPBACK
from tests.crash.readback import consume
from tests.crash.seeds import SOAK
from tests.integration.test_topic_policies import patch, shown
from tests.kafka_backend.test_writer import headers_of, post
from tests.kafka_listener.client import WireClient, produced
from tests.kafka_listener.messages import PRODUCE
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until
from tests.servers.zookeeper import ZooKeeperServer
from tests.sim.batches import make_batch
from tests.streams.stream_client import CLOSE, TEXT, ZERO, read_all, send

pytestmark = [needs_kafka, pytest.mark.kafka, pytest.mark.timeout(600)]

_NOT_LEADER, _UNKNOWN_ID, _INVALID_RECORD = 6, 59, 87
POLICIES, INITIAL = "pidlease.policies", "pidlease.initial"


class Two(NamedTuple):
    """Two servers that share a Kafka."""

    kafka: KafkaServer
    a: PidleaseServer
    b: PidleaseServer


@pytest.fixture(scope="module", params=["kafka", "zookeeper"] if SOAK else ["kafka"])
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("two")
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaServer(folder / "kafka"))
        settings: dict[str, Any] = {
            "coordination": "kafka", "shared": "true", "upstream_metadata_seconds": "0.5",
            "log_level": "info",
        }  # fmt: skip
        if request.param == "zookeeper":
            zookeeper = stack.enter_context(ZooKeeperServer(folder / "zookeeper"))
            settings |= {"coordination": "auto", "zookeeper": f"{zookeeper.hosts}/p"}
        a, b = (stack.enter_context(in_front_of(kafka, folder / name, **settings)) for name in "ab")
        a.start()
        b.start()
        yield Two(kafka, a, b)
        assert [each.stop() for each in (a, b)] == [0, 0]
        assert not any("Traceback" in each.log_text() for each in (a, b))


def topic_of(two: Two, owner: PidleaseServer) -> str:
    """Make topics of one partition until a server owns one of them."""
    admin = AdminClient({"bootstrap.servers": two.kafka.bootstrap})
    while True:
        name = f"t-{uuid.uuid4().hex[:8]}"
        admin.create_topics([NewTopic(name, 1)])[name].result(WAIT_S)
        for each in (two.a, two.b):
            until(lambda: each.get(f"/v1/topics/{name}")[0] == 200, "both to know it")  # noqa: B023
        if owner_port(two, name) == owner.kafka_port:
            return name


def owner_port(two: Two, topic: str) -> int:
    """The port of the server that owns a topic's partition."""
    found: list[int] = []

    def look() -> bool:
        client = AdminClient({"bootstrap.servers": two.a.bootstrap})
        seen = client.list_topics(topic, timeout=WAIT_S)
        leader = seen.topics[topic].partitions.get(0)
        broker = None if leader is None else seen.brokers.get(leader.leader)
        found.extend([] if broker is None else [broker.port])
        return bool(found)

    until(look, "an owner")
    return found[0]


def produce(two: Two, topic: str) -> int:
    """The error code that an idempotent Kafka client gets."""
    told: list[Any] = []
    servers = f"{two.a.bootstrap},{two.b.bootstrap}"
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(WAIT_S) == 0
    return 0 if told[0] is None else int(told[0].code())


def test_a_policy_that_is_set_at_one_counts_at_the_other(two: Two) -> None:
    topic, path = topic_of(two, two.b), "/v1/topics/{}/settings"
    assert produce(two, topic) == 0
    assert patch(two.a, path.format(topic), {POLICIES: "epoch"})[0] == 200
    until(lambda: shown(two.b, topic)[POLICIES] == ("epoch", "topic"), "B to follow", within_s=10)
    assert produce(two, topic) == KafkaError.POLICY_VIOLATION
    assert post(two.b, topic, b"0", "p", 0)[0] == 200

    other = topic_of(two, two.b)
    assert patch(two.a, "/v1/topic-defaults", {POLICIES: "strict"})[0] == 200
    until(lambda: shown(two.b, other)[POLICIES] == ("strict", "all topics"), "B again", within_s=10)
    assert produce(two, other) == KafkaError.POLICY_VIOLATION
    assert patch(two.a, "/v1/topic-defaults", {POLICIES: None})[0] == 200
    assert patch(two.a, path.format(topic), {POLICIES: None})[0] == 200
    for each in (topic, other):
        until(lambda: produce(two, each) == 0, "the end of the policies", within_s=10)  # noqa: B023


@pytest.mark.parametrize("all_topics", [True, False])
def test_different_settings_that_are_set_at_both_at_once_stay(two: Two, all_topics: bool) -> None:
    topic = topic_of(two, two.b)
    path = "/v1/topic-defaults" if all_topics else f"/v1/topics/{topic}/settings"
    source = "all topics" if all_topics else "topic"
    changes = ((two.a, {POLICIES: "strict"}), (two.b, {INITIAL: "zero"}))
    wanted = {POLICIES: ("strict", source), INITIAL: ("zero", source)}
    with ThreadPoolExecutor() as threads:
        for _ in range(5):
            made = [threads.submit(patch, server, path, change) for server, change in changes]
            assert [each.result()[0] for each in made] == [200, 200]
            for each in (two.a, two.b):
                until(
                    lambda: wanted.items() <= shown(each, topic).items(),  # noqa: B023
                    "both settings", within_s=10,
                )  # fmt: skip
            assert patch(two.a, path, {POLICIES: None, INITIAL: None})[0] == 200


def test_a_stream_that_one_has_made_is_one_at_its_owner_at_once(two: Two) -> None:
    for _ in range(4):
        name = f"s-{uuid.uuid4().hex[:8]}"
        assert send(two.a, "PUT", name, b"", TEXT).status == 201
        owner = two.a if owner_port(two, name) == two.a.kafka_port else two.b
        while (told := send(owner, "POST", name, "x", TEXT).status) == 503:
            pass  # it does not know the topic yet
        assert told == 204


def test_a_producer_id_is_sent_on_as_it_came(two: Two) -> None:
    """Once one that is no ASCII got 500, and of two the first was taken."""
    topic = topic_of(two, two.b)

    def append(server: PidleaseServer, *ids: bytes) -> tuple[int, Any]:
        connection = HTTPConnection(LOOPBACK, server.http_port, timeout=WAIT_S)
        connection.putrequest("POST", f"/v1/topics/{topic}/partitions/0/records")
        for each in ids:
            connection.putheader("Producer-Id", each)
        headers = {"Producer-Epoch": "0", "Producer-Seq": "0", "Content-Length": "1",
                   "Content-Type": "application/octet-stream"}  # fmt: skip
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(b"x")
        response = connection.getresponse()
        found = response.status, json.loads(response.read())
        connection.close()
        return found

    for server, duplicate in ((two.a, False), (two.a, True), (two.b, True)):
        status, found = append(server, "käse-касса".encode())
        assert (status, found.get("duplicate")) == (200, duplicate), found
    assert append(two.a, b"one", b"two")[0] == append(two.b, b"one", b"two")[0] == 400


def stream_of(two: Two, owner: PidleaseServer, headers: Mapping[str, str]) -> str:
    """Make empty streams until a server owns one of them."""
    while True:
        name = f"s-{uuid.uuid4().hex[:8]}"
        assert send(two.a, "PUT", name, b"", {**TEXT, **headers}).status == 201
        if owner_port(two, name) == owner.kafka_port:
            until(lambda: send(owner, "HEAD", name).status == 200, "its owner to know it")  # noqa: B023
            return name


@pytest.mark.parametrize(
    ("transactional_id", "in_transaction", "codes"),
    [
        (None, False, (_UNKNOWN_ID, _UNKNOWN_ID)),
        ("forger", False, (_INVALID_RECORD, _INVALID_RECORD)),
        ("forger", True, (_NOT_LEADER, _INVALID_RECORD)),
    ],
)
async def test_no_client_sends_as_another_servers_writer(
    two: Two, transactional_id: str | None, in_transaction: bool, codes: tuple[int, int]
) -> None:
    """Once one that did not know the writer passed it on: the owner's next record was lost.

    Nor under an id that Kafka has not given yet: it may become a writer's.
    """
    topic = await asyncio.to_thread(topic_of, two, two.b)
    assert (await asyncio.to_thread(post, two.b, topic, b"x", "p", 0))[0] == 200
    writer = (await headers_of(two.kafka, topic))[-1]
    values = [f"forged {number}".encode() for number in range(5)]
    pid, epoch = writer.producer_id, writer.producer_epoch
    forged = [
        bytes(
            make_batch([value], pid=pid, epoch=epoch, first=number, in_transaction=in_transaction)
        )
        for number, value in enumerate(values, 1)
    ]
    if not in_transaction:
        later = (pid + number for number in range(1, 1000, 100))
        forged += [bytes(make_batch([b"x"], pid=each, epoch=0, first=0)) for each in later]
    for server, refused in zip((two.a, two.b), codes, strict=True):
        async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
            for each in forged:
                request = {**produced([(topic, 0, each)]), "transactional_id": transactional_id}
                answer = await client.call(PRODUCE, 8, **request)
                code = answer.responses[0].partition_responses[0].error_code.value
                assert code == refused, server.kafka_port
            # Behind a batch of the client's own in the same partition.
            behind = bytes(make_batch([b"own"], pid=pid + 1, epoch=0, first=0)) + forged[0]
            request = {**produced([(topic, 0, behind)]), "transactional_id": transactional_id}
            answer = await client.call(PRODUCE, 8, **request)
            code = answer.responses[0].partition_responses[0].error_code.value
            assert code == _INVALID_RECORD
    for seq in range(1, 4):
        status, found = await asyncio.to_thread(post, two.b, topic, b"x", "p", seq)
        assert (status, found["duplicate"]) == (200, False)
    stored = await asyncio.to_thread(consume, two.kafka.bootstrap, topic, 1, markers=True)
    assert [each.value for each in stored] == [b"x"] * 4


def test_a_stream_that_is_in_use_at_its_owner_outlives_its_ttl(two: Two) -> None:
    """Once each other server deleted it, with its records, as it saw neither reads nor appends."""
    ttl = {"Stream-TTL": "2"}
    used = stream_of(two, two.b, ttl)
    unused = stream_of(two, two.a, ttl)
    sent = 0
    # A has looked for streams that are over by then, and begun to count at both at once.
    while send(two.a, "HEAD", unused).status != 404:
        assert send(two.b, "POST", used, "x", TEXT).status == 204
        sent += 1
        time.sleep(0.2)
    for _ in range(10):
        assert send(two.b, "POST", used, "x", TEXT).status == 204
        time.sleep(0.2)
    assert read_all(two.b, used) == b"x" * (sent + 10)
    until(lambda: send(two.b, "HEAD", used).status == 404, "it to be over at last")


def test_a_stream_is_read_at_its_owner_only(two: Two) -> None:
    """Once the others answered that it is empty, and that this is up to date."""
    name = stream_of(two, two.b, {})
    assert send(two.b, "POST", name, "x", TEXT).status == 204
    for path in (name, f"{name}?offset=-1", f"{name}?offset=-1&live=long-poll",
                 f"{name}?offset=-1&live=sse", f"{name}?offset={ZERO}"):  # fmt: skip
        refused = send(two.a, "GET", path)
        assert (refused.status, refused.code) == (421, "not_owner"), path
    assert send(two.a, "HEAD", name).status == 421
    assert send(two.a, "DELETE", name).status == 421
    assert send(two.a, "PUT", name, b"", TEXT).status == 421
    assert send(two.b, "PUT", name, b"", TEXT).status == 200
    assert read_all(two.b, name) == b"x"


def test_a_stream_with_values_is_created_at_its_owner(two: Two) -> None:
    """Elsewhere no topic is made: it would be empty, and removed again a second later."""
    for _ in range(20):
        name = f"s-{uuid.uuid4().hex[:8]}"
        status = send(two.a, "PUT", name, "x", TEXT).status
        assert status in (201, 421)
        if status == 421:
            assert two.a.get(f"/v1/topics/{name}")[0] == 404
            assert send(two.b, "PUT", name, "x", TEXT).status == 201
            assert read_all(two.b, name) == b"x"
            return
    raise AssertionError("A owned all of them")


def test_a_closed_stream_stays_closed_when_the_other_one_takes_it_over(two: Two) -> None:
    while True:
        name = f"s-{uuid.uuid4().hex[:8]}"
        assert send(two.a, "PUT", name, b"", TEXT).status == 201
        if owner_port(two, name) == two.a.kafka_port:
            break
    assert send(two.a, "POST", name, "x", TEXT).status == 204
    # At once before the stop: the other one may not have looked since.
    assert send(two.a, "POST", name, "y", TEXT | CLOSE).is_closed
    assert two.a.stop() == 0
    try:
        refused = {421, 503}
        until(lambda: send(two.b, "POST", name, "z", TEXT).status not in refused, "a takeover")
        assert send(two.b, "POST", name, "z", TEXT).code == "stream_closed"
        assert produce(two, name) == KafkaError.POLICY_VIOLATION
    finally:
        two.a.start()
