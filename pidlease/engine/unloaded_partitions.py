"""Unloaded partitions: in a snapshot, but their logs cannot be read yet, or are not seen."""

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

from pidlease.core.packed import Packed
from pidlease.engine.leases.leases import Leases
from pidlease.engine.partition import Partition
from pidlease.storage.snapshots import PartitionRows, TopicPartition
from pidlease.storage.topics.topic_store import Topic

#: A topic that was not seen for so long will not come again.
UNSEEN_MS_MAX: Final = 3_600_000


class UnloadedPartition:
    """One of them. Its producers have leases, which end as others do (`LeasedPartition`).

    Parameters:
        rows: what the snapshot has.
    """

    def __init__(self, rows: PartitionRows) -> None:
        self.snapshotted: Final = rows
        #: The producers with leases that have not ended.
        self.producers: dict[int, Packed] = dict(rows.producers)

    def is_in_flight(self, pid: int) -> bool:  # noqa: ARG002 - nothing is
        """Return False: no batch is in flight."""
        return False

    def forget(self, pid: int) -> None:
        """Forget a producer after its lease has ended."""
        self.producers.pop(pid, None)

    def rows(self) -> PartitionRows:
        """What the next snapshot is to have, and what the partition begins with."""
        return self.snapshotted._replace(producers=dict(self.producers))


class UnloadedPartitions:
    """All of them.

    Parameters:
        leases: forgets the producers of partitions that are not held any more.
        clock_ms: the time, in ms since 1970.
    """

    def __init__(self, leases: Leases, clock_ms: Callable[[], int]) -> None:
        self._leases: Final = leases
        self._clock_ms: Final = clock_ms
        self._held: dict[TopicPartition, UnloadedPartition] = {}
        #: Topics that are not seen, and since when.
        self._unseen_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def begin_with(self, held: Iterable[UnloadedPartition]) -> None:
        """Take what a start has found; the leases know of it."""
        self._held = {each.snapshotted.partition: each for each in held}

    def of(self, partition: Partition) -> PartitionRows | None:
        """What a partition begins with, by the rules of a start; None: the log's beginning."""
        held = self._held.get(partition.name)
        if held is None or partition.log.end_offset < held.snapshotted.next_offset:
            return None
        return held.rows()

    def rows(self, read: Container[TopicPartition]) -> list[PartitionRows]:
        """What a snapshot is to have besides.

        Parameters:
            read: partitions that the snapshot has themselves: what of them is held is not newer.
        """
        return [held.rows() for place, held in self._held.items() if place not in read]

    async def let_go(self, place: TopicPartition) -> None:
        """It has been read, and the leases know that."""
        held = self._held.pop(place, None)
        if held is not None:
            await self._leases.leave(held)

    async def let_go_topic(self, name: str) -> None:
        """It is gone."""
        for place in [place for place in self._held if place.topic == name]:
            await self.let_go(place)

    async def let_go_others(self, topics: Mapping[str, Topic]) -> None:
        """Forget partitions of topics that were replaced, or not seen for an hour.

        Parameters:
            topics: all there are, by name.
        """
        now_ms = self._clock_ms()
        names = {place.topic for place in self._held}
        self._unseen_ms = {
            name: self._unseen_ms.get(name, now_ms) for name in names if name not in topics
        }
        for place, held in list(self._held.items()):
            seen = topics.get(place.topic)
            if seen is None:
                other = now_ms - self._unseen_ms[place.topic] >= UNSEEN_MS_MAX
            else:
                other = seen.topic_id != held.snapshotted.topic_id
            if other:
                await self.let_go(place)
