"""The Kafka door's numbers as metrics."""

from collections.abc import Iterable

from kio.schema.errors import ErrorCode
from prometheus_client.core import Metric

from pidlease.engine.topic_counts import Counts
from pidlease.observability import metric_catalogue as metrics
from proxy.kafka.kafka_listener import KafkaListener

#: Kafka's names of requests, by their keys.
_APIS = {
    0: "Produce", 1: "Fetch", 2: "ListOffsets", 3: "Metadata", 8: "OffsetCommit", 9: "OffsetFetch",
    10: "FindCoordinator", 11: "JoinGroup", 12: "Heartbeat", 13: "LeaveGroup", 14: "SyncGroup",
    15: "DescribeGroups", 16: "ListGroups", 17: "SaslHandshake", 18: "ApiVersions",
    19: "CreateTopics", 20: "DeleteTopics", 21: "DeleteRecords", 22: "InitProducerId",
    23: "OffsetForLeaderEpoch", 24: "AddPartitionsToTxn", 25: "AddOffsetsToTxn", 26: "EndTxn",
    27: "WriteTxnMarkers", 28: "TxnOffsetCommit", 32: "DescribeConfigs", 33: "AlterConfigs",
    36: "SaslAuthenticate", 37: "CreatePartitions", 42: "DeleteGroups",
    44: "IncrementalAlterConfigs", 47: "OffsetDelete", 60: "DescribeCluster",
    61: "DescribeProducers", 65: "DescribeTransactions", 66: "ListTransactions",
    68: "ConsumerGroupHeartbeat", 69: "ConsumerGroupDescribe",
}  # fmt: skip


def listener_metrics(door: KafkaListener) -> Iterable[Metric]:
    """All metrics of the door, as they are now."""
    counts = door.counts
    yield metrics.KAFKA_REQUEST_SECONDS.histograms(
        {(_api(key),): each for key, each in counts.seconds.items()}
    )
    yield metrics.KAFKA_ERRORS.rows(
        [((_api(key), error_name(code)), count) for (key, code), count in counts.errors.items()]
    )
    yield metrics.KAFKA_MALFORMED.of(counts.malformed)
    yield metrics.KAFKA_REFUSED.of(counts.refused_connections)
    yield metrics.KAFKA_CONNECTIONS.of(len(door.connections))
    yield metrics.KAFKA_PAUSED.of(sum(each.paused for each in door.connections))
    yield metrics.KAFKA_MEMORY.of(door.budget.used)
    yield metrics.KAFKA_MEMORY_LIMIT.of(door.budget.limit)


def forward_metrics(counts: Counts) -> Iterable[Metric]:
    """What Kafka has refused."""
    yield metrics.FORWARD_FAILURES.rows(
        [((error_name(code),), count) for code, count in counts.forward_failures.items()]
    )


def error_name(code: int) -> str:
    """Kafka's name of an error; of none: that nobody knows what became of it."""
    if not code:
        return "UNKNOWN_OUTCOME"
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)


def _api(key: int) -> str:
    return _APIS.get(key, str(key))
