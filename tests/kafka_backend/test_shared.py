"""Two active servers share a Kafka: each partition has one owner, and each record is there once.

The clients go on whatever happens to one of the servers. What Kafka itself has is held against what
they were told.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pidlease.client import LeasedProducer, ProducerError
from pidlease.core.slots import SLOTS, slot_of
from pidlease.testing.server_process import PIDLEASE
from tests.crash.clients import Load
from tests.crash.lives import get_on
from tests.crash.readback import Stored, consume
from tests.crash.seeds import SOAK, new_random
from tests.http_api.appending import RAW, path_of, producer
from tests.kafka_backend.loads import all_loads
from tests.kafka_backend.named_writers import NamedWriter, check_writers, one_is_left
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until
from tests.servers.zookeeper import ZooKeeperServer

pytestmark = [needs_kafka, pytest.mark.kafka]

_ROOT = Path(__file__).resolve().parents[2]
#: Longer than any wait for a takeover: what is missed is missed by pings.
_SESSION_SECONDS = 300.0
_TICK_MS = 15_000
_HANG_S = 300.0
_PARTITIONS = 6
#: Servers that did not answer, and that another one has moved the slots of.
_MOVED = "pidlease_silent_servers_moved_total"
#: What a server logs of partitions that another one owns now.
_HANDED_OVER = "partitions handed over"


@dataclass
class Pair:
    """Two servers that share a Kafka."""

    kafka: KafkaServer
    a: PidleaseServer
    b: PidleaseServer
    topics: list[str] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return f"{self.a.bootstrap},{self.b.bootstrap}"

    def topic(self, name: str) -> str:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        admin.create_topics([NewTopic(name, _PARTITIONS)])[name].result(WAIT_S)
        until(lambda: all(self.leaders(name)), "both own some of its partitions")
        return name

    def leaders(self, topic: str) -> tuple[int, int]:
        """How many of the topic's partitions each server serves."""
        return tuple(_served(each, topic) for each in (self.a, self.b))  # type: ignore[return-value]

    def read_back(self, topic: str, loads: Sequence[Load]) -> list[Stored]:
        for load in loads:
            load.finish(_HANG_S)
        stored = consume(self.kafka.bootstrap, topic, _PARTITIONS, markers=True)
        for load in loads:
            load.ledger.check(stored)
        return stored


def _served(server: PidleaseServer, topic: str) -> int:
    status, body = server.get("/v1/status")
    assert status == 200
    found = [each for each in json.loads(body)["partitions"] if each["topic"] == topic]
    return sum("elsewhere" not in each for each in found) if len(found) == _PARTITIONS else 0


@pytest.fixture(scope="module", params=["kafka", "zookeeper"] if SOAK else ["kafka"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Both run at the beginning and the end of each test."""
    folder = tmp_path_factory.mktemp("pair")
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaServer(folder / "kafka"))
        settings: dict[str, Any] = {
            "coordination": "kafka", "shared": "true", "log_level": "info",
            "zookeeper_session_seconds": str(_SESSION_SECONDS), "snapshot_batches": "100",
            "upstream_metadata_seconds": "0.5",
        }  # fmt: skip
        if request.param == "zookeeper":
            zookeeper = ZooKeeperServer(folder / "zookeeper", tick_ms=_TICK_MS)
            stack.enter_context(zookeeper)
            settings |= {"coordination": "auto", "zookeeper": f"{zookeeper.hosts}/p"}
        a, b = (stack.enter_context(in_front_of(kafka, folder / name, **settings)) for name in "ab")
        a.start()
        b.start()
        yield Pair(kafka, a, b)
        assert [each.stop() for each in (a, b)] == [0, 0]


@pytest.mark.timeout(900)
def test_faults_of_an_owner(pair: Pair) -> None:
    """It is killed, suspended, and stopped, under all kinds of load; its session goes on."""
    random = new_random("shared-faults")
    topic = pair.topic(f"faults-{pair.a.kafka_port}")
    loads = all_loads(pair.bootstrap, pair.b, pair.b, topic, _PARTITIONS, random)
    get_on(loads, within_s=_HANG_S)

    served, _ = pair.leaders(topic)
    assert served
    moved = pair.b.metric(_MOVED)
    pair.a.kill9()
    _moved_by_pings(pair, topic)
    assert pair.b.metric(_MOVED) > moved
    code, text = _command(pair.b)
    assert (code, "does not answer" in text) == (0, True), text
    get_on(loads, within_s=_HANG_S)
    pair.a.start()
    until(lambda: all(pair.leaders(topic)), "both own some again")
    get_on(loads, within_s=_HANG_S)

    moved = pair.b.metric(_MOVED)
    os.kill(pair.a.pid, signal.SIGSTOP)
    _moved_by_pings(pair, topic)
    assert pair.b.metric(_MOVED) > moved
    time.sleep(random.random())  # clients that do not wait for the suspended one get on
    before = pair.a.log_text().count(_HANDED_OVER)
    os.kill(pair.a.pid, signal.SIGCONT)
    # It goes on as an owner until it notices that another one has been there.
    until(lambda: pair.a.log_text().count(_HANDED_OVER) > before, "the suspended one to step down")
    until(lambda: _row(_shown(pair.b), pair.a)["returning"], "the suspended one to answer again")
    # It gets slots after a while, or at once if the other one cannot have them.
    node_id = str(_row(_shown(pair.b), pair.b)["node_id"])
    _done(pair.b, "drain", node_id)
    until(lambda: _served(pair.a, topic) == _PARTITIONS, "the suspended one to own all")
    get_on(loads, within_s=_HANG_S)
    _done(pair.b, "undrain", node_id)
    until(lambda: all(pair.leaders(topic)), "both own some again")
    get_on(loads, within_s=_HANG_S)

    assert pair.a.stop() == 0
    assert re.search(r"drained +slots_left=0", pair.a.log_text())
    until(lambda: _served(pair.b, topic) == _PARTITIONS, "the other one owns all")
    get_on(loads, within_s=_HANG_S)
    stored = pair.read_back(topic, loads)
    # All of the first time; the second and the third time there were some.
    assert pair.b.metric("pidlease_partitions_taken_over_total") >= served + 2
    pair.a.start()
    print(f"{served} partitions lost their owner three times; {len(stored)} records")


def _moved_by_pings(pair: Pair, topic: str) -> None:
    """Wait until the second server owns all; the session of the first one must live on."""
    until(lambda: _served(pair.b, topic) == _PARTITIONS, "the other one to own all")
    found = _row(_shown(pair.b), pair.a)  # it is there: its session has not ended
    assert (found["slots"], found["silent"]) == (0, True)
    assert pair.b.metric("pidlease_servers_answering") == 1
    assert pair.b.metric("pidlease_servers") == 2


@pytest.mark.timeout(900)
def test_drain_and_rebalance_by_commands(pair: Pair) -> None:
    """By way of the server that is not meant; no client notices."""
    random = new_random("shared-commands")
    topic = pair.topic(f"commands-{pair.a.kafka_port}")
    loads = all_loads(pair.bootstrap, pair.b, pair.b, topic, _PARTITIONS, random)
    get_on(loads, within_s=_HANG_S)
    rows = _rows(pair)
    a, b = (_row(rows, each) for each in (pair.a, pair.b))
    assert [a["registrar"], b["registrar"]].count(True) == ("zookeeper" not in pair.a.settings)

    text = _done(pair.b, "drain", str(a["node_id"]))
    assert text == f"{a['server']} is drained: it owns no slot\n"
    until(lambda: _served(pair.b, topic) == _PARTITIONS, "the other one to own all")
    get_on(loads, within_s=_HANG_S)
    code, text = _command(pair.a, "drain", str(b["server"]))
    assert (code, "no other server could own the slots" in text) == (1, True)
    assert _row(_rows(pair), pair.a)["slots"] == 0
    code, text = _command(pair.a, "drain", "77")
    assert (code, "there is no active server '77'" in text) == (1, True)

    # It gets none of what comes, until its process is started again.
    later = f"later-{pair.a.kafka_port}"
    admin = AdminClient({"bootstrap.servers": pair.kafka.bootstrap})
    admin.create_topics([NewTopic(later, _PARTITIONS)])[later].result(WAIT_S)
    until(lambda: _served(pair.b, later) == _PARTITIONS, "the other one to own all")
    assert pair.a.stop() == 0
    pair.a.start()
    until(lambda: all(pair.leaders(topic)), "both own some again")
    get_on(loads, within_s=_HANG_S)

    node_id = str(_row(_rows(pair), pair.b)["node_id"])
    _done(pair.a, "drain", node_id)
    get_on(loads, within_s=_HANG_S)
    _done(pair.a, "undrain", node_id)
    until(lambda: all(pair.leaders(topic)), "both own some again")

    _make_uneven(pair, topic)
    code, text = _command(pair.b, "rebalance")
    moved = re.fullmatch(r"([\d,]+) slots have another owner now\n", text)
    assert code == 0
    assert moved is not None
    assert moved[1] != "0"
    until(lambda: _difference(pair.a) <= 1, "as many partitions at each")
    assert _command(pair.a, "rebalance") == (0, "0 slots have another owner now\n")
    get_on(loads, within_s=_HANG_S)
    stored = pair.read_back(topic, loads)
    print(f"{len(stored)} records; {moved[1]} slots moved by the rebalance")


def _done(server: PidleaseServer, *command: str) -> str:
    """Run a command until it is done: on a busy machine a server may be taken for silent."""
    texts: list[str] = []

    def run() -> bool:
        code, text = _command(server, *command)
        texts.append(text)
        return code == 0

    until(run, f"pidlease servers {' '.join(command)}")
    return texts[-1]


def _make_uneven(pair: Pair, topic: str) -> None:
    """Create topics in slots of one server: in those of partitions that it leads."""
    admin = AdminClient({"bootstrap.servers": pair.bootstrap})
    leaders = admin.list_topics(topic).topics[topic].partitions
    slots = {
        slot_of(topic, each.id) for each in leaders.values() if each.leader == leaders[0].leader
    }
    names = (f"{topic}-{number}" for number in range(10**6))
    for name in islice((each for each in names if slot_of(each, 0) in slots), 5):
        admin.create_topics([NewTopic(name, 1)])[name].result(WAIT_S)
    # Each divides by the topics that it knows, and may hear of new ones later than the other.
    until(
        lambda: min(map(_difference, (pair.a, pair.b))) >= 4,
        "more partitions at one of the servers",
    )


def _difference(server: PidleaseServer) -> int:
    """How many partitions more one server owns than the other, as far as one of them knows."""
    a, b = (int(each["partitions"]) for each in _shown(server))
    return abs(a - b)


def _rows(pair: Pair) -> list[dict[str, Any]]:
    return _shown(pair.a)


def _shown(server: PidleaseServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{server.http_url}/v1/servers").json()["servers"]
    return found


def _row(rows: list[dict[str, Any]], server: PidleaseServer) -> dict[str, Any]:
    return next(each for each in rows if each["http"] == server.http_url)


def _command(server: PidleaseServer, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of `pidlease servers`."""
    command = [*PIDLEASE, "servers", *arguments, "--url", server.http_url]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=_HANG_S, cwd=_ROOT
    )
    return done.returncode, done.stdout + done.stderr


async def test_a_name_is_fenced_at_both_servers(pair: Pair) -> None:
    topic = await asyncio.to_thread(pair.topic, f"fenced-{pair.a.kafka_port}")
    due: dict[int, list[bytes]] = {number: [] for number in range(_PARTITIONS)}

    def producer_of(leases: PidleaseServer) -> LeasedProducer:
        return LeasedProducer(
            bootstrap_servers=pair.bootstrap, leases=leases.http_url, name="one",
            request_timeout_ms=60_000,
        )  # fmt: skip

    async def write(to: LeasedProducer, text: bytes) -> None:
        for number, values in due.items():
            sent = await to.send_and_wait(topic, text, partition=number)
            assert (sent.sequence, sent.duplicate) == (len(values), False)
            values.append(text)

    stale = producer_of(pair.a)
    await stale.start()
    await write(stale, b"before")
    async with producer_of(pair.b) as fresh:
        await write(fresh, b"after")
        for number in due:
            with pytest.raises(ProducerError, match="fenced"):
                await stale.send_and_wait(topic, b"late", partition=number)
        await write(fresh, b"at last")
    with suppress(ProducerError):
        await stale.stop()
    found = await asyncio.to_thread(consume, pair.kafka.bootstrap, topic, _PARTITIONS, markers=True)
    for number, values in due.items():
        assert [each.value for each in found if each.partition == number] == values


def test_one_name_at_both_servers_at_once(pair: Pair) -> None:
    """One producer is left, and what the others have written is there once."""
    random = new_random("shared-name")
    topic = pair.topic(f"one-name-{pair.a.kafka_port}")
    writers = [
        NamedWriter(
            number, topic, _PARTITIONS, Random(random.random()), bootstrap=pair.bootstrap,
            leases=(pair.a, pair.b)[number % 2].http_url, policy="strict",
        )
        for number in range(6)
    ]  # fmt: skip
    for each in writers:
        each.start()
    until(lambda: one_is_left(writers), "one of them to be left")
    check_writers(
        writers, lambda: consume(pair.kafka.bootstrap, topic, _PARTITIONS, markers=True),
        _PARTITIONS, "strict",
    )  # fmt: skip


def test_http_by_any_server(pair: Pair) -> None:
    topic = pair.topic(f"http-{pair.a.kafka_port}")
    owners: dict[int, set[str]] = {}
    for seq, server in enumerate((pair.a, pair.b, pair.a)):
        for number in range(_PARTITIONS):
            url = f"{server.http_url}{path_of(topic, number)}"
            headers: dict[str, Any] = {**RAW, **producer("any", 0, seq)}
            answer = httpx.post(url, content=b"%d" % seq, headers=headers, timeout=WAIT_S)
            assert (answer.status_code, answer.json()["duplicate"]) == (200, False), answer.text
            owners.setdefault(number, set()).add(answer.headers.get("pidlease-owner", "")[:1])
            again = httpx.post(url, content=b"%d" % seq, headers=headers, timeout=WAIT_S)
            assert again.json()["duplicate"], again.text
            if "pidlease-owner" in answer.headers:
                marked = {**headers, "pidlease-forwarded": "1"}
                refused = httpx.post(url, content=b"x", headers=marked, timeout=WAIT_S)
                assert (refused.status_code, refused.json()["code"]) == (421, "not_owner")
            records = httpx.get(url, params={"offset": 0}, timeout=WAIT_S).json()["records"]
            assert [each["value"] for each in records] == list(map(str, range(seq + 1)))
    # Each partition was reached by its owner, and by the other server.
    assert all(len(each) == 2 for each in owners.values())
    shown = httpx.get(f"{pair.a.http_url}/v1/servers", timeout=WAIT_S).json()
    assert sum(each["slots"] for each in shown["servers"]) == SLOTS
    assert min(each["slots"] for each in shown["servers"]) > SLOTS // 4
    assert [each["responds"] for each in shown["servers"]] == [True, False]
    assert shown["partitions_without_owner"] == 0
    owned = Counter(shown["slot_owners"])
    assert owned == {each["node_id"]: each["slots"] for each in shown["servers"]}
