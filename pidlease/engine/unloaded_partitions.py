"""Unloaded partitions: their producers are known from a snapshot, or from another server.

Their logs cannot be read yet, are not seen, or are read by another active server.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import islice
from typing import Final

from pidlease.core.packed import Packed, offset_of
from pidlease.core.rules import rules_of
from pidlease.engine.leases.lease_table import LeasedPartition
from pidlease.engine.leases.leases import Leases
from pidlease.engine.partition import Partition
from pidlease.storage.snapshots import PartitionRows, TopicPartition
from pidlease.storage.topics.topic_store import Topic

#: Leases noted before other tasks run.
_AT_ONCE: Final = 500
#: How long an unseen topic's state is kept.
UNSEEN_MS_MAX: Final = 3_600_000


class UnloadedPartition:
    """An unloaded partition. Its producers' leases end like others (`LeasedPartition`)."""

    def __init__(self, rows: PartitionRows) -> None:
        #: The producers with leases that have not ended.
        self.producers: dict[int, Packed] = dict(rows.producers)
        #: The other fields of the rows; offset -1: the producers are not complete yet.
        self.snapshotted = rows._replace(producers={})

    def is_newer_log(self, rows: PartitionRows) -> bool:
        """Return whether rows are older than its leader epoch: Kafka may have cut the log since."""
        known = self.snapshotted
        return rows.topic_id == known.topic_id and rows.leader_epoch < known.leader_epoch

    def is_same_log(self, rows: PartitionRows, *, begun: bool) -> bool:
        """Return whether rows and its producers are of the same log.

        Parameters:
            begun: whether the rows follow others that are here; then the owner's log was not cut.
        """
        known = self.snapshotted
        same = begun or rows.leader_epoch == known.leader_epoch
        return same and rows.topic_id == known.topic_id

    def is_in_flight(self, pid: int) -> bool:  # noqa: ARG002 - an unloaded partition has no appends
        """Return False: no batch is in flight."""
        return False

    def forget(self, pid: int) -> None:
        """Forget a producer when its lease has ended."""
        self.producers.pop(pid, None)

    def rows(self) -> PartitionRows:
        """Return the rows for the next snapshot, or to load the partition."""
        return self.snapshotted._replace(producers=dict(self.producers))


class UnloadedPartitions:
    """All unloaded partitions.

    Parameters:
        leases: forgets the producers of partitions that are removed here.
        clock_ms: the time, in ms since 1970.
    """

    def __init__(self, leases: Leases, clock_ms: Callable[[], int]) -> None:
        self._leases: Final = leases
        self._clock_ms: Final = clock_ms
        self._unloaded: dict[TopicPartition, UnloadedPartition] = {}
        #: Since when a topic is not seen, by name.
        self._unseen_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._unloaded)

    def begin_with(self, unloaded: Iterable[UnloadedPartition]) -> None:
        """Begin with a recovery's unloaded partitions; the leases have them already."""
        self._unloaded = {each.snapshotted.partition: each for each in unloaded}

    def unloaded(self, name: TopicPartition) -> UnloadedPartition | None:
        """Return a partition; None: it is not there."""
        return self._unloaded.get(name)

    def without(self, loaded: Container[TopicPartition]) -> list[UnloadedPartition]:
        """Return the partitions, for the next snapshot.

        Parameters:
            loaded: partitions with rows of their own, which are newer.
        """
        return [each for name, each in self._unloaded.items() if name not in loaded]

    def rows_of(self, name: TopicPartition) -> PartitionRows | None:
        """Return the rows of a partition; None: it was loaded, or has not all rows."""
        unloaded = self._unloaded.get(name)
        return None if unloaded is None or unloaded.snapshotted.next_offset < 0 else unloaded.rows()

    async def put(self, rows: PartitionRows) -> None:
        """Add a partition that this server does not serve any more, unless more is known of it."""
        unloaded = self._unloaded.get(rows.partition)
        known = None if unloaded is None else unloaded.snapshotted
        if known is None or known.topic_id != rows.topic_id or _is_newer(rows, known):
            await self.merge(rows, None)

    async def merge(
        self, rows: PartitionRows, onto: UnloadedPartition | None
    ) -> UnloadedPartition | None:
        """Add what a snapshot has, or another server knows, of a partition's producers.

        Of all producers, only what comes from the owner replaces newer states (`replace`).

        Parameters:
            rows: all producers, or those that have changed since the former call.
            onto: what the former call returned; None: these are all producers.

        Returns:
            What the next call goes on from; None: the rows do not follow what is here.
        """
        name = rows.partition
        known = self._unloaded.get(name)
        if onto is not None and known is not onto:
            return None
        if known is not None and known.is_newer_log(rows):
            return known
        if known is None or not known.is_same_log(rows, begun=onto is not None):
            known = await self._begin(rows)
        end_offset = max(rows.entry.needed_end, known.snapshotted.end_offset)
        known.snapshotted = known.snapshotted._replace(end_offset=end_offset)
        changed = iter(rows.producers.items())
        while some := list(islice(changed, _AT_ONCE)):
            # A stand-in PID may have been dropped since it was read; then the name gets another.
            if self._unloaded.get(name) is not known or not all(
                self._leases.has_name(pid) for pid, _ in some
            ):
                return None
            self._leases.restore([pid for pid, _ in some if pid not in known.producers], known)
            for pid, state in some:
                before = known.producers.get(pid)
                if before is None or _is_older(pid, before, state):
                    known.producers[pid] = state
            await asyncio.sleep(0)
        if self._unloaded.get(name) is not known:
            return None
        if rows.next_offset >= known.snapshotted.next_offset:
            # Last: until all rows are there, the log is read from the former offset on.
            known.snapshotted = rows._replace(producers={}, end_offset=end_offset)
        return known

    async def _begin(self, rows: PartitionRows) -> UnloadedPartition:
        """Return a partition without producers, in the place of what is here of it."""
        former = self._unloaded.get(rows.partition)
        known = UnloadedPartition(rows._replace(next_offset=-1, producers={}))
        self._unloaded[rows.partition] = known
        if former is not None:
            await self._leases.leave(former)
        return known

    async def replace(self, rows: PartitionRows) -> UnloadedPartition | None:
        """Replace what is here of a partition by all that its owner knows.

        Nothing newer stays: if Kafka has lost the end of the log, and the owner has read it again,
        the former states count batches that were lost as appended.

        Returns:
            What the next call of `merge` goes on from; None: the rows do not fit any more.
        """
        name = rows.partition
        former, new = self._unloaded.get(name), UnloadedPartition(rows._replace(producers={}))
        gone: UnloadedPartition | None = new
        try:
            coming = iter(rows.producers.items())
            while some := list(islice(coming, _AT_ONCE)):
                if not all(self._leases.has_name(pid) for pid, _ in some):
                    return None
                self._leases.restore([pid for pid, _ in some], new)
                new.producers.update(some)
                await asyncio.sleep(0)
            if self._unloaded.get(name) is not former:
                return None
            # Last: until all rows are there, a takeover begins with the former ones.
            self._unloaded[name], gone = new, former
            return new
        finally:
            if gone is not None:
                await self._leases.leave(gone)

    def replace_by(self, partition: Partition) -> LeasedPartition | None:
        """Remove a partition that was loaded, and pass its leases on.

        Returns:
            What has leases left, for `Leases.leave`; None: nothing.
        """
        unloaded = self._unloaded.pop(partition.name, None)
        partition.note_leases(unloaded)
        if unloaded is None:
            return None
        loaded = partition.producers
        unloaded.producers = {
            pid: state for pid, state in unloaded.producers.items() if pid not in loaded
        }
        return unloaded if unloaded.producers else None

    async def forget(self, name: TopicPartition) -> None:
        """Remove a partition that is gone."""
        unloaded = self._unloaded.pop(name, None)
        if unloaded is not None:
            await self._leases.leave(unloaded)

    async def forget_topic(self, topic: str) -> None:
        """Remove all partitions of a topic that is gone."""
        for name in [name for name in self._unloaded if name.topic == topic]:
            await self.forget(name)

    async def forget_others(self, topics: Mapping[str, Topic]) -> None:
        """Remove partitions of topics that were replaced, or not seen for an hour.

        Parameters:
            topics: all existing topics, by name.
        """
        now_ms = self._clock_ms()
        unseen = {name.topic for name in self._unloaded if name.topic not in topics}
        self._unseen_ms = {topic: self._unseen_ms.get(topic, now_ms) for topic in unseen}
        for name, unloaded in list(self._unloaded.items()):
            topic = topics.get(name.topic)
            if topic is None:
                other = now_ms - self._unseen_ms[name.topic] >= UNSEEN_MS_MAX
            else:
                other = topic.topic_id != unloaded.snapshotted.topic_id
            if other:
                await self.forget(name)


def _is_newer(rows: PartitionRows, known: PartitionRows) -> bool:
    """Return whether rows say more of a log than others: if Kafka cuts it, its epoch rises."""
    return (rows.leader_epoch, rows.next_offset) > (known.leader_epoch, known.next_offset)


def _is_older(pid: int, state: Packed, other: Packed | None) -> bool:
    """Return whether the last batch of a producer's state is before that of another one."""
    rules = rules_of(pid)
    if rules is None or other is None:
        return False
    return offset_of(rules, state) < offset_of(rules, other)
