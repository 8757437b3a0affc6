"""The progress of the replay at a start; threads run the replay."""

import threading

from pidlease.engine.partition import Partition


class ReplayProgress:
    """Counts partitions, and the offsets that are left."""

    def __init__(self) -> None:
        #: Partitions that were replayed, and all partitions.
        self.done = 0
        self.total = 0
        #: The offsets that they have together.
        self.offsets = 0
        self._running: set[Partition] = set()
        self._lock = threading.Lock()

    def begin(self, partition: Partition) -> None:
        """Note that the replay of a partition begins."""
        self.offsets += partition.offsets_to_apply
        self._running.add(partition)

    def end(self, partition: Partition) -> None:
        """Note that the replay of a partition is done; may run in any thread."""
        with self._lock:
            self._running.discard(partition)
            self.done += 1

    @property
    def offsets_left(self) -> int:
        """The offsets not read yet in the running partitions; one may have nearly all of them."""
        with self._lock:
            running = list(self._running)
        return sum(each.offsets_to_apply for each in running)
