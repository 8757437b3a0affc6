"""A partition's in-flight batches, and the order in which they complete.

Batches are sent in sequence order, each time: after an error, all batches that follow the failed
one are sent again after it. Their futures complete in that order too, as KafkaProducer's callbacks
do: an application may take the last completed record for the end of the stored ones.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from pidlease.client.pending_batch import PendingBatch


class InFlightBatches:
    """Batches of one partition that were sent and have no final outcome.

    Attributes:
        open: sent, without a response.
        failed: to be sent again once all open batches have a response.
        again: to be sent again now, before any new batch.
    """

    __slots__ = ("again", "failed", "open")

    def __init__(self) -> None:
        self.open: deque[PendingBatch] = deque()
        self.failed: list[PendingBatch] = []
        self.again: deque[PendingBatch] = deque()

    def begin(self, batch: PendingBatch) -> None:
        """Add a batch that is being sent."""
        batch.sends += 1
        self.open.append(batch)

    def resolve(self, batch: PendingBatch) -> bool:
        """Remove a batch that has its final outcome.

        Returns:
            Whether the failed batches may be sent again now.
        """
        self.open.remove(batch)
        return self._all_answered()

    def fail(self, batch: PendingBatch) -> bool:
        """Note that a batch is to be sent again; return the same as `resolve`."""
        self.open.remove(batch)
        self.failed.append(batch)
        return self._all_answered()

    def _all_answered(self) -> bool:
        if not self.failed or self.open:
            return False
        # Failed batches precede those that were not sent again yet.
        self.failed.sort(key=_last_sequence)
        self.again.extendleft(reversed(self.failed))
        self.failed.clear()
        return True

    @property
    def first(self) -> int | None:
        """The lowest last_sequence of the batches; None: there are none."""
        if not self.failed and not self.again:
            return self.open[0].sealed.last if self.open else None
        return min(map(_last_sequence, chain(self.open, self.failed, self.again)))

    def all(self) -> list[PendingBatch]:
        """Return all batches in sequence order."""
        return sorted(chain(self.open, self.failed, self.again), key=_last_sequence)

    def clear(self) -> list[PendingBatch]:
        """Remove and return all batches, in sequence order."""
        found = self.all()
        self.open.clear()
        self.failed.clear()
        self.again.clear()
        return found


def _last_sequence(batch: PendingBatch) -> int:
    return batch.sealed.last


class CompletionOrder:
    """Completes the futures of one partition in sequence order.

    A stored batch waits here while a preceding batch has no final outcome.
    """

    __slots__ = ("_stored",)

    def __init__(self) -> None:
        self._stored: list[_StoredBatch] = []

    def stored(
        self, last_sequence: int, complete: Callable[[], None], unresolved: int | None
    ) -> None:
        """Complete a stored batch, and those that waited for it, or keep it until its turn.

        Parameters:
            complete: completes the futures of its records.
            unresolved: the lowest last_sequence without a final outcome; None: there is none.
        """
        if not self._stored and (unresolved is None or last_sequence < unresolved):
            complete()
            return
        insort(self._stored, _StoredBatch(last_sequence, complete), key=_stored_sequence)
        self.complete(unresolved)

    def complete(self, unresolved: int | None) -> None:
        """Complete all stored batches that precede an unresolved one; None: all."""
        while self._stored and (unresolved is None or self._stored[0].last_sequence < unresolved):
            self._stored.pop(0).complete()


class _StoredBatch(NamedTuple):
    last_sequence: int
    complete: Callable[[], None]


def _stored_sequence(batch: _StoredBatch) -> int:
    return batch.last_sequence
