"""A hundred members in one process, with their coordinator in a real Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import structlog
from typing_extensions import override

from pidlease.coordination.journal.journal_members import JournalMembers
from pidlease.coordination.members import SharedView
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.engine import wall_clock_ms
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.kafka.client.kafka_client import Upstream
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.kafka.client.transactions import SERVED_TOPIC
from pidlease.log.kafka.kafka_shared_journal import RegistrarGoneError, SharedKafkaJournal
from pidlease.storage.io_pool import IoPool
from tests.benchmarks.members.stub_members import TOPICS, Network, agree, own_entry
from tests.benchmarks.scale.figure import Figure
from tests.kafka_backend.test_shared_journal import answer
from tests.servers.kafka import KafkaServer

_COUNTS = (3, 30, 100)
#: As in a server.
_SESSION_S = 30.0
_NETWORK_S = 0.0005
_REST_S = 30.0
_LIMIT_S = 120.0
_LOOK_S = 0.01


class _World:
    """All members of one cluster, and the Kafka that coordinates them."""

    def __init__(self, kafka: KafkaServer, stack: AsyncExitStack) -> None:
        self.kafka = kafka
        self._stack = stack
        host, port = kafka.bootstrap.rsplit(":", 1)
        self._config = UpstreamConfig(bootstrap=((host, int(port)),))
        random = Random(1)
        self.network = Network(lambda: random.expovariate(1 / _NETWORK_S))
        self.members: dict[int, SharedCluster] = {}
        self.journals: dict[str, SharedKafkaJournal] = {}
        self.asked = 0
        self.calls_s: list[float] = []

    async def add(self, number: int) -> None:
        """Start a member: it has connections to Kafka, and threads, of its own."""
        own = own_entry(number)
        upstream = Upstream(self._config)
        self._stack.push_async_callback(upstream.close)
        await upstream.start()
        journal = SharedKafkaJournal(
            upstream, own.server, wall_clock_ms, own.http_url, _SESSION_S, self._ask
        )
        self._stack.push_async_callback(journal.release)
        self.journals[own.http_url] = journal
        pool = IoPool(asyncio.get_running_loop(), 2)
        self._stack.callback(pool.close)
        if stranger := await pool.run(journal.claim):
            raise RuntimeError(f"{stranger} serves this Kafka")
        members = _Timed(journal, lambda: journal.stranger)
        members.calls_s = self.calls_s
        cluster = SharedCluster(
            members, own, pool, _SESSION_S, connect=self.network.connector(own.http_url)
        )
        journal.is_silent = cluster.is_silent
        cluster.topics = lambda: TOPICS
        self.network.members[own.http_url] = cluster
        await cluster.join()
        self.members[number] = cluster

    async def _ask(self, url: str, body: bytes) -> tuple[int, str]:
        self.asked += 1
        await asyncio.sleep(self.network.delay_s())
        if url in self.network.gone:
            raise RegistrarGoneError(f"nothing listens at {url}")
        return await answer(self.journals[url], body)

    async def kill(self, number: int) -> None:
        """End a member; its entry stays until its session ends."""
        member = self.members.pop(number)
        url = own_entry(number).http_url
        self.network.gone.add(url)
        member.pings.stop()
        if member._task is not None:
            member._task.cancel()
        journal = self.journals[url]
        journal.ended = "killed"
        for task in journal._tasks:
            task.cancel()

    async def agreed(self, since: float) -> float:
        """How long it takes until the members that are left agree, in s."""
        while not agree(list(self.members.values())):
            if time.monotonic() - since > _LIMIT_S:
                raise RuntimeError(f"no agreement within {_LIMIT_S} s")
            await asyncio.sleep(_LOOK_S)
        return time.monotonic() - since

    @property
    def registrar(self) -> int:
        """The number of the member that writes the rows."""
        (found,) = (number for number in self.members
                    if self.journals[own_entry(number).http_url].is_registrar)  # fmt: skip
        return found


class _Timed(JournalMembers):
    """Notes how long reads take."""

    calls_s: list[float]

    @override
    def read(self) -> SharedView:
        began = time.monotonic()
        found = super().read()
        self.calls_s.append(time.monotonic() - began)
        return found


async def _measure(kafka: KafkaServer, count: int) -> list[Figure]:
    figures: list[Figure] = []
    name = f"{count} members on Kafka"
    async with AsyncExitStack() as stack:
        world = _World(kafka, stack)

        async def timed(what: str, aim: float | None, act: Callable[[], Awaitable[None]]) -> None:
            began = time.monotonic()
            await act()
            figures.append(Figure(f"{name}: {what}", await world.agreed(began), "s", aim))

        async def start() -> None:
            await world.add(1)
            await asyncio.gather(*map(world.add, range(2, count + 1)))

        await timed("agree after all have started", None, start)
        figures += await _rest(world, name)
        others = [each for each in world.members if each != world.registrar]
        await timed("agree after one is killed", 3.0, lambda: world.kill(others[-1]))
        await timed("agree after the registrar is killed", 5.0, lambda: world.kill(world.registrar))
        for member in world.members.values():
            await member.leave()
    return figures


async def _rest(world: _World, name: str) -> list[Figure]:
    """What it costs while nothing happens."""
    place = TopicPartition(SERVED_TOPIC, 0)
    upstream = next(iter(world.journals.values()))._upstream
    world.calls_s.clear()
    before = await upstream.end_of(place)
    kafka_s, own_s, asked = world.kafka.process.cpu_s(), time.process_time(), world.asked
    began = time.monotonic()
    await asyncio.sleep(_REST_S)
    elapsed_s = time.monotonic() - began
    after = await upstream.end_of(place)
    count = len(world.members)
    reads = sorted(world.calls_s)
    return [
        Figure(f"{name}: rows put at rest", (after - before) / elapsed_s, "a second"),
        Figure(f"{name}: requests to the registrar at rest", (world.asked - asked) / elapsed_s,
               "a second"),
        Figure(f"{name}: processor time of Kafka at rest",
               (world.kafka.process.cpu_s() - kafka_s) / elapsed_s * 1e3, "ms a second"),
        Figure(f"{name}: processor time of each member at rest",
               (time.process_time() - own_s) / elapsed_s / count * 1e3, "ms a second"),
        Figure(f"{name}: a read of members and map, median", reads[len(reads) // 2] * 1e3, "ms"),
        Figure(f"{name}: a read of members and map, p99", reads[len(reads) * 99 // 100] * 1e3,
               "ms"),
    ]  # fmt: skip


def measure(folder: Path) -> list[Figure]:
    """Measure how long members take to agree, and what Kafka and each of them pay at rest.

    Parameters:
        folder: for Kafka's data.
    """
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    figures: list[Figure] = []
    for count in _COUNTS:
        with TemporaryDirectory(dir=folder) as data, KafkaServer(Path(data)) as kafka:
            figures += asyncio.run(_measure(kafka, count))
    return figures
