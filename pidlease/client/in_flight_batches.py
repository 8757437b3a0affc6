"""Batches that were sent and are not resolved, and the order in which they are sent again.

The order in which batches were numbered is the order in which they are sent, each time: after an
error, whatever was sent behind it comes again behind it.
"""

from collections import deque
from itertools import chain

from pidlease.client.record_accumulator import Batch


class Flight:
    """One partition's.

    Attributes:
        open: sent, not answered.
        failed: to be sent again, when those of the same time that are still open have an answer.
        again: to be sent again, before anything new.
    """

    __slots__ = ("again", "failed", "open")

    def __init__(self) -> None:
        self.open: deque[Batch] = deque()
        self.failed: list[Batch] = []
        self.again: deque[Batch] = deque()

    def begin(self, batch: Batch) -> None:
        """A batch is being sent."""
        batch.sends += 1
        self.open.append(batch)

    def resolve(self, batch: Batch) -> bool:
        """A batch has its answer for good.

        Returns:
            Whether those that failed before may be sent again now.
        """
        self.open.remove(batch)
        return self._turned_back()

    def fail(self, batch: Batch) -> bool:
        """A batch is to be sent again. Returns: see `resolve`."""
        self.open.remove(batch)
        self.failed.append(batch)
        return self._turned_back()

    def _turned_back(self) -> bool:
        if not self.failed or self.open:
            return False
        # Those that failed go before those that were not sent again yet.
        self.failed.sort(key=_by_number)
        self.again.extendleft(reversed(self.failed))
        self.failed.clear()
        return True

    @property
    def first(self) -> int | None:
        """The lowest number of those that have no answer for good; None: there are none."""
        if not self.failed and not self.again:
            return self.open[0].sealed.last if self.open else None
        return min(map(_by_number, chain(self.open, self.failed, self.again)))

    def all(self) -> list[Batch]:
        """All, in their order."""
        return sorted(chain(self.open, self.failed, self.again), key=_by_number)

    def clear(self) -> list[Batch]:
        """Take all out, in their order."""
        found = self.all()
        self.open.clear()
        self.failed.clear()
        self.again.clear()
        return found


def _by_number(batch: Batch) -> int:
    return batch.sealed.last
