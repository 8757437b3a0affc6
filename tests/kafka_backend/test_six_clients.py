"""Six clients through the server to three brokers, while everything between is killed and cut.

Unmodified clients, each acknowledged record exactly once and in order, read from Kafka itself.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.clients.client import CODECS, READER, Client
from tests.clients.judge import Read, check_exactly_once
from tests.crash.lives import Retries
from tests.crash.readback import consume
from tests.crash.relay import Relay, Weather
from tests.crash.seeds import SOAK, new_random
from tests.kafka_backend.cluster import (
    a_leader,
    behind_a_relay,
    in_sync,
    kill_a_broker,
    make,
    move_leaders,
)
from tests.kafka_backend.writers import Fleet
from tests.servers.kafka import KafkaCluster, KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, happens, until

pytestmark = [
    needs_kafka, pytest.mark.kafka,
    pytest.mark.timeout(7200 if SOAK else 900),
]  # fmt: skip

CLIENTS: Final = tuple(READER)
PARTITIONS: Final = 4
#: Of each kind.
FAULTS: Final = 5 if SOAK else 1
#: Of each producer; as many follow one another as the faults take time.
COUNT: Final = 30_000 if SOAK else 12_000
#: Answers take so long at most: clients are to be at work while faults go on, not through.
_DELAY_S: Final = 0.4
#: Answers are held so long at most, and so often, until one to each client is among them.
_HELD_S: Final = 20
_HOLDS: Final = 10
#: A connection is cut, or an answer lost, about every so many Produce requests.
_WEATHER_EVERY: Final = 25
_HEADER: Final = struct.Struct(">qiibIh")
#: Of a batch's attributes: the number of its codec, in the order of CODECS.
_CODEC_BITS: Final = 7


@dataclass
class Faults:
    """What can happen, each kind under its name; and what came of it."""

    cluster: KafkaCluster
    topic: str
    server: PidleaseServer
    relay: Relay
    fleet: Fleet
    random: Random
    retries: Retries
    done: Counter[str] = field(default_factory=Counter)

    def kinds(self) -> dict[str, Callable[[], None]]:
        """All of them."""
        return {
            "broker killed": self.kill_broker,
            "leaders moved": self.move_leaders,
            "server killed": self.kill_server,
            "connections cut": self.cut_connections,
            "answers to clients held": self.hold_answers,
            "answers of Kafka held": self.stop_broker,
        }

    def kill_broker(self) -> None:
        """One that leads something dies, others take over, and it comes back."""
        assert kill_a_broker(self.cluster, self.topic, self.random) > 0

    def move_leaders(self) -> None:
        """By Kafka's own means, with all brokers alive."""
        assert move_leaders(self.cluster, self.topic) > 0

    def kill_server(self) -> None:
        """With requests that it has not answered."""
        self._wait(lambda: self.relay.at_server > 0, "a request at the server")
        self._kill()
        self._start()

    def cut_connections(self) -> None:
        """All clients' at once, with requests under way."""
        self.relay.lost.clear()
        self._wait(lambda: self.relay.at_server + self.relay.on_the_way > 0, "a request under way")
        self.relay.drop()
        self._wait(lambda: bool(self.relay.lost), "a request to be lost")

    def hold_answers(self) -> None:
        """The server dies while what it answered to each client is still on its way."""
        for _ in range(_HOLDS):
            # One that had been slow may let the others come to their end, or give up waiting.
            self.fleet.get_on()
            self.relay.hold()
            if happens(self._holds_all, _HELD_S, poll_s=0.0005):
                break
            self.relay.let_pass()
        else:
            raise AssertionError(f"{self.relay.held} of {len(self.fleet.writers)} were held")
        self._kill()
        self.relay.let_pass()
        self._start()

    def stop_broker(self) -> None:
        """The server dies while Kafka has its batches; they are written, or not, thereafter."""
        node = a_leader(self.cluster, self.topic, self.random)
        with node.process.stopped():
            self._wait(self._waits_for_kafka, "a request that the broker has")
            self._kill()
            self.server.launch()
            time.sleep(self.random.random() * 2)
        self.server.wait_ready(WAIT_S)
        in_sync(self.cluster, self.topic, 3)

    def _holds_all(self) -> bool:
        return self.relay.held >= len(self.fleet.writers)

    def _waits_for_kafka(self) -> bool:
        """Whether what is at the server stays there: then it has been sent on."""
        at_server = self.relay.at_server
        time.sleep(0.3)
        return 0 < at_server <= self.relay.at_server

    def _kill(self) -> None:
        """What is under way is lost with it."""
        self.retries.look()
        self.relay.lost.clear()
        self.relay.cut = True
        self.server.kill9()
        self.relay.wait_no_connection()
        self.relay.cut = False
        assert self.relay.lost, "nothing was under way"
        self.retries.new_life()

    def _start(self) -> None:
        time.sleep(self.random.random())
        self.server.start()

    def _wait(self, happened: Callable[[], bool], what: str) -> None:
        until(happened, what, poll_s=0.0005)


def test_all_six_at_once(cluster: KafkaCluster, tmp_path: Path) -> None:
    random = new_random("six-clients")
    codecs = [*random.sample(CODECS, len(CODECS)), random.choice(CODECS)]
    run(cluster, tmp_path, "six", list(zip(CLIENTS, codecs, strict=True)), random)


@pytest.mark.skipif(not SOAK, reason="each client by itself, with each codec: make soak")
@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_a_client_with_each_codec(cluster: KafkaCluster, tmp_path: Path, client: Client) -> None:
    random = new_random(f"six-clients-{client}")
    run(cluster, tmp_path, client.name, [(client, codec) for codec in CODECS], random)


def run(
    cluster: KafkaCluster,
    folder: Path,
    topic: str,
    kinds: list[tuple[Client, str]],
    random: Random,
) -> None:
    """Producers at work, each fault so often in any order, and what Kafka has in the end."""
    for client, _ in kinds:
        if (missing := client.missing()) is not None:
            pytest.skip(missing)
    make(cluster, topic, PARTITIONS, min_insync_replicas="2")
    weather = Weather(random, delay_s=_DELAY_S)
    with (
        behind_a_relay(cluster, folder, weather) as (server, relay),
        Fleet(relay.bootstrap, topic, COUNT, folder / "producers", kinds, WAIT_S) as fleet,
    ):
        retries = Retries(server)
        retries.new_life()
        server.start()
        faults = Faults(cluster, topic, server, relay, fleet, random, retries)
        _go_through(faults, fleet, weather)
        weather.faults_every = 0
        weather.delay_s = 0
        told = fleet.finish()
        retries.look()
        stored = [_read(each.partition, each.offset, each.value)
                  for each in consume(cluster.bootstrap, topic, PARTITIONS)]  # fmt: skip
        print(f"{dict(faults.done)}, {dict(weather.done)}, {len(told)} producers,"
              f" {len(stored)} records, {retries.total:.0f} duplicates")  # fmt: skip
        check_exactly_once(told, stored, COUNT)
        assert server.stop() == 0
    in_sync(cluster, topic, 3)
    assert _codecs(cluster.nodes[0], topic) == {codec for _, codec in kinds}
    assert all(weather.done[kind] for kind in ("cut request", "cut answer", "lose answer"))


def _go_through(faults: Faults, fleet: Fleet, weather: Weather) -> None:
    """Each kind of fault so often; each comes when all clients have got on since the last."""
    fleet.get_on()
    weather.faults_every = _WEATHER_EVERY
    due = list(faults.kinds().items()) * FAULTS
    faults.random.shuffle(due)
    for name, happen in due:
        time.sleep(faults.random.random())
        before = len(faults.retries.lives)
        happen()
        fleet.get_on()
        faults.retries.look()
        faults.done[name] += 1
        caught = faults.retries.lives[-1]
        print(f"{name}: {caught:.0f} duplicates")
        if name == "answers to clients held":
            assert len(faults.retries.lives) > before
            assert caught > 0, "what was stored and not answered did not come again"


def _read(partition: int, offset: int, value: bytes) -> Read:
    stream, number = value.split(b" ", 1)[0].split(b".")
    return Read(int(stream), int(number), partition, offset)


def _codecs(node: KafkaServer, topic: str) -> set[str]:
    """Of all batches of a topic, as they are in a broker's files."""
    found: set[str] = set()
    for partition in range(PARTITIONS):
        for log in node.partition_dir(topic, partition).glob("*.log"):
            content = log.read_bytes()
            at = 0
            while at < len(content):
                _, length, _, _, _, attributes = _HEADER.unpack_from(content, at)
                found.add(CODECS[attributes & _CODEC_BITS])
                at += 12 + length
    return found
