"""The counters of a producer, and their Prometheus collector."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

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
        bytes: of those batches, as sent.
        duplicates: acknowledged records that an earlier request had stored.
        retries: batches sent again.
        requests: Produce requests.
        reconnects: connections opened to a node that had one before.
        leases: granted leases.
        switches: PIDs replaced before their lease ended.
        errors: failed records, by class of the error.
        refusals: batches refused by the server, by Kafka's error code.
        buffered_bytes: buffer memory in use.
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
    """Exports a producer's counters to Prometheus.

    Parameters:
        read: returns the counters: `lambda: producer.metrics`.
    """

    def __init__(self, read: Callable[[], ProducerMetrics]) -> None:
        self._read = read

    @override
    def collect(self) -> Iterable[Metric]:
        numbers = self._read()
        for name, definition in CLIENT.items():
            yield definition.of(getattr(numbers, name))
        yield CLIENT_BUFFERED.of(numbers.buffered_bytes)
        errors, refusals = sorted(numbers.errors.items()), sorted(numbers.refusals.items())
        yield CLIENT_ERRORS.rows([((kind,), count) for kind, count in errors])
        yield CLIENT_REFUSALS.rows([((str(code),), count) for code, count in refusals])
