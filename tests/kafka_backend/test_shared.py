"""Two active servers share a Kafka: each partition has one owner, and each record is there once.

The clients go on whatever happens to one of the servers. What Kafka itself has is held against what
they were told.
"""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.client.loads import loads_for as leased_loads_for
from tests.crash.clients import Load
from tests.crash.lives import get_on, loads_for
from tests.crash.readback import Stored, consume
from tests.crash.seeds import new_random
from tests.kafka_backend.loads import HttpLoad
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import until
from tests.servers.zookeeper import ZooKeeperServer

pytestmark = [needs_kafka, pytest.mark.kafka]

_SESSION_SECONDS = 2.0
_HANG_S = 300.0
_PARTITIONS = 6


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@dataclass
class Pair:
    """Two servers that share a Kafka, in a chroot of their own."""

    kafka: KafkaServer
    a: PidleaseServer
    b: PidleaseServer
    topics: list[str] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return f"{self.a.bootstrap},{self.b.bootstrap}"

    def topic(self, name: str) -> str:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        admin.create_topics([NewTopic(name, _PARTITIONS)])[name].result(30)
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


@pytest.fixture
def pair(kafka: KafkaServer, zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Pair]:
    settings: dict[str, Any] = {
        "zookeeper": f"{zookeeper.hosts}/{tmp_path.name}", "shared": "true", "log_level": "info",
        "zookeeper_session_seconds": str(_SESSION_SECONDS), "snapshot_batches": "100",
    }  # fmt: skip
    with ExitStack() as stack:
        a, b = (
            stack.enter_context(in_front_of(kafka, tmp_path / name, **settings)) for name in "ab"
        )
        a.start()
        b.start()
        yield Pair(kafka, a, b)


@pytest.mark.timeout(900)
def test_faults_of_an_owner(pair: Pair) -> None:
    """It is killed, suspended for longer than its session, and drained, under all kinds of load."""
    random = new_random("shared-faults")
    topic = pair.topic(f"faults-{pair.a.kafka_port}")
    loads = _loads(pair, topic, random)
    get_on(loads, within_s=_HANG_S)

    served, _ = pair.leaders(topic)
    assert served
    pair.a.kill9()
    until(lambda: _served(pair.b, topic) == _PARTITIONS, "the other one owns all")
    get_on(loads, within_s=_HANG_S)
    pair.a.start()
    until(lambda: all(pair.leaders(topic)), "both own some again")
    get_on(loads, within_s=_HANG_S)

    os.kill(pair.a.pid, signal.SIGSTOP)
    until(lambda: _served(pair.b, topic) == _PARTITIONS, "the other one owns all")
    get_on(loads, within_s=_HANG_S)
    os.kill(pair.a.pid, signal.SIGCONT)
    until(lambda: all(pair.leaders(topic)), "both own some again")
    get_on(loads, within_s=_HANG_S)
    assert "stepping down from all partitions" in pair.a.log_text()

    assert pair.a.stop() == 0
    assert "drained slots_left=0" in pair.a.log_text().replace("               ", " ")
    assert _served(pair.b, topic) == _PARTITIONS
    get_on(loads, within_s=_HANG_S)
    stored = pair.read_back(topic, loads)
    assert pair.b.metric("pidlease_partitions_taken_over_total") >= 3 * served
    print(f"{served} partitions lost their owner three times; {len(stored)} records")


def _loads(pair: Pair, topic: str, random: Random) -> list[Load]:
    kafka = loads_for(pair.bootstrap, topic, _PARTITIONS, random)
    leased = leased_loads_for(pair.b, pair.bootstrap, topic, _PARTITIONS, random)
    http = HttpLoad(pair.b, topic, _PARTITIONS, Random(random.random()))
    loads: list[Load] = [*kafka, *leased, http]
    for load in loads:
        load.start()
    return loads
