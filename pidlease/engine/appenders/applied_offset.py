"""How far a log that others write to, too, is applied for certain.

Batches are on their way to such a log many at a time, and their answers come in any order; some
never come. What stands in the log of those lies at or behind where its end was known to be when
they were sent. So everything before the lowest of these places is applied.
"""

from collections.abc import Hashable
from typing import Final

from pidlease.log.ports import LATE_MS

#: Stands for all producers: what the life before this one sent may still be written.
_ANYBODY: Final = 0


class AppliedOffset:
    """One partition's.

    Parameters:
        end: the first offset that is not applied.
        now_ms: the time, in ms since 1970, when that was the log's end.
    """

    def __init__(self, end: int, now_ms: int) -> None:
        self.begin(end, now_ms)

    def begin(self, end: int, now_ms: int) -> None:
        """As if it were made now."""
        #: Behind everything that is known to be in the log.
        self.end = end
        self._flying: dict[Hashable, int] = {}
        #: Of producers with batches of unknown outcome: where those are at the earliest, and since
        #: when they are.
        self._unknown: dict[int, tuple[int, int]] = {_ANYBODY: (end, now_ms)}

    @property
    def applied(self) -> int:
        """Everything before this offset is applied."""
        floors = [*self._flying.values(), *(floor for floor, _ in self._unknown.values())]
        return min(floors, default=self.end)

    def doubts(self, producer: int, *, heard: bool) -> bool:
        """Whether the log may hold what is not applied of a producer.

        Parameters:
            producer: its PID.
            heard: whether a batch of it has landed since the start.
        """
        return producer in self._unknown or (not heard and _ANYBODY in self._unknown)

    def overdue(self, now_ms: int) -> bool:
        """Whether a look at the log would put an end to a doubt."""
        return any(now_ms - since_ms >= LATE_MS for _, since_ms in self._unknown.values())

    def sent(self, key: Hashable) -> None:
        """A batch is on its way."""
        self._flying[key] = self.end

    def landed(self, key: Hashable, next_offset: int) -> None:
        """It stands in the log, before an offset, and is applied."""
        self._flying.pop(key, None)
        self.end = max(self.end, next_offset)

    def refused(self, key: Hashable) -> None:
        """It does not stand in the log, and never will."""
        self._flying.pop(key, None)

    def lost(self, key: Hashable, producer: int, now_ms: int) -> None:
        """Nobody knows what became of it, or will become."""
        floor = self._flying.pop(key, self.end)
        before, _ = self._unknown.get(producer, (floor, now_ms))
        self._unknown[producer] = (min(floor, before), now_ms)

    def settled(self, producer: int) -> None:
        """The log has taken what came behind: nothing of the producer is in doubt any more."""
        if self._unknown:
            self._unknown.pop(producer, None)

    def read(self, end: int, now_ms: int) -> None:
        """Everything before an offset was read and applied.

        Parameters:
            end: that offset.
            now_ms: when it was known to be the log's end.
        """
        self.end = max(self.end, end)
        for producer, (floor, since_ms) in list(self._unknown.items()):
            if now_ms - since_ms >= LATE_MS:
                del self._unknown[producer]
            else:
                self._unknown[producer] = (max(floor, end), since_ms)
