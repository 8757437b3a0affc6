"""A histogram for several threads."""

from collections.abc import Sequence
from threading import Lock
from typing import Final

from typing_extensions import override

from pidlease.core.histogram import SECONDS, Histogram


class SharedHistogram(Histogram):
    """A histogram that several threads may count in."""

    __slots__ = ("_lock",)

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        super().__init__(bounds)
        self._lock: Final = Lock()

    @override
    def observe(self, value: float) -> None:
        with self._lock:
            super().observe(value)
