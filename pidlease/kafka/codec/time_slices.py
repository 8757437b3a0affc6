"""Splits long work into steps, so that other tasks of the event loop can run in between."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Hashable, Iterable
from typing import Any, Final, TypeVar

_Thing = TypeVar("_Thing", bound=Hashable)
_Result = TypeVar("_Result")

#: Steps of about a microsecond each: so many do not delay other tasks noticeably.
STEPS_AT_ONCE: Final = 500


class TimeSlices:
    """Counts the steps of a piece of work.

        if turns.due():
            await asyncio.sleep(0)

    A short piece of work ends before that, and is never interrupted.

    Parameters:
        steps: how many are done before other tasks run.
    """

    __slots__ = ("_left", "_steps")

    def __init__(self, steps: int = STEPS_AT_ONCE) -> None:
        self._steps = steps
        self._left = steps

    def due(self, steps: int = 1) -> bool:
        """Count steps that were done; return whether other tasks should run now."""
        self._left -= steps
        if self._left > 0:
            return False
        self._left = self._steps
        return True


def at_once(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Do short work without a task: it awaits nothing but `asyncio.sleep(0)`, which ends here."""
    while True:
        try:
            if work.send(None) is not None:
                raise RuntimeError("the work waits for something")
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]


async def counted(things: Iterable[_Thing]) -> Counter[_Thing]:
    """Count how often each of many things occurs, in the order of their first occurrence."""
    turns = TimeSlices()
    times: Counter[_Thing] = Counter()
    for each in things:
        times[each] += 1
        if turns.due():
            await asyncio.sleep(0)
    return times
