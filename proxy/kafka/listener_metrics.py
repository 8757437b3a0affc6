"""Prometheus metrics of the Kafka listener."""

from collections.abc import Iterable

from kio.schema.errors import ErrorCode
from prometheus_client.core import Metric

from pidlease.engine.topic_counts import Counts
from pidlease.kafka.codec.messages import api_name
from pidlease.observability import metric_catalogue as metrics
from proxy.kafka.kafka_listener import KafkaListener


def listener_metrics(listener: KafkaListener) -> Iterable[Metric]:
    """Yield the listener's metrics with their present values."""
    counts = listener.counts
    yield metrics.KAFKA_REQUEST_SECONDS.histograms(
        {(api_name(key),): each for key, each in counts.seconds.items()}
    )
    yield metrics.KAFKA_ERRORS.rows(
        [((api_name(key), error_name(code)), count) for (key, code), count in counts.errors.items()]
    )
    yield metrics.KAFKA_MALFORMED.of(counts.malformed)
    yield metrics.KAFKA_REFUSED.of(counts.refused_connections)
    yield metrics.KAFKA_CONNECTIONS.of(len(listener.connections))
    yield metrics.KAFKA_PAUSED.of(sum(each.paused for each in listener.connections))
    yield metrics.KAFKA_MEMORY.of(listener.budget.used)
    yield metrics.KAFKA_MEMORY_LIMIT.of(listener.budget.limit)


def forward_metrics(counts: Counts) -> Iterable[Metric]:
    """Yield the error counts of batches forwarded to Kafka."""
    yield metrics.FORWARD_FAILURES.rows(
        [((error_name(code),), count) for code, count in counts.forward_failures.items()]
    )


def error_name(code: int) -> str:
    """Return Kafka's name of an error code; 0 stands for an unknown outcome."""
    if not code:
        return "UNKNOWN_OUTCOME"
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)
