"""Three active servers that share a Kafka, and gates in the ways between all of them.

Each server has its own way to Kafka, to ZooKeeper if that coordinates them, and from the other
servers. A gate can delay, stall or cut it: what was stalled arrives later, as from a server that
another one has replaced.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from typing_extensions import override

from pidlease.coordination.journal.journal import JournalError
from pidlease.coordination.journal.journal_members import JournalMembers
from pidlease.coordination.members import MapConflictError, Members, MembersError
from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper, ZooKeeperConfig
from pidlease.coordination.zookeeper.zookeeper_members import ZooKeeperMembers
from pidlease.core.slots import SlotMap, slot_of
from pidlease.kafka.client.kafka_client import Upstream
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.log.kafka.kafka_shared_journal import SharedKafkaJournal
from proxy.backends.registrar_requests import RegistrarRequests
from tests.crash.clients import Load
from tests.crash.readback import Stored, consume
from tests.crash.relay import Line
from tests.kafka_backend.loads import all_loads
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.waiting import WAIT_S, until
from tests.servers.zookeeper import ZooKeeperServer

PARTITIONS: Final = 6
#: How long the loads of a failed test may take to end, in seconds.
_LEFT_S: Final = 10.0
NAMES: Final = ("a", "b", "c")


class Gate(Line):
    """A way to a server: what goes by is delayed, stalled or cut.

    Attributes:
        delay_s: how long each piece takes at most.
        stalled_count: pieces that waited until the gate was opened again.
    """

    def __init__(self, target_port: int, random: Random, delay_s: float = 0.0) -> None:
        super().__init__(target_port)
        self.delay_s = delay_s
        self.stalled_count = 0
        self._random = random
        self._passing = asyncio.Event()
        self._passing.set()

    async def before_passing(self) -> None:
        """Delay a piece, and hold it while the gate is stalled."""
        if self.delay_s:
            await asyncio.sleep(self._random.random() * self.delay_s)
        if not self._passing.is_set():
            self.stalled_count += 1
            await self._passing.wait()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Pass nothing on during the block; it arrives afterwards."""
        self._loop.call_soon_threadsafe(self._passing.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._passing.set)


class Member(NamedTuple):
    """A server, with its gates."""

    server: PidleaseServer
    kafka: Gate
    zookeeper: Gate | None
    peers: Gate


@dataclass
class Several:
    """The servers, and what they share."""

    kafka: KafkaServer
    zookeeper: ZooKeeperServer | None
    members: list[Member]
    map: Members
    random: Random

    @property
    def bootstrap(self) -> str:
        return ",".join(each.server.bootstrap for each in self.members)

    # ------------------------------------------------------------------ topics and loads

    def topic(self, name: str, partitions: int = PARTITIONS, **config: str) -> str:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        settings = {key.replace("_", "."): text for key, text in config.items()}
        admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(WAIT_S)
        until(lambda: sum(self.served(name)) == partitions, "all partitions to be served")
        return name

    def drop(self, topic: str) -> None:
        """Delete a topic, so that the members divide the slots by the next one alone."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        admin.delete_topics([topic])[topic].result(WAIT_S)

    @contextmanager
    def loads(self, topic: str) -> Iterator[list[Load]]:
        """Start one load of each kind; their leases come from different servers."""
        one, two = self.random.sample([each.server for each in self.members], 2)
        loads = all_loads(self.bootstrap, one, two, topic, PARTITIONS, self.random)
        try:
            yield loads
        except BaseException:
            for load in loads:  # they would write on during the next tests
                with suppress(AssertionError):
                    load.finish(_LEFT_S)
            raise

    def read_back(self, topic: str, loads: Sequence[Load]) -> list[Stored]:
        """Let the loads finish, and compare what they were told with what Kafka has."""
        for load in loads:
            load.finish(WAIT_S)
        stored = consume(self.kafka.bootstrap, topic, PARTITIONS, markers=True)
        for load in loads:
            load.ledger.check(stored)
        return stored

    # ------------------------------------------------------------------ the map

    def served(self, topic: str, but: int = -1) -> list[int]:
        """Return how many of a topic's partitions each member serves, except one."""
        return [
            _served(each.server, topic) for index, each in enumerate(self.members) if index != but
        ]

    def owner(self, topic: str, partition: int) -> int:
        """Return the index of a partition's owner by the map."""
        owner = self.slots().owners[slot_of(topic, partition)]
        return self.node_ids().index(owner)

    def slots(self) -> SlotMap:
        """Return the map, as soon as it can be read."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return self.map.slots()
            except MembersError:
                if time.monotonic() > deadline:
                    raise

    def node_ids(self) -> list[int]:
        return [int((each.server.data_dir / "node-id").read_text()) for each in self.members]

    def move(self, topic: str, owners: dict[int, int]) -> None:
        """Give partitions to members, by index; others stay."""
        nodes = self.node_ids()
        while True:
            slots = self.slots()
            to, epochs = list(slots.owners), list(slots.epochs)
            for partition, member in owners.items():
                slot = slot_of(topic, partition)
                epochs[slot] += to[slot] != nodes[member]
                to[slot] = nodes[member]
            try:
                # As a decider: each owner is one of those that the slots are divided among.
                among = tuple(sorted({*slots.members, *to}))
                self.map.write(
                    slots._replace(owners=tuple(to), epochs=tuple(epochs), members=among)
                )
            except (MapConflictError, MembersError):
                continue  # it may have been written
            return

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all members that answer."""
        return sum(each.server.metric(name, **labels) for each in self.members if each.server.alive)


def _served(server: PidleaseServer, topic: str) -> int:
    status, body = server.get("/v1/status")
    assert status == 200
    found = [each for each in json.loads(body)["partitions"] if each["topic"] == topic]
    return sum("elsewhere" not in each for each in found)


@contextmanager
def several(
    folder: Path, random: Random, delay_s: float = 0.0, overrides: dict[str, str] | None = None,
    tick_ms: int = 1000, coordination: str = "zookeeper", **settings: str,
) -> Iterator[Several]:  # fmt: skip
    """Run a Kafka, three members, and a ZooKeeper unless Kafka coordinates them."""
    listeners = dict.fromkeys(map(str.upper, NAMES), "PLAINTEXT")
    # Members of groups have short sessions.
    usual = {"group.min.session.timeout.ms": "200", "auto.create.topics.enable": "false"}
    overrides = {**usual, **(overrides or {})}
    kafka = KafkaServer(folder / "kafka", listeners=listeners, overrides=overrides)
    with ExitStack() as stack:
        zookeeper = None
        if coordination == "zookeeper":
            zookeeper = stack.enter_context(ZooKeeperServer(folder / "zookeeper", tick_ms=tick_ms))
        members = []
        for name in NAMES:
            port = int(kafka.listeners[name.upper()].rpartition(":")[2])
            to_kafka = stack.enter_context(Gate(port, Random(random.random()), delay_s))
            kafka.advertised[name.upper()] = to_kafka.bootstrap
            to_zookeeper = None
            options: dict[str, Any] = {
                "shared": "true", "log_level": "info", "snapshot_batches": "100",
                "upstream_metadata_seconds": "0.5", "upstream": to_kafka.bootstrap,
                # A late client of the last topic would make it anew, and its partition would count.
                "auto_create_topics": "false",
                "coordination": "kafka", **settings,
            }  # fmt: skip
            if zookeeper is not None:
                to_zookeeper = stack.enter_context(Gate(zookeeper.port, random))
                options |= {
                    "coordination": "auto", "zookeeper": f"{to_zookeeper.bootstrap}/p",
                    "zookeeper_session_seconds": "4",
                }  # fmt: skip
            server = stack.enter_context(in_front_of(kafka, folder / name, **options))
            peers = stack.enter_context(Gate(server.http_port, random))
            server.settings["http_advertise"] = peers.bootstrap
            members.append(Member(server, to_kafka, to_zookeeper, peers))
        stack.enter_context(kafka)
        for each in members:
            each.server.start()
        map_ = (
            stack.enter_context(_in_kafka(kafka))
            if zookeeper is None
            else stack.enter_context(_in_zookeeper(zookeeper))
        )
        yield Several(kafka, zookeeper, members, map_, random)


@contextmanager
def _in_zookeeper(zookeeper: ZooKeeperServer) -> Iterator[Members]:
    connection = ZooKeeper(ZooKeeperConfig(f"{zookeeper.hosts}/p", session_seconds=20.0))
    connection.start()
    try:
        connection.wait(WAIT_S)
        clusters = connection.children(connection.path("shared"))
        yield ZooKeeperMembers(connection, clusters[0])
    finally:
        connection.close()


class _Reader(SharedKafkaJournal):
    """Puts rows as a server does, but does not keep them."""

    @override
    async def _become(self) -> None:
        raise JournalError("no server keeps the rows now")


@contextmanager
def _in_kafka(kafka: KafkaServer) -> Iterator[Members]:
    """Read and write the map in Kafka, from threads; the connections are in a loop of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    host, port = kafka.bootstrap.rsplit(":", 1)
    requests = RegistrarRequests(None)

    async def connect() -> tuple[Upstream, _Reader]:
        upstream = Upstream(UpstreamConfig(bootstrap=((host, int(port)),)))
        await upstream.start()
        clock = lambda: int(time.time() * 1000)  # noqa: E731
        return upstream, _Reader(upstream, "test", clock, "", 30.0, requests.ask)

    upstream, journal = asyncio.run_coroutine_threadsafe(connect(), loop).result(WAIT_S)
    try:
        yield JournalMembers(journal, lambda: "")
    finally:
        for each in (upstream.close(), requests.close()):
            asyncio.run_coroutine_threadsafe(each, loop).result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()


def pause(random: Random, at_most_s: float) -> None:
    """Wait for a random time."""
    time.sleep(random.random() * at_most_s)
