"""The Kafka listener's counters."""

from collections import Counter, defaultdict
from typing import Final

from pidlease.observability.histogram import Histogram


class ListenerCounts:
    """Counters since the start of the server.

    Attributes:
        seconds: durations of requests, by API key.
        errors: responses with an error, by API key and error code.
        malformed: frames that were not valid requests.
        refused_connections: connections beyond the limit.
    """

    def __init__(self) -> None:
        self.seconds: Final[defaultdict[int, Histogram]] = defaultdict(Histogram)
        self.errors: Final[Counter[tuple[int, int]]] = Counter()
        self.malformed = 0
        self.refused_connections = 0
