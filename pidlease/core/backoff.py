"""Delays between attempts: longer after each failure in a row, up to a bound."""

from collections.abc import Callable
from typing import Final, NamedTuple

#: Keeps the power of two finite; every bound is reached long before.
_DOUBLINGS_MAX: Final = 64


class Backoff(NamedTuple):
    """Bounds of a delay that doubles, in seconds.

    Attributes:
        first_seconds: the delay after the first failure.
        max_seconds: the longest delay, before jitter.
        jitter: the delay is multiplied by a random number between 1 - jitter and 1 + jitter.
    """

    first_seconds: float
    max_seconds: float
    jitter: float = 0.0

    def seconds(
        self, failures: int, uniform: Callable[[float, float], float] | None = None
    ) -> float:
        """Return the delay after so many failures in a row.

        Parameters:
            failures: how many, at least 1.
            uniform: draws a number between two others, as `random.Random.uniform` does; needed
                for jitter.

        Raises:
            ValueError: `failures` is below 1, or there is jitter and no `uniform`.
        """
        if failures < 1:
            raise ValueError(f"{failures} failures need no delay")
        doublings = min(failures - 1, _DOUBLINGS_MAX)
        seconds = min(self.first_seconds * 2.0**doublings, self.max_seconds)
        if not self.jitter:
            return seconds
        if uniform is None:
            raise ValueError("jitter needs a source of random numbers")
        return seconds * uniform(1 - self.jitter, 1 + self.jitter)
