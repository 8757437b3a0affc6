"""What comes through the Kafka door, in plain numbers."""

from collections import Counter
from typing import Final

from pidlease.core.histogram import Histogram


class DoorCounts:
    """Since the start.

    Attributes:
        seconds: how long answers took, by API key.
        errors: error codes that were told, by API key.
        malformed: requests that were none.
        refused_connections: connections beyond the limit.
    """

    def __init__(self) -> None:
        self.seconds: Final[dict[int, Histogram]] = {}
        self.errors: Final[Counter[tuple[int, int]]] = Counter()
        self.malformed = 0
        self.refused_connections = 0

    def answered(self, api_key: int, seconds: float) -> None:
        """Count a request that is answered."""
        found = self.seconds.get(api_key)
        if found is None:
            found = self.seconds[api_key] = Histogram()
        found.observe(seconds)

    @property
    def requests(self) -> dict[int, int]:
        """Requests that were answered, by API key."""
        return {key: sum(each.counts) for key, each in self.seconds.items()}
