"""The counters of a copier, and their Prometheus collector."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from pidlease.observability.metric_catalogue import COPY, COPY_LAG, COPY_OFFSET


@dataclass(slots=True)
class PartitionProgress:
    """The progress of a partition's copy.

    Attributes:
        offset: the source's first offset that is not acknowledged at the destination.
        end_offset: the source's end by the last fetch.
        pid: the PID; -1: none yet.
    """

    topic: str
    partition: int
    offset: int = -1
    end_offset: int = -1
    pid: int = -1

    @property
    def lag(self) -> int:
        """Offsets of the source that are not copied yet, by the last fetch; offset gaps count."""
        return max(self.end_offset - self.offset, 0) if self.offset >= 0 else 0


@dataclass(slots=True)
class CopyMetrics:
    """Counters since the copier was made.

    Attributes:
        records: acknowledged, duplicates included.
        bytes: of those records at the source.
        batches: acknowledged.
        duplicates: of those records, those that were at the destination before.
        commits: commits of checkpoints, each of any number of partitions.
        commit_failures: commits that failed.
        carried: PIDs replaced after their lease had ended.
        assigned: partitions that the group has assigned to this copier.
        partitions: the partitions assigned now.
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
        """The sum over all partitions."""
        return sum(each.lag for each in self.partitions)


class CopyCollector(Collector):
    """Exports a copier's counters to Prometheus.

    Parameters:
        read: returns the counters: `lambda: copier.metrics`.
    """

    def __init__(self, read: Callable[[], CopyMetrics]) -> None:
        self._read = read

    @override
    def collect(self) -> Iterable[Metric]:
        numbers = self._read()
        for name, definition in COPY.items():
            yield definition.of(getattr(numbers, name))
        rows = [((each.topic, str(each.partition)), each) for each in numbers.partitions]
        yield COPY_LAG.rows([(labels, each.lag) for labels, each in rows])
        yield COPY_OFFSET.rows([(labels, each.offset) for labels, each in rows])
