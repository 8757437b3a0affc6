"""Feeds of producers' states: all producers, then what has changed, and nothing unverified."""

import secrets
import time
from collections.abc import Sequence

import pytest

from pidlease.core.packed import Packed
from pidlease.core.slots import slot_of
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine import state_feeds
from pidlease.engine.partition import Partition
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.engine.state_feeds import StateFeeds, UnknownFeedError
from pidlease.kafka.records.record_batch import read_header
from pidlease.kafka.records.writer_batch import LoggedBatch
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.errors import LogError
from pidlease.storage.state_updates import FeedRequest, StateUpdates
from tests.sim.batches import TIME_MS, make_batch
from tests.sim.files import SimFiles
from tests.unit.engine.test_partition_moves import SharedServer, never

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]


@pytest.fixture(autouse=True)
def _moves_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedCluster, "_run", never)
    monkeypatch.setattr(DataDirectory, "made_by_others", True)


class Follower:
    """Pulls by hand."""

    def __init__(self, server: SharedServer) -> None:
        assert server.engine.feeds is not None
        self.feeds: StateFeeds = server.engine.feeds
        self.name = secrets.token_hex(16)
        self.number = self.noted = -1

    async def pull(
        self, *add: TopicPartition, drop: Sequence[TopicPartition] = (), lost: bool = False
    ) -> StateUpdates:
        """Send the next request, and note the answer unless it is lost."""
        self.number += 1
        request = FeedRequest(self.name, self.number, self.noted, add, drop)
        found = await self.feeds.pull(request)
        if not lost:
            self.noted = self.number
        return found


async def served() -> SharedServer:
    server = await SharedServer(SimFiles(1)).start()
    await server.owns(0)
    await server.owns(1)
    return server


def pids(found: StateUpdates) -> list[set[int]]:
    return [set(each.rows.producers) for each in found.updates]


async def test_all_producers_first_and_then_what_changes() -> None:
    server = await served()
    first, second, third = (server.lease() for _ in range(3))
    await server.fill(first, 0, 3)
    await server.fill(second, 0, 2)
    follower = Follower(server)
    (update,) = (await follower.pull(PLACES[0])).updates
    partition = server.partition()
    assert update.rows == partition.rows()
    assert (update.begins, update.ends, update.owned) == (True, True, True)
    assert (await follower.pull()).updates == []

    await server.fill(second, 2, 3)
    await server.fill(third, 0, 1)
    (update,) = (await follower.pull()).updates
    assert update.rows == partition.rows()._replace(
        producers={pid: partition.producers[pid] for pid in (second, third)}
    )
    assert (update.begins, update.ends) == (False, True)
    # Batches without a PID move the offset alone.
    await server.send(0, 0)
    (update,) = (await follower.pull()).updates
    assert (update.rows.next_offset, update.rows.producers) == (partition.next_offset, {})
    # Both partitions have followers of their own.
    assert pids(await follower.pull(PLACES[1], drop=(PLACES[0],))) == [set()]
    await server.fill(first, 3, 4)
    assert (await follower.pull()).updates == []
    assert partition.table.changed is None


async def test_the_offset_is_before_everything_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch before it may be stored and have no response yet: no state has it."""
    server = await served()
    await server.fill(server.lease(), 0, 3)
    monkeypatch.setattr(Partition, "applied_offset", property(lambda self: 1))
    follower = Follower(server)
    (update,) = (await follower.pull(PLACES[0])).updates
    assert update.rows.next_offset == follower.feeds.offsets(PLACES[:1])[0] == 1


async def test_what_is_read_from_the_log_is_a_change_too() -> None:
    """A catch-up finds batches that the former owner has stored."""
    server = await served()
    pid = server.lease()
    await server.fill(pid, 0, 1)
    follower = Follower(server)
    await follower.pull(PLACES[0])
    partition = server.partition()
    header = read_header(make_batch([b"x"], pid=pid, epoch=0, first=1))
    logged = LoggedBatch(header._replace(base_offset=partition.next_offset))
    partition.table.replay([logged], TIME_MS)
    assert pids(await follower.pull()) == [{pid}]


async def test_every_follower_gets_every_change() -> None:
    server = await served()
    pid, other = server.lease(), server.lease()
    await server.fill(pid, 0, 1)
    one, two = Follower(server), Follower(server)
    assert pids(await one.pull(PLACES[0])) == [{pid}]
    await server.fill(other, 0, 1)
    assert pids(await two.pull(PLACES[0])) == [{pid, other}]
    await server.fill(pid, 1, 2)
    assert pids(await two.pull()) == [{pid}]
    assert pids(await one.pull()) == [{pid, other}]


async def test_an_answer_that_is_lost_comes_again() -> None:
    server = await served()
    pid, other = server.lease(), server.lease()
    await server.fill(pid, 0, 1)
    follower = Follower(server)
    await follower.pull(*PLACES, lost=True)
    found = await follower.pull(*PLACES)
    assert pids(found) == [{pid}, set()]
    assert all(each.begins for each in found.updates)
    await server.fill(pid, 1, 2)
    for _ in range(2):
        assert pids(await follower.pull(lost=True)) == [{pid}]
    await server.fill(other, 0, 1)
    assert pids(await follower.pull()) == [{pid, other}]
    assert (await follower.pull()).updates == []


async def test_a_request_that_is_late_changes_nothing() -> None:
    """Its follower has given it up, and has noted the answer to a later one."""
    server = await served()
    pid, other, third = server.lease(), server.lease(), server.lease()
    await server.fill(pid, 0, 1)
    follower = Follower(server)
    late = FeedRequest(follower.name, 0, -1, PLACES)
    follower.number = 0
    assert pids(await follower.pull(*PLACES)) == [{pid}, set()]
    await server.fill(other, 0, 1)
    with pytest.raises(UnknownFeedError, match="is at request 1 already"):
        await follower.feeds.pull(late)
    await server.fill(third, 0, 1)
    assert pids(await follower.pull()) == [{other, third}]


async def test_many_producers_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what changes meanwhile comes before the last part."""
    monkeypatch.setattr(state_feeds, "ROWS_MAX", 2)
    server = await served()
    leased = [server.lease() for _ in range(5)]
    for pid in leased:
        await server.fill(pid, 0, 1)
    follower = Follower(server)
    got: dict[int, Packed] = {}
    found = await follower.pull(*PLACES)
    (update,) = found.updates
    assert (update.begins, update.ends, found.more) == (True, False, True)
    got |= update.rows.producers
    sent = next(iter(update.rows.producers))
    await server.fill(sent, 1, 2)  # it was sent already
    ends: list[bool] = []
    while found.more:
        found = await follower.pull()
        for update in found.updates:
            if update.rows.partition == PLACES[0]:
                assert not update.begins
                assert not any(ends)
                ends.append(update.ends)
                got |= update.rows.producers
    assert ends[-1]
    assert got == server.partition().producers
    # The part that is lost is sent again, the first one as the first.
    other = Follower(server)
    one = await other.pull(PLACES[0], lost=True)
    again = await other.pull(PLACES[0])
    assert one.updates[0].begins
    assert again.updates[0].begins


async def test_a_feed_that_is_not_there_is_refused() -> None:
    server = await served()
    follower = Follower(server)
    await follower.pull(*PLACES)
    await follower.feeds.pull(FeedRequest(follower.name, 1, 0, ends=True))
    assert len(follower.feeds) == 0
    assert server.partition().table.changed is None
    with pytest.raises(UnknownFeedError, match="begin a new one"):
        await follower.pull()


async def test_nothing_is_sent_of_a_partition_that_another_server_may_own() -> None:
    server = await served()
    pid = server.lease()
    await server.fill(pid, 0, 2)
    follower = Follower(server)
    # The map moves on, and this server has not seen it yet.
    slot, slots = slot_of("t", 0), server.shared.slots
    owners = tuple(2 if at == slot else each for at, each in enumerate(slots.owners))
    server.shared.slots = slots._replace(owners=owners)
    assert [each.rows.partition for each in (await follower.pull(*PLACES)).updates] == PLACES[1:]
    server.link.away = True
    await server.fill(pid, 2, 3)
    with pytest.raises(LogError, match="not known now"):
        await follower.pull(lost=True)
    server.link.away = False
    server.shared.slots = slots
    # All of it: nothing has arrived.
    (update,) = (await follower.pull()).updates
    assert (update.begins, set(update.rows.producers)) == (True, {pid})


async def test_a_partition_that_comes_back_is_sent_anew() -> None:
    server = await served()
    pid = server.lease()
    await server.fill(pid, 0, 2)
    follower = Follower(server)
    await follower.pull(PLACES[0])
    await server.gives()
    assert (await follower.pull()).updates == []
    await server.owns()
    (update,) = (await follower.pull()).updates
    assert (update.begins, set(update.rows.producers)) == (True, {pid})


async def test_what_a_snapshot_has_of_another_servers_partition_is_sent_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_feeds, "ROWS_MAX", 1)
    server = await served()
    pid, other = server.lease(), server.lease()
    await server.fill(pid, 0, 1)
    await server.fill(other, 0, 1)
    await server.snapshot()
    await server.fill(pid, 1, 4)
    await server.gives()
    follower = Follower(server)
    assert follower.feeds.offsets([*PLACES, TopicPartition("none", 0)]) == [2, 0, -1]
    (update,) = (await follower.pull(PLACES[0])).updates
    assert (update.ends, update.owned) == (False, False)
    # What it learns of the partition later is not sent: the follower asks the owner.
    held = server.engine._table.held
    known = held.unloaded(PLACES[0])
    assert known is not None
    assert await held.merge(update.rows._replace(next_offset=9), known) is known
    (last,) = (await follower.pull()).updates
    assert (last.rows.next_offset, last.ends) == (2, True)
    assert {*update.rows.producers, *last.rows.producers} == {pid, other}
    assert (await follower.pull()).updates == []


async def test_a_feed_without_requests_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await served()
    follower = Follower(server)
    await follower.pull(*PLACES)
    await follower.feeds.expire()
    assert len(follower.feeds) == 1
    assert server.partition().table.changed is not None
    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 31)
    await follower.feeds.expire()
    assert len(follower.feeds) == 0
    assert server.partition().table.changed is None
    with pytest.raises(UnknownFeedError):
        await follower.pull()
