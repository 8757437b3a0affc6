"""Counts of the Kafka listener."""

from collections import Counter, defaultdict
from typing import Final

from pidlease.observability.histogram import Histogram


class ListenerCounts:
    """Since the start.

    Attributes:
        seconds: how long answers took, by API key.
        errors: error codes in responses, by API key.
        malformed: requests that were none.
        refused_connections: connections beyond the limit.
    """

    def __init__(self) -> None:
        self.seconds: Final[defaultdict[int, Histogram]] = defaultdict(Histogram)
        self.errors: Final[Counter[tuple[int, int]]] = Counter()
        self.malformed = 0
        self.refused_connections = 0
