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

    ```python
    from pidlease.client import BlockingProducer

    with BlockingProducer(
        bootstrap_servers="127.0.0.1:9092", leases="http://127.0.0.1:8080"
    ) as producer:
        producer.send_and_wait("orders", b"tea")
        print(producer.metrics.records, producer.metrics.duplicates)
    ```

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

    ```python
    from prometheus_client import CollectorRegistry, generate_latest

    from pidlease.client import BlockingProducer, ProducerCollector

    registry = CollectorRegistry()
    with BlockingProducer(
        bootstrap_servers="127.0.0.1:9092", leases="http://127.0.0.1:8080"
    ) as producer:
        registry.register(ProducerCollector(lambda: producer.metrics))
        producer.send_and_wait("orders", b"tea")
        print(generate_latest(registry).decode())
    ```

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
