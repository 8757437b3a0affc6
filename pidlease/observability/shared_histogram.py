"""How long things took in several threads."""

from collections.abc import Sequence
from threading import Lock
from typing import Final

from pidlease.core.histogram import SECONDS, Histogram


class SharedHistogram(Histogram):
    """See `Histogram`; for several threads."""

    __slots__ = ("_lock",)

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        super().__init__(bounds)
        self._lock: Final = Lock()

    def observe(self, value: float) -> None:
        """Count one value."""
        with self._lock:
            super().observe(value)
