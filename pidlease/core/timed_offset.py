"""The result of a search by timestamp."""

from typing import NamedTuple


class TimedOffset(NamedTuple):
    """A record found by its timestamp (ms since 1970)."""

    offset: int
    timestamp: int
