"""The result of a search by timestamp: an offset and its timestamp."""

from typing import NamedTuple


class TimedOffset(NamedTuple):
    """A record found by its timestamp (ms since 1970)."""

    offset: int
    timestamp: int
