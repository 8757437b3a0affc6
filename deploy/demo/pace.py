"""How fast the rows go out: evenly, and never to their end while there is a crash to come."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from deploy.demo.clients import Client
from deploy.demo.rows import Record

_TICK_S: Final = 0.1
#: A crash without records on their way proves nothing: each still to come is granted this long.
_CRASH_S: Final = 10.0


class Pace:
    """Spreads the rows over the time that is left.

    On a slow machine, where crashes and restarts take longer than planned, the rest goes out
    slower instead of running out.

    Parameters:
        seconds: how long sending is to last.
        crashes_left: how many crashes are still to come.
    """

    def __init__(self, seconds: float, crashes_left: Callable[[], int]) -> None:
        self._end = time.monotonic() + seconds
        self._crashes_left = crashes_left

    def share(self, left: int) -> int:
        """How many of the rows that are left go out in this tick.

        Parameters:
            left: rows not yet sent.
        """
        seconds = max(self._end - time.monotonic(), self._crashes_left() * _CRASH_S, _TICK_S)
        return min(left, max(1, round(left * _TICK_S / seconds)))


async def send_all(client: Client, records: Sequence[Record], pace: Pace) -> None:
    """Send in bursts, as applications do, so that several batches are on their way at once."""
    position = 0
    due = time.monotonic()
    while position < len(records):
        burst = records[position : position + pace.share(len(records) - position)]
        for record in burst:
            await client.send(record)
        position += len(burst)
        # A burst that waited for room is not made up for by a faster one.
        due = max(due + _TICK_S, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
