"""How far the replay of a start is: asked while threads work on it."""

from typing import Protocol


class Replayed(Protocol):
    """What is asked of a partition."""

    @property
    def behind(self) -> int:
        """How many offsets of its log are not applied yet."""


class ReplayProgress:
    """See the module's text."""

    def __init__(self) -> None:
        #: Partitions that are done, and all of them.
        self.done = 0
        self.total = 0
        self._under_way: set[Replayed] = set()

    def begin(self, partition: Replayed) -> None:
        """A partition is replayed, from what it has been restored to."""
        self._under_way.add(partition)

    def end(self, partition: Replayed) -> None:
        """It is done."""
        self._under_way.discard(partition)
        self.done += 1

    @property
    def offsets_left(self) -> int:
        """How many offsets are still to be read: one partition can hold nearly all of them."""
        return sum(each.behind for each in self._under_way)
