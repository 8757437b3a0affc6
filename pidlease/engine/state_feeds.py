"""Feeds of producers' states: what has changed in partitions since a follower asked last.

A follower takes over a partition from these states and the log after their offset, as from a
snapshot. So a feed has acknowledged states only, an offset before everything in flight, and only
partitions that this server has owned from its takeover to a read of the map after that.

A request names the last one with an answer that was noted. If that is not the last one here, an
answer was lost, and comes again with what has changed since. A request with an old number was late
on the network, and changes nothing: its follower has given it up.
"""

import asyncio
import time
from collections.abc import Iterable
from itertools import islice
from typing import Final

from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.partition import Partition
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.engine.topics.topic_table import TopicTable
from pidlease.engine.unloaded_partitions import UnloadedPartition
from pidlease.storage.snapshot_rows import PartitionRows
from pidlease.storage.state_updates import FeedRequest, StateUpdate, StateUpdates

#: Producers in one answer.
ROWS_MAX: Final = 20_000
#: Feeds at once: one for each follower, and one for each takeover that asks.
_FEEDS_MAX: Final = 1_000
#: How long a feed is kept without a request.
_IDLE_SECONDS: Final = 30.0
#: Partitions of a feed.
_PARTITIONS_MAX: Final = 100_000
#: Catch-ups that one request may start.
_READS_AT_ONCE: Final = 50
#: Partitions looked at before other tasks run.
_AT_ONCE: Final = 500


class UnknownFeedError(Exception):
    """This server does not have the feed, or the request is late: begin a new feed."""


class _Fed:
    """A partition in a feed."""

    def __init__(self) -> None:
        self.source: Partition | UnloadedPartition | None = None
        #: The producers to send: at first all of them, and those that have changed.
        self.first: list[int] = []
        self.changed: set[int] = set()
        #: Those in the last answer, until the next request shows that it arrived; None: it has no
        #: update of the partition.
        self.sent: set[int] | None = None
        #: Whether the last answer has the first part.
        self.sent_first = False
        #: Whether the first part was sent.
        self.begun = False
        #: The offset of the last complete answer; of an unloaded partition when it was begun.
        self.offset = -1

    @property
    def waits(self) -> bool:
        """Whether there are producers to send."""
        return bool(self.first or self.changed)

    def begin(self, source: Partition | UnloadedPartition) -> None:
        """Send all producers of a partition, and then what changes."""
        self.source, self.begun = source, False
        self.first, self.changed = list(source.producers), set()
        self.offset = -1
        if isinstance(source, UnloadedPartition):
            self.offset = source.snapshotted.next_offset
        elif source.table.changed is None:
            source.table.changed = set()

    def take(self, room: int) -> set[int]:
        """Take producers to send; they count as sent."""
        some = set(self.first[-room:])
        del self.first[-room:]
        if not self.first:
            more = self.changed
            if len(more) + len(some) > room:
                more = set(islice(more, room - len(some)))
                self.changed -= more
            else:
                self.changed = set()
            some |= more
        self.sent, self.sent_first, self.begun = some, not self.begun, True
        return some

    def confirm(self) -> None:
        """Note that the last answer arrived."""
        self.sent, self.sent_first = None, False

    def repeat(self) -> None:
        """Note that the last answer was lost."""
        if self.sent is None:
            return
        self.changed |= self.sent
        self.begun = self.begun and not self.sent_first
        if isinstance(self.source, Partition):
            self.offset = -1
        self.confirm()


class _Feed:
    """What one follower follows."""

    def __init__(self) -> None:
        self.number = -1
        self.asked_at = time.monotonic()
        self.partitions: dict[TopicPartition, _Fed] = {}
        #: One request after another: a follower repeats one that may still be answered.
        self.lock: Final = asyncio.Lock()


class StateFeeds:
    """The feeds of this server.

    Parameters:
        cluster: which partitions this server owns.
        table: the partitions.
    """

    def __init__(self, cluster: SharedCluster, table: TopicTable) -> None:
        self._cluster: Final = cluster
        self._table: Final = table
        self._feeds: Final[dict[str, _Feed]] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def offsets(self, names: Iterable[TopicPartition]) -> list[int]:
        """Return up to which offset this server knows the producers of partitions; -1: it does not.

        An offset of its own partitions is not verified: another server may own them by now.
        """
        return [_offset(self._source(name)) for name in names]

    async def pull(self, request: FeedRequest) -> StateUpdates:
        """Answer a request of a follower.

        Raises:
            UnknownFeedError: there is no such feed, or the request is late.
            LogError: the map cannot be read now.
        """
        feed = self._feeds.get(request.feed)
        if request.ends:
            self._end(request.feed)
            return StateUpdates([], more=False)
        if feed is None:
            if request.noted >= 0 or len(self._feeds) >= _FEEDS_MAX:
                raise UnknownFeedError(f"there is no feed {request.feed}; begin a new one")
            feed = self._feeds[request.feed] = _Feed()
        feed.asked_at = time.monotonic()
        async with feed.lock:
            await self._accept(feed, request)
            updates, more = await self._collect(feed)
            return StateUpdates(await self._verified(feed, updates), more)

    async def _accept(self, feed: _Feed, request: FeedRequest) -> None:
        """Note what a request says about the last answer, and which partitions it is about.

        Raises:
            UnknownFeedError: it is late, or there would be too many partitions.
        """
        if request.number <= feed.number:
            raise UnknownFeedError(f"the feed is at request {feed.number} already")
        if len(feed.partitions) + len(request.add) > _PARTITIONS_MAX:
            raise UnknownFeedError(f"a feed has {_PARTITIONS_MAX} partitions at most")
        arrived = request.noted == feed.number
        feed.number = request.number
        for count, each in enumerate(feed.partitions.values()):
            each.confirm() if arrived else each.repeat()
            if count % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        for name in request.drop:
            self._leave(feed.partitions.pop(name, None))
        for name in request.add:
            feed.partitions.setdefault(name, _Fed())

    async def _collect(self, feed: _Feed) -> tuple[list[StateUpdate], bool]:
        """Return what has changed, up to a bound, and whether there is more."""
        updates: list[StateUpdate] = []
        room, more, reads = ROWS_MAX, False, _READS_AT_ONCE
        for count, (name, fed) in enumerate(list(feed.partitions.items())):
            if room <= 0:
                more = True  # perhaps
                break
            source = self._source(name)
            if reads and isinstance(source, Partition) and source.is_far_back:
                reads -= source.settle()  # so that the offset moves on soon after a takeover, too
            update = self._update(name, fed, source, room)
            if update is not None:
                updates.append(update)
                room -= max(len(update.rows.producers), 1)
                more = more or not update.ends
                # At the end, so that one that always changes does not keep out the others.
                feed.partitions[name] = feed.partitions.pop(name)
            if count % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        return updates, more

    def _update(
        self,
        name: TopicPartition,
        fed: _Fed,
        source: Partition | UnloadedPartition | None,
        room: int,
    ) -> StateUpdate | None:
        if source is None:
            self._leave(fed)
            return None
        owned = isinstance(source, Partition)
        if isinstance(source, Partition):
            self._distribute(name, source)
        if source is not fed.source:
            self._leave(fed)
            fed.begin(source)
        offset = _offset(source) if owned else fed.offset
        if fed.begun and not fed.waits and (not owned or offset == fed.offset):
            return None
        begins = not fed.begun
        some = fed.take(room)
        ends = not fed.waits
        if ends:
            fed.offset = offset
        states = source.producers
        rows = {pid: states[pid] for pid in some if pid in states}
        return StateUpdate(_rows(name, source, offset, rows), begins, ends, owned)

    def _distribute(self, name: TopicPartition, partition: Partition) -> None:
        """Note what has changed in a partition for all its followers."""
        changed = partition.table.changed
        if not changed:
            return
        partition.table.changed = set()
        for feed in self._feeds.values():
            fed = feed.partitions.get(name)
            if fed is not None and fed.source is partition:
                fed.changed |= changed

    def _source(self, name: TopicPartition) -> Partition | UnloadedPartition | None:
        """Return a partition of this server, or its states from a snapshot or another server."""
        found = self._table.partitions.get(name.topic, [])
        partition = found[name.partition] if name.partition < len(found) else None
        if partition is not None and not partition.elsewhere:
            return None if partition.log.stopped else partition
        unloaded = self._table.held.unloaded(name)
        return None if unloaded is None or unloaded.snapshotted.next_offset < 0 else unloaded

    async def _verified(self, feed: _Feed, updates: list[StateUpdate]) -> list[StateUpdate]:
        """Return the updates of partitions that this server still owns, or never did."""
        if not any(isinstance(self._fed(feed, each).source, Partition) for each in updates):
            return updates
        slots = await self._cluster.fresh_slots()
        found = []
        for each in updates:
            fed, name = self._fed(feed, each), each.rows.partition
            source = fed.source
            if not isinstance(source, Partition) or (
                not source.elsewhere and self._cluster.still_owns(slots, name, source.epoch)
            ):
                found.append(each)
            else:
                self._leave(fed)
        return found

    @staticmethod
    def _fed(feed: _Feed, update: StateUpdate) -> _Fed:
        return feed.partitions[update.rows.partition]

    def _leave(self, fed: _Fed | None) -> None:
        """Send no more of a partition, and note its changes no more if nothing follows it."""
        if fed is None:
            return
        source, fed.source = fed.source, None
        if isinstance(source, Partition) and not self._is_followed(source):
            source.table.changed = None

    def _is_followed(self, partition: Partition) -> bool:
        found = (feed.partitions.get(partition.name) for feed in self._feeds.values())
        return any(fed is not None and fed.source is partition for fed in found)

    async def expire(self) -> None:
        """Remove feeds without requests."""
        now = time.monotonic()
        for name, feed in list(self._feeds.items()):
            if now - feed.asked_at > _IDLE_SECONDS and not feed.lock.locked():
                self._end(name)
                await asyncio.sleep(0)

    def _end(self, name: str) -> None:
        feed = self._feeds.pop(name, None)
        if feed is not None:
            for fed in feed.partitions.values():
                self._leave(fed)


def _offset(source: Partition | UnloadedPartition | None) -> int:
    if source is None:
        return -1
    if isinstance(source, Partition):
        return source.applied_offset
    return source.snapshotted.next_offset


def _rows(
    name: TopicPartition, source: Partition | UnloadedPartition, offset: int, rows: dict[int, bytes]
) -> PartitionRows:
    known = source.position if isinstance(source, Partition) else source.snapshotted.entry
    return known._replace(next_offset=offset).rows(name, rows)
