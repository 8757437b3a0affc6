"""Long pieces of work are done in steps, so that others get their turn in between."""

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

_Thing = TypeVar("_Thing", bound=Hashable)

#: Steps of about a microsecond that delay other tasks little enough.
STEPS_AT_ONCE: Final = 500


class TimeSlices:
    """Counts the steps of a piece of work.

        if turns.due():
            await asyncio.sleep(0)

    A small piece of work comes to its end before, and never gives way.

    Parameters:
        steps: so many are done before others get their turn.
    """

    __slots__ = ("_left", "_steps")

    def __init__(self, steps: int = STEPS_AT_ONCE) -> None:
        self._steps = steps
        self._left = steps

    def due(self, steps: int = 1) -> bool:
        """Take note of steps that were done; whether it is the turn of others."""
        self._left -= steps
        if self._left > 0:
            return False
        self._left = self._steps
        return True


async def counted(things: Iterable[_Thing]) -> Counter[_Thing]:
    """How often each of many things is there, in the order in which they come."""
    turns = TimeSlices()
    times: Counter[_Thing] = Counter()
    for each in things:
        times[each] += 1
        if turns.due():
            await asyncio.sleep(0)
    return times
