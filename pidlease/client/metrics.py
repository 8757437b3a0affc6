"""What a producer counts, in plain numbers, and how Prometheus gets to see it."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pidlease.observability.metric_catalogue import (
    CLIENT,
    CLIENT_BUFFERED,
    CLIENT_ERRORS,
    CLIENT_REFUSALS,
)


@dataclass(slots=True)
class ProducerMetrics:
    """Counters since the producer was made.

    Attributes:
        records: acknowledged, duplicates included.
        batches: acknowledged.
        bytes: of those batches, as they went over the wire.
        duplicates: records that had been in the log before.
        retries: batches sent again.
        requests: Produce requests.
        reconnects: connections made where there had been one before.
        leases: leases that were granted.
        switches: PIDs that were replaced before their lease ended.
        errors: records that failed, by the kind of error.
        refusals: batches refused by the server, by Kafka's number of the error.
        buffered_bytes: what waits now, with what is kept for it.
    """

    records: int = 0
    batches: int = 0
    bytes: int = 0
    duplicates: int = 0
    retries: int = 0
    requests: int = 0
    reconnects: int = 0
    leases: int = 0
    switches: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    refusals: Counter[int] = field(default_factory=Counter)
    buffered_bytes: int = 0

    def failed(self, error: Exception, records: int) -> None:
        """Count records that failed."""
        self.errors[type(error).__name__] += records


class ProducerCollector(Collector):
    """Tells a producer's metrics when it is scraped.

    Parameters:
        read: the numbers as they are: `lambda: producer.metrics`.
    """

    def __init__(self, read: Callable[[], ProducerMetrics]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        numbers = self._read()
        for name, definition in CLIENT.items():
            yield definition.of(getattr(numbers, name))
        yield CLIENT_BUFFERED.of(numbers.buffered_bytes)
        errors, refusals = sorted(numbers.errors.items()), sorted(numbers.refusals.items())
        yield CLIENT_ERRORS.rows([((kind,), count) for kind, count in errors])
        yield CLIENT_REFUSALS.rows([((str(code),), count) for code, count in refusals])
