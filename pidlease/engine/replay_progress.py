"""The progress of the replay at a start, while threads work on it."""

from pidlease.engine.partition import Partition


class ReplayProgress:
    """Counts partitions, and the offsets that are left."""

    def __init__(self) -> None:
        #: The number of replayed partitions, and of all.
        self.done = 0
        self.total = 0
        self._running: set[Partition] = set()

    def begin(self, partition: Partition) -> None:
        """Note that the replay of a partition begins."""
        self._running.add(partition)

    def end(self, partition: Partition) -> None:
        """Note that the replay of a partition is done."""
        self._running.discard(partition)
        self.done += 1

    @property
    def offsets_left(self) -> int:
        """How many offsets are still to be read: one partition can hold nearly all of them."""
        return sum(each.offsets_to_apply for each in self._running)
