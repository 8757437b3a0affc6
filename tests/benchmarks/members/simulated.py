"""A thousand members on a clock that jumps, with a coordinator in memory that takes its time.

The delays are those of the one in Kafka (`on_kafka`). What is not simulated: logs, producers,
takeovers of writers, and the processor time of members, which have machines of their own.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import structlog
from typing_extensions import override

from pidlease.coordination.members import Member, SharedView
from pidlease.core.slots import SlotMap
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.storage.io_pool import IoPool
from tests.benchmarks.members.stub_members import TOPICS, Network, agree, own_entry
from tests.benchmarks.scale.figure import Figure
from tests.unit.engine.shared_memory import Coordinator, Link

_MEMBERS = 1_000
_SEED = 20_261_126
_SESSION_S = 30.0
#: A call of the coordinator in Kafka: mean, and the part of calls that take ten times as long.
_CALL_S, _SLOW = 0.004, 0.01
#: A change of rows is noticed by the next read of the topic.
_NOTICED_S = 0.5
_NETWORK_S = 0.0005
#: Longer than any agreement takes, in simulated time.
_LIMIT_S = 300.0
_LOOK_S = 0.01
_REST_S = 20.0


class _Jumps(selectors.SelectSelector):
    """Instead of waiting, moves the loop's clock on."""

    loop: VirtualLoop

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("nothing will ever happen")
        if not found and timeout is not None:
            self.loop.now += max(timeout, 0.0)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while it waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        jumps = _Jumps()
        jumps.loop = self
        super().__init__(jumps)

    @override
    def time(self) -> float:
        return self.now


class _SlowPool(IoPool):
    """Does each call of the coordinator after a delay."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        super().__init__(loop, threads=0)
        self._virtual = loop
        self._random = random

    @override
    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        delay_s = self._random.expovariate(1 / _CALL_S)
        if self._random.random() < _SLOW:
            delay_s *= 10
        self._virtual.call_later(delay_s, self._do, work, done)

    def _do(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result: Any = work()
        except Exception as error:  # noqa: BLE001 - goes to the waiter, as from a thread
            result = error
        done(result)


class _Watched(Link):
    """One member's connection; changes of others are noticed after a while."""

    everyone: list[Callable[[], None]]
    loop: VirtualLoop
    random: Random
    calls = 0

    @override
    def watch(self, changed: Callable[[], None]) -> None:
        self.everyone.append(changed)

    @override
    def join(self, member: Member) -> None:
        super().join(member)
        self._noticed()

    @override
    def write(self, slots: SlotMap) -> SlotMap:
        _Watched.calls += 1
        found = super().write(slots)
        self._noticed()
        return found

    @override
    def read(self) -> SharedView:
        _Watched.calls += 1
        return super().read()

    def _noticed(self) -> None:
        for each in self.everyone:
            self.loop.call_later(self.random.uniform(0, _NOTICED_S), each)


class _World:
    """All members, and what they share."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.random = Random(_SEED)
        self.coordinator = Coordinator()
        self.network = Network(lambda: self.random.expovariate(1 / _NETWORK_S))
        self.members: dict[int, SharedCluster] = {}
        self._watchers: list[Callable[[], None]] = []

    async def add(self, numbers: Iterable[int]) -> None:
        await asyncio.gather(*map(self._add, numbers))

    async def _add(self, number: int) -> None:
        await asyncio.sleep(self.random.uniform(0, 1))
        link = _Watched(self.coordinator)
        link.everyone, link.loop, link.random = self._watchers, self.loop, self.random
        own = own_entry(number)
        cluster = SharedCluster(
            link, own, _SlowPool(self.loop, self.random), _SESSION_S, self.loop.time,
            self.network.connector(own.http_url),
        )  # fmt: skip
        cluster.topics = lambda: TOPICS
        self.network.members[own.http_url] = cluster
        await cluster.join()
        self.members[number] = cluster

    def kill(self, numbers: Iterable[int], *, hang: bool) -> None:
        """End members, whose entries stay: sessions last longer than this."""
        where = self.network.silent if hang else self.network.gone
        for number in numbers:
            member = self.members.pop(number)
            where.add(own_entry(number).http_url)
            member.pings.stop()
            if member._task is not None:
                member._task.cancel()

    async def end(self) -> None:
        """End all members, those that were killed as well."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for member in self.members.values():
            member.pings.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def agreed(self, since: float) -> float:
        """How long it takes until the members that are left agree, in s."""
        while not agree(list(self.members.values())):
            if self.loop.time() - since > _LIMIT_S:
                raise RuntimeError(f"no agreement within {_LIMIT_S} simulated seconds")
            await asyncio.sleep(_LOOK_S)
        return self.loop.time() - since


async def _run(loop: VirtualLoop) -> list[Figure]:
    world = _World(loop)
    name = f"{_MEMBERS:,} members, simulated"
    figures: list[Figure] = []

    async def timed(
        what: str, aim: float | None, act: Callable[[], Awaitable[None] | None]
    ) -> None:
        began = loop.time()
        waiting = act()
        if waiting is not None:
            await waiting
        figures.append(Figure(f"{name}: {what}", await world.agreed(began), "s", aim))

    await timed("agree after a start within 1 s", None, lambda: world.add(range(1, _MEMBERS + 1)))
    calls, pings, began = _Watched.calls, world.network.pings, loop.time()
    await asyncio.sleep(_REST_S)
    elapsed_s = loop.time() - began
    figures += [
        Figure(f"{name}: calls of the coordinator at rest", (_Watched.calls - calls) / elapsed_s,
               "a second"),
        Figure(f"{name}: pings at rest", (world.network.pings - pings) / elapsed_s, "a second"),
    ]  # fmt: skip
    faults: Mapping[str, tuple[Callable[[], list[int]], bool, float]] = {
        "one is killed": (lambda: [_MEMBERS // 2], False, 3.0),
        "one hangs": (lambda: [_MEMBERS // 3], True, 5.0),
        "the three oldest are killed": (lambda: sorted(world.members)[:3], False, 5.0),
        "a tenth is killed at once":
            (lambda: world.random.sample(sorted(world.members), _MEMBERS // 10), False, 5.0),
    }  # fmt: skip
    for what, (chosen, hang, aim) in faults.items():
        numbers = chosen()
        await timed(f"agree after {what}", aim, lambda: world.kill(numbers, hang=hang))  # noqa: B023
    await world.end()
    return figures


def measure(_folder: Path) -> list[Figure]:
    """Measure, in simulated time, until all members have the same map after an event."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    loop = VirtualLoop()
    began = time.monotonic()
    try:
        figures = loop.run_until_complete(_run(loop))
    finally:
        loop.close()
    figures.append(Figure("all of it, by the clock", time.monotonic() - began, "s"))
    return figures
