"""Unloaded partitions: a snapshot has them, but their logs cannot be read yet, or are not seen."""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

from pidlease.core.packed import Packed
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
        self.snapshotted: Final = rows
        #: The producers with leases that have not ended.
        self.producers: dict[int, Packed] = dict(rows.producers)

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

    def of(self, partition: Partition) -> PartitionRows | None:
        """Return the rows to load a partition with; None: replay its whole log."""
        unloaded = self._unloaded.get(partition.name)
        if unloaded is None or partition.log.end_offset < unloaded.snapshotted.next_offset:
            return None
        return unloaded.rows()

    def rows(self, loaded: Container[TopicPartition]) -> list[PartitionRows]:
        """Return the rows for the next snapshot.

        Parameters:
            loaded: partitions with rows of their own, which are newer.
        """
        return [each.rows() for name, each in self._unloaded.items() if name not in loaded]

    async def put(self, unloaded: UnloadedPartition) -> None:
        """Add a partition that this server no longer serves."""
        await self.forget(unloaded.snapshotted.partition)
        self._unloaded[unloaded.snapshotted.partition] = unloaded
        pids = list(unloaded.producers)
        for start in range(0, len(pids), _AT_ONCE):
            self._leases.restore(pids[start : start + _AT_ONCE], unloaded)
            await asyncio.sleep(0)

    async def forget(self, name: TopicPartition) -> None:
        """Remove a partition that was loaded, or is gone."""
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
