"""A server's membership among several active ones, over a coordinator in memory."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import pytest

from pidlease.coordination.members import (
    Member,
    MembersError,
)
from pidlease.core.liveness import SILENT_TICKS, TICK_SECONDS
from pidlease.core.slots import SLOTS, slot_of
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine import shared_cluster
from pidlease.engine.shared_cluster import (
    STALLED_SECONDS,
    SUSPENDED_SECONDS,
    LastServerError,
    SharedCluster,
)
from pidlease.storage.errors import LogError
from tests.sim.pool import SeededPool
from tests.unit.engine.shared_memory import Coordinator, Link

SESSION_SECONDS = 10.0
PLACE = TopicPartition("orders", 0)


@dataclass
class Server:
    link: Link
    cluster: SharedCluster

    def owns(self, place: TopicPartition = PLACE) -> bool:
        return self.cluster.epoch_if_owned(place) is not None


@pytest.fixture(autouse=True)
def _only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests say when members and map are read."""

    async def never(self: SharedCluster) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(SharedCluster, "_run", never)


def server(shared: Coordinator, node_id: int) -> Server:
    link = Link(shared)
    own = Member(node_id, f"host:{node_id}", "127.0.0.1", 9000 + node_id, "http://x")
    pool = SeededPool(asyncio.get_running_loop(), Random(node_id))
    return Server(link, SharedCluster(link, own, pool, SESSION_SECONDS, lambda: shared.now))


@asynccontextmanager
async def servers(shared: Coordinator, *node_ids: int) -> AsyncIterator[list[Server]]:
    found = []
    for node_id in node_ids:
        found.append(server(shared, node_id))
        await found[-1].cluster.join()
    try:
        yield found
    finally:
        for each in found:
            each.link.away = False
            await each.cluster.leave()
            each.cluster.close()


async def all_read(found: Sequence[Server], times: int = 2) -> None:
    for _ in range(times):
        for each in found:
            await each.cluster.refresh()


async def test_the_oldest_member_divides_the_slots() -> None:
    shared = Coordinator()
    async with servers(shared, 1, 2, 3) as found:
        await all_read(found)
        assert list(shared.slots.members) == [1, 2, 3]
        assert set(shared.writes) == {1}
        for each in found:
            mine = sum(each.owns(TopicPartition("t", number)) for number in range(99))
            assert 31 <= mine <= 35
            assert each.cluster.leaders("t", 99) == found[0].cluster.leaders("t", 99)
        assert set(found[0].cluster.leaders("t", 99)) == {1, 2, 3}
        assert [each.decides for each in found[1].cluster.servers()] == [True, False, False]
        assert [each.own for each in found[1].cluster.servers()] == [False, True, False]


async def test_the_next_member_steps_in_for_a_decider_that_does_nothing() -> None:
    shared = Coordinator()
    async with servers(shared, 1, 2, 3) as found:
        await all_read(found)
        shared.members.pop(3)
        await all_read(found[1:2], 3)
        assert list(shared.slots.members) == [1, 2, 3], "it is not its turn yet"
        assert 31 <= found[1].cluster.leaders("t", 99).count(-1) <= 35
        shared.now += 1.0
        await all_read(found[1:2])
        assert list(shared.slots.members) == [1, 2]
        assert shared.writes[-1] == 2


async def test_a_lost_race_for_the_map_changes_nothing() -> None:
    shared = Coordinator()
    async with servers(shared, 1, 2) as (one, two):
        await all_read([one, two])
        before = shared.slots
        shared.members[9] = one.link.own._replace(node_id=9, joined=9)  # type: ignore[union-attr]
        one.link.on_read = lambda: setattr(
            shared, "slots", before._replace(version=before.version + 1)
        )
        await one.cluster.refresh()
        assert list(shared.slots.members) == [1, 2]
        one.link.on_read = lambda: None
        await one.cluster.refresh()
        assert list(shared.slots.members) == [1, 2, 9]
        await two.cluster.refresh()
        assert two.cluster.view.slots == shared.slots


async def test_a_server_alone_goes_on_without_the_coordinator() -> None:
    shared = Coordinator()
    async with servers(shared, 1) as (one,):
        assert one.owns()
        one.link.away = True
        for _ in range(3):
            shared.now += SESSION_SECONDS
            assert not await one.cluster.refresh()
        assert one.owns()
        with pytest.raises(LogError, match="not known now"):
            await one.cluster.fresh_slots()


async def test_a_server_with_others_steps_down_after_its_session() -> None:
    shared = Coordinator()
    async with servers(shared, 1, 2) as (one, two):
        await all_read([one, two])
        changes = []
        one.cluster.on_change.append(lambda: changes.append(one.cluster.adrift))
        places = [TopicPartition("t", number) for number in range(10)]
        mine = [place for place in places if one.owns(place)]
        assert len(mine) == 5
        one.link.away = True
        shared.now += SESSION_SECONDS - 1
        await one.cluster.refresh()
        assert all(map(one.owns, mine))
        shared.now += 2
        await one.cluster.refresh()
        assert not any(map(one.owns, places))
        assert changes == [True]
        one.link.away = False
        await one.cluster.refresh()
        assert [place for place in places if one.owns(place)] == mine
        assert changes == [True, False]


async def test_a_suspended_server_steps_down_before_anything_is_sent() -> None:
    shared = Coordinator()
    async with servers(shared, 1, 2) as (one, two):
        await all_read([one, two])
        dropped = []
        one.cluster.on_suspended.append(lambda: dropped.append(one.cluster.adrift))
        before = shared.now
        shared.now += STALLED_SECONDS - 0.1
        assert not one.cluster.was_suspended()
        # From now on the others may find it silent, and move its slots.
        shared.now += 0.2
        assert shared.now < before + SILENT_TICKS * TICK_SECONDS
        assert one.cluster.was_suspended()
        one.cluster.note_alive()
        assert dropped == [True]
        assert not one.cluster.was_suspended()
        await one.cluster.refresh()
        assert not one.cluster.adrift


async def test_a_suspended_server_without_others_goes_on() -> None:
    """Nothing is sent that is older than Kafka's memory of its producer may be."""
    shared = Coordinator()
    async with servers(shared, 1) as (one,):
        await all_read([one])
        shared.now += SUSPENDED_SECONDS - 0.1
        assert not one.cluster.was_suspended()
        shared.now += 0.2
        assert one.cluster.was_suspended()


async def test_a_long_recovery_is_no_suspension() -> None:
    """Once a bug: the registrar's own row was not sent, so it could never join."""
    shared = Coordinator()
    async with servers(shared, 1):
        other = server(shared, 2)
        suspended, changes = [], []
        other.link.on_join = lambda: suspended.append(other.cluster.was_suspended())
        other.cluster.on_change.append(lambda: changes.append(other.cluster.adrift))
        shared.now += SUSPENDED_SECONDS + SESSION_SECONDS
        other.link.away = True
        with pytest.raises(MembersError):
            await other.cluster.join()
        other.link.away = False
        await other.cluster.join()
        assert suspended == [False, False]
        await other.cluster.refresh()
        # Once a bug: what was taken over first was handed over at once.
        assert changes == [False]
        await other.cluster.leave()
        other.cluster.close()


async def test_a_suspension_is_noticed_until_nothing_is_sent_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once a bug: a server that was leaving took itself for suspended, and sent nothing."""
    monkeypatch.setattr(shared_cluster, "_ALIVE_SECONDS", 0.01)
    shared = Coordinator()
    async with servers(shared, 1, 2) as (one, two):
        await all_read([one, two])
        dropped = []
        one.cluster.on_suspended.append(lambda: dropped.append(one.cluster.adrift))
        await one.cluster.leave()
        for _ in range(3):
            shared.now += STALLED_SECONDS / 2
            assert not one.cluster.was_suspended()
            await asyncio.sleep(0.1)
        assert dropped == []
        shared.now += STALLED_SECONDS + 0.1
        assert one.cluster.was_suspended()
        await asyncio.sleep(0.1)
        assert dropped == [True]
        assert not one.cluster.was_suspended()


async def test_a_view_that_took_too_long_is_not_used() -> None:
    """The process was suspended between the read and its use."""
    shared = Coordinator()
    async with servers(shared, 1, 2) as (one, two):
        await all_read([one, two])
        one.link.on_read = lambda: setattr(shared, "now", shared.now + SESSION_SECONDS + 1)
        await one.cluster.refresh()
        assert one.cluster.adrift
        one.link.on_read = lambda: None
        await one.cluster.refresh()
        assert not one.cluster.adrift


async def test_a_view_from_before_a_suspension_is_not_used() -> None:
    """Others may have moved its slots while it stood still, between the read and its use."""
    shared = Coordinator()
    async with servers(shared, 1, 2) as (one, two):
        await all_read([one, two])

        def stand_still() -> None:
            shared.now += STALLED_SECONDS + 0.1
            asyncio.get_running_loop().call_soon(one.cluster.note_alive)

        one.link.on_read = stand_still
        await one.cluster.refresh()
        assert one.cluster.adrift
        one.link.on_read = lambda: None
        await one.cluster.refresh()
        assert not one.cluster.adrift


async def test_a_read_after_the_map_that_fails_is_tried_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Once it ended a start, and those that come after it were left out."""
    shared = Coordinator()
    one = server(shared, 1)
    read = []

    async def fail() -> None:
        raise LogError("the fences of names cannot be read now")

    async def note() -> None:
        read.append(1)

    one.cluster.on_read.extend([fail, note])
    await one.cluster.join()
    assert (one.owns(), read) == (True, [1])
    assert "the fences of names cannot be read now" in capsys.readouterr().out
    await one.cluster.leave()
    one.cluster.close()


async def test_a_slot_that_went_away_and_came_back_is_not_still_owned() -> None:
    shared = Coordinator()
    async with servers(shared, 1, 2) as (one, two):
        await all_read([one, two])
        place = next(place for place in (TopicPartition("t", number) for number in range(10))
                     if one.owns(place))  # fmt: skip
        epoch = one.cluster.epoch_if_owned(place)
        assert epoch is not None
        assert one.cluster.still_owns(await one.cluster.fresh_slots(), place, epoch)
        await two.cluster.drain(0)
        one_again = dict(shared.members)
        shared.members.pop(1)
        shared.members[2] = shared.members[2]._replace(draining=False)
        shared.now += 1
        await all_read([two])
        assert two.owns(place)
        shared.members.update(one_again)
        shared.members.pop(2)
        await all_read([one])
        assert one.owns(place)
        assert not one.cluster.still_owns(await one.cluster.fresh_slots(), place, epoch)
        assert shared.slots.epochs[slot_of(*place)] == epoch + 2


async def test_a_draining_server_gets_no_slots_and_is_no_broker() -> None:
    shared = Coordinator()
    async with servers(shared, 1, 2) as (one, two):
        await all_read([one, two])
        await two.cluster.drain(0)
        await all_read([one, two])
        assert shared.slots.count(1) == SLOTS
        assert [each.node_id for each in one.cluster.brokers()] == [1]
        assert [each.node_id for each in two.cluster.brokers()] == [1, 2], "itself is always there"


async def test_a_drained_server_gets_slots_again_when_it_is_undrained() -> None:
    shared = Coordinator()
    async with servers(shared, 1, 2) as (one, two):
        await all_read([one, two])
        await two.cluster.drain(0)
        await all_read([one, two])
        with pytest.raises(LastServerError):
            await one.cluster.drain(0)
        shared.members.pop(2)  # a session that ended: it joins again as it was
        two.link.join(shared.members.setdefault(2, two.link.own))  # type: ignore[arg-type]
        await all_read([one, two])
        assert shared.slots.count(1) == SLOTS
        await two.cluster.undrain()
        await all_read([one, two])
        assert shared.slots.count(1) == shared.slots.count(2) == SLOTS // 2


async def test_a_drain_that_failed_is_not_made_up_for_by_a_new_session() -> None:
    shared = Coordinator()
    async with servers(shared, 1, 2) as (one, two):
        await all_read([one, two])
        two.link.away = True
        with pytest.raises(MembersError):
            await two.cluster.drain(0)
        assert not two.cluster._own.draining
        two.link.away = False
        await two.cluster.drain(0)
        two.link.away = True
        with pytest.raises(MembersError):
            await two.cluster.undrain()
        assert two.cluster._own.draining


async def test_a_rebalance_begins_again_if_the_map_changes_meanwhile() -> None:
    shared = Coordinator()
    async with servers(shared, 1, 2) as (one, two):
        await all_read([one, two])
        topics = {str(number): 1 for number in range(200)}
        heavy = {name: 1 for name in topics if shared.slots.owners[slot_of(name, 0)] == 2}
        one.cluster.topics = lambda: heavy
        races = [1, 1]

        def change() -> None:
            if races:
                races.pop()
                shared.slots = shared.slots._replace(version=shared.slots.version + 1)

        one.link.on_read = change
        assert await one.cluster.rebalance() > 0
        owners = [shared.slots.owners[slot_of(name, 0)] for name in heavy]
        assert abs(owners.count(1) - owners.count(2)) <= 1
        one.link.on_read = lambda: setattr(
            shared, "slots", shared.slots._replace(version=shared.slots.version + 1)
        )
        uneven = {name: 1 for name in topics if shared.slots.owners[slot_of(name, 0)] == 2}
        one.cluster.topics = lambda: uneven
        with pytest.raises(MembersError, match="all the time"):
            await one.cluster.rebalance()


async def test_a_server_that_can_be_no_member_ends() -> None:
    shared = Coordinator()
    async with servers(shared, 1, 2) as (one, two):
        await all_read([one, two])
        changes = []
        one.cluster.on_change.append(lambda: changes.append(one.cluster.adrift))
        one.link.lost = "a copy of this data directory"
        await one.cluster.refresh()
        assert one.cluster.lost.is_set()
        assert one.cluster.loss == "a copy of this data directory"
        assert changes == [True]
        # Its process ends. Until then it does not come back.
        one.link.lost = ""
        await one.cluster.refresh()
        assert one.cluster.adrift


async def test_a_server_without_shared_ends_this_one() -> None:
    shared = Coordinator()
    async with servers(shared, 1) as (one,):
        shared.stranger = "alone:1"
        await one.cluster.refresh()
        assert one.cluster.lost.is_set()
        assert not one.owns()
