"""What a copier counts, and how Prometheus gets to see it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pidlease.observability.metric_catalogue import COPY, COPY_LAG, COPY_OFFSET


@dataclass(slots=True)
class PartitionProgress:
    """How far the copy of a partition is.

    Attributes:
        offset: of the source's next record that is not known to be at the destination.
        end_offset: where the source ends, as far as it is known.
        pid: the PID; -1: none yet.
    """

    topic: str
    partition: int
    offset: int = -1
    end_offset: int = -1
    pid: int = -1

    @property
    def lag(self) -> int:
        """Records of the source that are not copied yet, as far as it is known; holes count."""
        return max(self.end_offset - self.offset, 0) if self.offset >= 0 else 0


@dataclass(slots=True)
class CopyMetrics:
    """Counters since the copier was made.

    Attributes:
        records: that stand at the destination by this copier's doing, or did before.
        bytes: of the source that they took there.
        batches: acknowledged.
        duplicates: of those records: what had been there before.
        commits: checkpoints saved, of any number of partitions at once.
        commit_failures: those that could not be.
        carried: PIDs replaced after their lease had ended.
        assigned: partitions that came to this copier.
        partitions: those that it has now.
    """

    records: int = 0
    bytes: int = 0
    batches: int = 0
    duplicates: int = 0
    commits: int = 0
    commit_failures: int = 0
    carried: int = 0
    assigned: int = 0
    partitions: list[PartitionProgress] = field(default_factory=list)

    @property
    def lag(self) -> int:
        """Of all its partitions."""
        return sum(each.lag for each in self.partitions)


class CopyCollector(Collector):
    """Tells a copier's metrics when it is scraped.

    Parameters:
        read: the numbers as they are: `lambda: copier.metrics`.
    """

    def __init__(self, read: Callable[[], CopyMetrics]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        numbers = self._read()
        for name, definition in COPY.items():
            yield definition.of(getattr(numbers, name))
        rows = [((each.topic, str(each.partition)), each) for each in numbers.partitions]
        yield COPY_LAG.rows([(labels, each.lag) for labels, each in rows])
        yield COPY_OFFSET.rows([(labels, each.offset) for labels, each in rows])
