"""Histograms of durations: counts by upper bounds, as in Prometheus."""

from bisect import bisect_left
from collections.abc import Sequence
from threading import Lock
from typing import Final

from typing_extensions import override

#: Upper bounds, in seconds.
SECONDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
#: Upper bounds of durations far below a second.
LAG_SECONDS: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0,
)  # fmt: skip


class Histogram:
    """Counts values by upper bounds; for one thread.

    Parameters:
        bounds: the upper bounds, inclusive and ascending; values above the last are counted, too.

    Attributes:
        total: the sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds: Final = bounds
        self.counts: Final = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulated(self) -> list[int]:
        """Return how many values were at or below each bound; as the last item, all of them."""
        cumulated, so_far = [], 0
        for count in self.counts:
            so_far += count
            cumulated.append(so_far)
        return cumulated


class SharedHistogram(Histogram):
    """Counts values by upper bounds; for several threads."""

    __slots__ = ("_lock",)

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        super().__init__(bounds)
        self._lock: Final = Lock()

    @override
    def observe(self, value: float) -> None:
        with self._lock:
            super().observe(value)
