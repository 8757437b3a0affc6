"""Members ping each other: whom they miss, and that the slots come to rest after any fault.

The clock, the network and the coordinator are simulated; the rules and the membership are real.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random

import pytest

from pidlease.coordination.members import Member
from pidlease.core.liveness import RETURN_TICKS, SILENT_TICKS, TICK_SECONDS, PeerReport
from pidlease.core.slots import SLOTS
from pidlease.engine.member_pings import MemberPings, PingConnection, PingOutcome, SilentError
from pidlease.engine.shared_cluster import LastServerError, SharedCluster
from tests.crash.seeds import SOAK, new_random
from tests.sim.pool import SeededPool
from tests.unit.engine.shared_memory import Coordinator, Link

SESSION_SECONDS = 10.0
_SESSION_TICKS = round(SESSION_SECONDS / TICK_SECONDS)
_READ_TICKS = 3
#: After so many ticks without a new fault, slots of silent members have moved: one to step in for
#: each older member that does nothing, too.
_SETTLED_TICKS = SILENT_TICKS + 25


class Sim:
    """Servers that share a coordinator, and the network between them."""

    def __init__(self) -> None:
        self.shared = Coordinator()
        self.clusters: dict[int, SharedCluster] = {}
        self.killed: set[int] = set()
        #: Suspended servers, and for how many ticks.
        self.suspended: dict[int, int] = {}
        #: From one server to another nothing arrives.
        self.cut: set[tuple[int, int]] = set()
        self.pings = 0
        self.ticked = 0

    async def add(self, node_id: int) -> SharedCluster:
        own = Member(node_id, f"host:{node_id}", "127.0.0.1", 9000 + node_id, f"http://{node_id}")
        link = Link(self.shared)
        pool = SeededPool(asyncio.get_running_loop(), Random(node_id))

        def connect(member: Member, outcome: PingOutcome) -> PingConnection:
            return SimConnection(self, node_id, member.node_id, outcome)

        cluster = SharedCluster(
            link, own, pool, SESSION_SECONDS, lambda: self.shared.now, connect
        )  # fmt: skip
        self.shared.members.pop(node_id, None)  # of an earlier process
        self.killed.discard(node_id)
        await cluster.join()
        self.clusters[node_id] = cluster
        self._rejoin(node_id)
        await cluster.refresh()
        return cluster

    def _rejoin(self, node_id: int) -> None:
        joined = 1 + max((each.joined for each in self.shared.members.values()), default=0)
        member = self.clusters[node_id]._own._replace(joined=joined)
        self.shared.members[node_id] = member

    def kill(self, node_id: int) -> None:
        self.killed.add(node_id)
        self.suspended[node_id] = 0

    def resume(self, node_id: int) -> None:
        del self.suspended[node_id]
        if node_id not in self.shared.members:
            self._rejoin(node_id)  # as a read does when the session has ended

    def running(self) -> list[int]:
        return [each for each in self.clusters if each not in self.suspended]

    async def ticks(self, times: int = 1, random: Random | None = None) -> None:
        for _ in range(times):
            self.shared.now += TICK_SECONDS
            for node in list(self.suspended):
                self.suspended[node] += 1
                if self.suspended[node] > _SESSION_TICKS:
                    self.shared.members.pop(node, None)
            order = self.running()
            if random is not None:
                random.shuffle(order)
            for node in order:
                self.clusters[node].pings.tick()
            self.ticked += 1
            for node in order:
                cluster = self.clusters[node]
                due = self.ticked % _READ_TICKS == node % _READ_TICKS
                if cluster._wake.is_set() or due or self._watch_fires(cluster):
                    cluster._wake.clear()
                    await cluster.refresh()
                    cluster._alive_at = self.shared.now

    def _watch_fires(self, cluster: SharedCluster) -> bool:
        known, shared = cluster.view, self.shared
        return known.slots.version != shared.slots.version or known.members != shared.members

    def in_map(self) -> tuple[int, ...]:
        return self.shared.slots.members


class SimConnection:
    """Pings arrive at once, or never."""

    def __init__(self, sim: Sim, own: int, other: int, outcome: PingOutcome) -> None:
        self._sim, self._own, self._other, self._outcome = sim, own, other, outcome

    def ping(self, version: int, topics: int) -> None:
        sim = self._sim
        sim.pings += 1
        there, back = (self._own, self._other), (self._other, self._own)
        if there in sim.cut:
            return
        if self._other in sim.killed:
            self._outcome.refused()
        elif self._other not in sim.suspended:
            report = sim.clusters[self._other].pings.answer(version, topics)
            if back not in sim.cut:
                self._outcome.answered(report)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests say when members ping, and when they read."""

    async def never(self: SharedCluster) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(SharedCluster, "_run", never)
    monkeypatch.setattr(MemberPings, "start", lambda _: None)


@asynccontextmanager
async def servers(count: int) -> AsyncIterator[Sim]:
    sim = Sim()
    for node_id in range(1, count + 1):
        await sim.add(node_id)
    await sim.ticks(2)
    assert sim.in_map() == tuple(range(1, count + 1))
    try:
        yield sim
    finally:
        for node, each in sim.clusters.items():
            sim.shared.members.setdefault(node, each._own)
            await each.leave()


async def test_a_killed_member_is_missed_while_its_session_lives() -> None:
    async with servers(3) as sim:
        sim.kill(2)
        await sim.ticks()
        assert 2 in sim.shared.members
        assert sim.in_map() == (1, 3)
        assert sim.clusters[1].silent_moved == 1
        shown = {each.member.node_id: each for each in sim.clusters[3].servers()}
        assert [shown[node].silent for node in (1, 2, 3)] == [False, True, False]
        assert [each.node_id for each in sim.clusters[3].brokers()] == [1, 3]


async def test_a_killed_decider_is_missed_by_the_next_one() -> None:
    async with servers(3) as sim:
        sim.kill(1)
        await sim.ticks()
        assert sim.in_map() == (2, 3)
        assert sim.shared.writes[-1] == 2


async def test_a_suspended_member_steps_down_and_gets_slots_back_after_a_while() -> None:
    async with servers(3) as sim:
        sim.suspended[2] = 0
        await sim.ticks(SILENT_TICKS - 1)
        assert sim.in_map() == (1, 2, 3)
        await sim.ticks(1)
        assert sim.in_map() == (1, 3)
        suspended = sim.clusters[2]
        assert suspended.view.slots.count(2), "it does not know yet"
        sim.resume(2)
        await sim.ticks(1)
        assert not suspended.view.slots.count(2)
        assert not suspended.pings.silent, "it was suspended, not the others"
        shown = {each.member.node_id: each for each in sim.clusters[1].servers()}
        assert (shown[2].silent, shown[2].returning) == (False, True)
        await sim.ticks(RETURN_TICKS - 5)
        assert sim.in_map() == (1, 3)
        await sim.ticks(7)
        assert sim.in_map() == (1, 2, 3)


async def test_a_process_that_is_started_again_gets_slots_at_once() -> None:
    async with servers(3) as sim:
        sim.kill(2)
        await sim.ticks(2)
        assert sim.in_map() == (1, 3)
        del sim.suspended[2]
        await sim.add(2)
        await sim.ticks(2)
        assert sim.in_map() == (1, 2, 3)


async def test_a_lost_watch_is_noticed_by_a_ping() -> None:
    async with servers(2) as sim:
        one, two = sim.clusters[1], sim.clusters[2]
        two._wake.clear()
        sim.shared.slots = sim.shared.slots._replace(version=sim.shared.slots.version + 1)
        await one.refresh()
        for each in (one, two, two):
            each.pings.tick()
        assert two._wake.is_set()
        two._wake.clear()
        await two.refresh()
        two.pings.tick()
        assert not two._wake.is_set()


async def test_a_ping_with_a_version_that_does_not_exist_costs_one_read() -> None:
    async with servers(2) as sim:
        two = sim.clusters[2]
        two.pings.answer(1 << 40, 0)
        two._wake.clear()
        two.pings.tick()
        assert two._wake.is_set()
        two._wake.clear()
        two.pings.tick()
        assert not two._wake.is_set()


async def test_all_members_hear_that_topics_were_changed() -> None:
    """The two youngest of five do not ping each other: they hear it from the others."""
    async with servers(5) as sim:
        heard: Counter[int] = Counter()
        for node, each in sim.clusters.items():
            each.pings.on_topics = partial(heard.update, [node])
        for change in (1, 2):
            sim.clusters[5].pings.topics_changed(now_ms=1000)  # its clock may stand
            await sim.ticks(2)
            assert heard == {node: change for node in sim.clusters if node != 5}


async def test_two_that_do_not_reach_each_other_do_not_fight() -> None:
    async with servers(2) as sim:
        sim.cut = {(1, 2), (2, 1)}
        await sim.ticks(SILENT_TICKS + 1)
        assert len(sim.in_map()) == 1
        writes = len(sim.shared.writes)
        await sim.ticks(RETURN_TICKS * 2)
        assert len(sim.shared.writes) == writes
        sim.cut = set()
        await sim.ticks(RETURN_TICKS + 5)
        assert sim.in_map() == (1, 2)


@pytest.mark.parametrize("one_way", [False, True])
async def test_one_that_is_cut_off_does_not_divide(one_way: bool) -> None:
    """It is the oldest; `one_way`: it receives pings, and no answers to its own."""
    async with servers(5) as sim:
        sim.cut = {(1, other) for other in range(2, 6)}
        if not one_way:
            sim.cut |= {(other, 1) for other in range(2, 6)}
        await sim.ticks(_SETTLED_TICKS)
        assert sim.clusters[1].pings.deciders().silent == frozenset()
        assert sim.in_map() == (2, 3, 4, 5)
        assert sim.shared.slots.count(1) == 0
        writes = list(sim.shared.writes)
        assert writes[-1] == 2
        await sim.ticks(RETURN_TICKS * 2)
        assert sim.shared.writes == writes


async def test_where_no_member_reaches_another_sessions_count() -> None:
    async with servers(3) as sim:
        sim.cut = {(a, b) for a in range(1, 4) for b in range(1, 4) if a != b}
        await sim.ticks(_SETTLED_TICKS)
        assert sim.in_map() == (1, 2, 3)
        sim.kill(3)
        await sim.ticks(_SESSION_TICKS - 2)
        assert sim.in_map() == (1, 2, 3)
        await sim.ticks(10)
        assert 3 not in sim.in_map()


async def test_slots_return_at_once_where_no_other_could_own_them() -> None:
    async with servers(2) as sim:
        sim.suspended[2] = 0
        await sim.ticks(SILENT_TICKS + 1)
        with pytest.raises(LastServerError):
            await sim.clusters[1].drain(0)
        sim.resume(2)
        await sim.ticks(2)
        assert sim.in_map() == (1,)
        await sim.clusters[1].drain(0)
        await sim.ticks(2)
        assert sim.in_map() == (2,)
        await sim.clusters[1].undrain()
        await sim.ticks(2)
        assert sim.in_map() == (1, 2), "it has kept what it got"
        assert sim.shared.slots.count(2) == SLOTS // 2


async def test_a_rebalance_gives_nothing_to_a_silent_member() -> None:
    async with servers(3) as sim:
        sim.kill(3)
        await sim.ticks(2)
        await sim.clusters[2].rebalance()
        assert sim.in_map() == (1, 2)


async def test_what_is_in_flight_to_a_member_ends_when_it_is_silent() -> None:
    async with servers(2) as sim:
        pings = sim.clusters[1].pings

        async def wait() -> None:
            async with pings.while_answering(2):
                await asyncio.Event().wait()

        waiting = [asyncio.create_task(wait()) for _ in range(3)]
        cancelled = waiting.pop()
        await asyncio.sleep(0)
        cancelled.cancel()
        sim.kill(2)
        pings.tick()
        for _ in range(9):
            await asyncio.sleep(0)
        for each in waiting:
            assert each.done()
            with pytest.raises(SilentError):
                await each
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(SilentError):
            await wait()
        pings.note_answer(2, PeerReport(1))
        async with pings.while_answering(2):
            pass
        with pytest.raises(TimeoutError):
            async with pings.while_answering(2):
                raise TimeoutError
        assert not pings._waiting


async def test_pings_of_a_hundred_members_stay_few() -> None:
    async with servers(100) as sim:
        sim.pings = 0
        await sim.ticks()
        assert sim.pings == 3 * 99 + 97 * 3


class _Faults:
    """Random faults, and how they end."""

    def __init__(self, sim: Sim, random: Random, count: int) -> None:
        self._sim, self._random, self._nodes = sim, random, range(1, count + 1)
        self.fired: dict[str, int] = {}

    def _some(self, of: Collection[int]) -> int:
        return self._random.choice(sorted(of))

    async def one(self) -> None:
        sim, random = self._sim, self._random
        kind = random.choice(["kill", "suspend", "restart", "drain", "cut", "split", "deaf"])
        running = sim.running()
        if kind in {"kill", "suspend"} and len(running) < 2:
            kind = "cut"
        self.fired[kind] = self.fired.get(kind, 0) + 1
        if kind == "kill":
            sim.kill(self._some(running))
        elif kind == "suspend":
            sim.suspended[self._some(running)] = 0
        elif kind == "restart":
            node = self._some(running)
            sim.kill(node)
            await sim.ticks(random.randint(0, 3), random)
            del sim.suspended[node]
            await sim.add(node)
        elif kind == "drain":
            node = self._some(running)
            with suppress(LastServerError):
                await sim.clusters[node].drain(0)
        elif kind == "cut":
            a, b = random.sample(self._nodes, 2)
            sim.cut |= {(a, b), (b, a)}
        elif kind == "split":
            part = set(random.sample(self._nodes, random.randint(1, len(self._nodes) - 1)))
            sim.cut |= {(a, b) for a in self._nodes for b in self._nodes
                        if (a in part) != (b in part)}  # fmt: skip
        else:
            a = self._some(self._nodes)
            sim.cut |= {(a, b) for b in self._nodes if a != b}

    async def heal(self) -> None:
        self._sim.cut.clear()
        for node in list(self._sim.suspended):
            if node in self._sim.killed:
                del self._sim.suspended[node]
                await self._sim.add(node)
            else:
                self._sim.resume(node)
        for each in self._sim.clusters.values():
            await each.undrain()


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7])
async def test_slots_come_to_rest_after_any_faults(count: int) -> None:
    """While faults last, slots move a bounded number of times; when they end, all own some."""
    random = new_random(f"pings-{count}")
    fired: dict[str, int] = {}
    for _ in range(100 if SOAK else 3):
        async with servers(count) as sim:
            faults = _Faults(sim, random, count)
            for _ in range(random.randint(1, 3)):
                await faults.one()
                await sim.ticks(random.randint(0, 12), random)
            await sim.ticks(_SETTLED_TICKS + _SESSION_TICKS, random)
            writes = list(sim.shared.writes)
            await sim.ticks(RETURN_TICKS + _SETTLED_TICKS, random)
            # Members whose pings are answered again have returned meanwhile; nothing else moves.
            assert len(sim.shared.writes) - len(writes) <= count, (faults.fired, sim.cut)
            writes = list(sim.shared.writes)
            await sim.ticks(2 * RETURN_TICKS, random)
            assert sim.shared.writes == writes, (faults.fired, sim.cut)
            alive = {node for node in sim.running() if not sim.shared.members[node].draining}
            assert not alive or alive & set(sim.in_map()), "some server owns the slots"
            assert not alive or not set(sim.in_map()) - set(sim.shared.members)
            await faults.heal()
            await sim.ticks(RETURN_TICKS + _SETTLED_TICKS, random)
            assert sim.in_map() == tuple(range(1, count + 1)), faults.fired
            for kind, times in faults.fired.items():
                fired[kind] = fired.get(kind, 0) + times
    print(fired)
    assert fired
