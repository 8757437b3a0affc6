"""The Kafka door's numbers as metrics."""

from collections.abc import Iterable

from prometheus_client.core import Metric

from pidlease.metrics import counter, gauge, labelled_counter
from proxy.kafka.door import KafkaDoor


def door_metrics(door: KafkaDoor) -> Iterable[Metric]:
    """All metrics of the door, as they are now."""
    counts = door.counts
    yield labelled_counter(
        "pidlease_kafka_requests",
        "Requests by API key.",
        ("api_key",),
        [((str(key),), float(n)) for key, n in counts.requests.items()],
    )
    yield counter("pidlease_kafka_malformed_requests", "Requests that were none.", counts.malformed)
    yield counter(
        "pidlease_kafka_refused_connections",
        "Connections over the limit.",
        counts.refused_connections,
    )
    yield gauge("pidlease_kafka_connections", "Clients connected.", len(door.connections))
    yield gauge("pidlease_kafka_memory_bytes", "Held by requests and answers.", door.budget.used)
