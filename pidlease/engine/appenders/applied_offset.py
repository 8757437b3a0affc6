"""Tracks the applied offset of a log that other servers write to as well.

Many batches are in flight to such a log at a time. Their responses come in any order, and some
never come. A batch is appended at or after the log's end that was known when it was sent. So
everything before the lowest of these ends is applied.
"""

from collections.abc import Hashable
from typing import Final

from pidlease.log.ports import LATE_MS

#: The key of all producers: batches sent before this start may still be appended.
_ALL_PRODUCERS: Final = 0


class AppliedOffset:
    """Tracks the applied offset of one partition.

    Parameters:
        end: the first offset that is not applied.
        now_ms: the time, in ms since 1970, when that was the log's end.
    """

    def __init__(self, end: int, now_ms: int) -> None:
        self.begin(end, now_ms)

    def begin(self, end: int, now_ms: int) -> None:
        """Start again, as after construction."""
        #: The first offset after everything that is known to be in the log.
        self.end = end
        self._in_flight: dict[Hashable, int] = {}
        #: By producer with batches of unknown outcome: their lowest possible offset, and the time
        #: since which the outcome is unknown, in ms since 1970.
        self._unknown: dict[int, tuple[int, int]] = {_ALL_PRODUCERS: (end, now_ms)}

    @property
    def applied(self) -> int:
        """The offset before which everything is applied."""
        floors = [*self._in_flight.values(), *(floor for floor, _ in self._unknown.values())]
        return min(floors, default=self.end)

    def doubts(self, producer: int, *, acknowledged: bool) -> bool:
        """Return whether the log may hold batches of a producer that are not applied.

        Parameters:
            producer: its PID.
            acknowledged: whether a batch of the producer was acknowledged since the start.
        """
        return producer in self._unknown or (not acknowledged and _ALL_PRODUCERS in self._unknown)

    def overdue(self, now_ms: int) -> bool:
        """Return whether reading the log now would resolve an unknown outcome."""
        return any(now_ms - since_ms >= LATE_MS for _, since_ms in self._unknown.values())

    def unread(self) -> int:
        """Return how many offsets count as not applied only because of unknown outcomes."""
        return max((self.end - floor for floor, _ in self._unknown.values()), default=0)

    def sent(self, key: Hashable) -> None:
        """Note that a batch is in flight."""
        self._in_flight[key] = self.end

    def landed(self, key: Hashable, next_offset: int) -> None:
        """Note that a batch is in the log, before an offset, and is applied."""
        self._in_flight.pop(key, None)
        self.end = max(self.end, next_offset)

    def refused(self, key: Hashable) -> None:
        """Note that a batch is not in the log, and never will be."""
        self._in_flight.pop(key, None)

    def lost(self, key: Hashable, producer: int, now_ms: int) -> None:
        """Note that the outcome of a batch is unknown; it may still be written."""
        floor = self._in_flight.pop(key, self.end)
        before, _ = self._unknown.get(producer, (floor, now_ms))
        self._unknown[producer] = (min(floor, before), now_ms)

    def settled(self, producer: int) -> None:
        """Note that a later batch was appended: no outcome of the producer is unknown any more."""
        if self._unknown:
            self._unknown.pop(producer, None)

    def read(self, end: int, now_ms: int) -> None:
        """Note that everything before an offset was read and applied.

        Parameters:
            end: the offset.
            now_ms: when it was known to be the log's end.
        """
        self.end = max(self.end, end)
        for producer, (floor, since_ms) in list(self._unknown.items()):
            if now_ms - since_ms >= LATE_MS:
                del self._unknown[producer]
            else:
                self._unknown[producer] = (max(floor, end), since_ms)
