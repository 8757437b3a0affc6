"""Measures the lag of the event loop: how late its timers run."""

import asyncio
import time
from contextlib import suppress
from typing import Final, Self

from pidlease.observability.histogram import LAG_SECONDS, Histogram


class LoopLag:
    """Measures the lag periodically, between start and stop.

    Parameters:
        every_seconds: the time between measurements.

    Attributes:
        histogram: all measurements, in seconds.
        longest: the longest lag, in seconds.
    """

    def __init__(self, every_seconds: float) -> None:
        self.histogram: Final = Histogram(LAG_SECONDS)
        self.longest = 0.0
        self._recent = 0.0
        self._every: Final = every_seconds
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self) -> None:
        """Begin to measure."""
        self._task = asyncio.create_task(self._measure())

    async def stop(self) -> None:
        """Stop measuring."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def observe(self, late: float) -> None:
        """Count a measurement, in seconds."""
        self.histogram.observe(late)
        self.longest = max(self.longest, late)
        self._recent = max(self._recent, late)

    def take_longest(self) -> float:
        """Return the longest lag since the previous call, in seconds; for one caller."""
        recent, self._recent = self._recent, 0.0
        return recent

    async def _measure(self) -> None:
        while True:
            due = time.monotonic() + self._every
            await asyncio.sleep(self._every)
            self.observe(max(time.monotonic() - due, 0.0))
