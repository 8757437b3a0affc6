"""Every metric, once: name, kind, labels and meaning. docs/reference/metrics.md lists them.

Components keep plain numbers, which become samples at a scrape: on the hot path, a counter costs an
addition, and a histogram a search among fourteen bounds. A PID is never a label; topics beyond a
limit share one label value.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from pidlease.observability.histogram import Histogram

Kind = Literal["counter", "gauge", "histogram"]
#: Label values, and the metric's value for them.
Rows = Iterable[tuple[tuple[str, ...], float]]


class Definition(NamedTuple):
    """One metric.

    Attributes:
        kind: Prometheus's metric type.
        name: without the exposition's suffix (`_total` of a counter).
    """

    kind: Kind
    name: str
    text: str
    labels: tuple[str, ...] = ()

    @property
    def exposed(self) -> str:
        """The metric's name in queries."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def of(self, value: float) -> Metric:
        """Return the metric with one sample, without labels."""
        return self.rows([((), value)])

    def rows(self, values: Rows) -> Metric:
        """Return the metric with a sample for each row; label values in the order of `labels`."""
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = kind(self.name, self.text, labels=self.labels)
        for labels, value in values:
            family.add_metric(labels, value)
        return family

    def histograms(self, values: Mapping[tuple[str, ...], Histogram]) -> Metric:
        """Return the metric with a histogram for each combination of label values."""
        family = HistogramMetricFamily(self.name, self.text, labels=self.labels)
        for labels, each in values.items():
            family.add_metric(labels, _buckets(each), each.total)
        return family

    def histogram(self, one: Histogram) -> Metric:
        """Return the metric with one histogram, without labels."""
        return self.histograms({(): one})


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(repr, histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, histogram.cumulated()), strict=True))


#: All metrics, by name.
CATALOGUE: Final[dict[str, Definition]] = {}


def _define(kind: Kind, name: str, text: str, *labels: str) -> Definition:
    if name in CATALOGUE:
        raise ValueError(f"two metrics are called {name}")
    definition = CATALOGUE[name] = Definition(kind, name, text, labels)
    return definition


#: Returns the current metrics of a component.
Source = Callable[[], Iterable[Metric]]


class PidleaseCollector(Collector):
    """Collects the metrics of all sources at each scrape."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources: Final = list(sources)

    @override
    def collect(self) -> Iterable[Metric]:
        for source in self._sources:
            yield from source()


# ---------------------------------------------------------------------- the server

BUILD_INFO = _define(
    "gauge",
    "pidlease_build_info",
    "1, labelled with the versions and the backend.",
    "version",
    "python",
    "log",
)
READY = _define("gauge", "pidlease_ready", "1 while the server accepts requests.")
STANDING_BY = _define(
    "gauge", "pidlease_standing_by", "1 while another server serves this Kafka cluster."
)
TOPICS = _define("gauge", "pidlease_topics", "Topics.")
TOPICS_AWAITED = _define(
    "gauge",
    "pidlease_topics_awaited",
    "Topics in Kafka that cannot be read yet, because a partition had no leader.",
)
TOPICS_UNSEEN = _define(
    "gauge",
    "pidlease_topics_unseen",
    "Topics that Kafka no longer lists; their producers' state is kept for an hour.",
)
PARTITIONS = _define("gauge", "pidlease_partitions", "Partitions.")
PARTITIONS_STOPPED = _define(
    "gauge", "pidlease_partitions_stopped", "Partitions that refuse appends."
)
SERVERS = _define(
    "gauge", "pidlease_servers", "Active servers that share the Kafka cluster (--shared)."
)
SERVERS_ANSWERING = _define(
    "gauge", "pidlease_servers_answering", "Active servers that answer pings; this one included."
)
DIVIDES_SLOTS = _define(
    "gauge", "pidlease_divides_slots", "1 if this server divides the slots among active servers."
)
SILENT_SERVERS_MOVED = _define(
    "counter",
    "pidlease_silent_servers_moved",
    "Servers that did not answer pings, and that this one has moved the slots of.",
)
PARTITIONS_OWNED = _define(
    "gauge", "pidlease_partitions_owned", "Partitions that this one of several servers serves."
)
PARTITIONS_WITHOUT_OWNER = _define(
    "gauge", "pidlease_partitions_without_owner", "Partitions that no active server owns."
)
PARTITIONS_TAKEN_OVER = _define(
    "counter", "pidlease_partitions_taken_over", "Partitions taken over from other servers."
)
PARTITIONS_HANDED_OVER = _define(
    "counter", "pidlease_partitions_handed_over", "Partitions handed over to other servers."
)
TAKEOVER_SECONDS = _define(
    "histogram", "pidlease_takeover_seconds", "How long takeovers of partitions took."
)
TAKEOVER_OFFSETS = _define(
    "counter", "pidlease_takeover_offsets", "Offsets of the log that takeovers have read."
)
FOLLOWED_PARTITIONS = _define(
    "gauge",
    "pidlease_followed_partitions",
    "Partitions of other servers that this one follows, and gets if their owner ends.",
)
FOLLOWER_LAG = _define(
    "gauge",
    "pidlease_follower_lag_seconds",
    "How old the followed states are, of the server that sent its own least recently.",
)
STATES_FETCHED = _define(
    "counter",
    "pidlease_partitions_fetched",
    "Partitions with states from another server, fetched before a takeover or at a start.",
)
EVENT_LOOP_LAG = _define(
    "histogram", "pidlease_event_loop_lag_seconds", "Delay of the event loop's timers."
)
DISK_FREE = _define("gauge", "pidlease_disk_free_bytes", "Free space on the data directory's disk.")
DISK_SIZE = _define("gauge", "pidlease_disk_size_bytes", "Size of the data directory's disk.")

# ---------------------------------------------------------------------- leases

LEASES_GRANTED = _define("counter", "pidlease_leases_granted", "PIDs leased.", "policy")
LEASES_REFUSED = _define(
    "counter", "pidlease_leases_refused", "Leases refused, by reason.", "reason", "policy"
)
LEASES_EXPIRED = _define("counter", "pidlease_leases_expired", "Leases that have ended.")
LEASES = _define("gauge", "pidlease_leases", "Leases in force.")
RING_USED = _define("gauge", "pidlease_lease_ring_used", "Slots of the lease table in use.")
RING_CAPACITY = _define("gauge", "pidlease_lease_ring_capacity", "Slots of the lease table.")
KEYS_USED = _define("gauge", "pidlease_idempotency_keys", "Idempotency keys in use.")
KEYS_CAPACITY = _define(
    "gauge", "pidlease_idempotency_keys_capacity", "The most idempotency keys at once."
)
LEASE_LENGTH = _define("gauge", "pidlease_lease_length_seconds", "Length of a lease.")
LEASE_SECONDS = _define(
    "histogram",
    "pidlease_lease_seconds",
    "Time to grant or refuse a lease.",
    "door",
)
BLOCK_LEFT = _define(
    "gauge", "pidlease_pid_block_left", "PIDs to lease before another block is needed."
)
PREFETCH_SECONDS = _define(
    "gauge", "pidlease_pid_prefetch_seconds", "Time to take the last block of PIDs."
)
PREFETCH_FAILURES = _define(
    "counter", "pidlease_pid_prefetch_failures", "Blocks of PIDs that could not be taken."
)
COORDINATOR_CONNECTED = _define(
    "gauge", "pidlease_coordinator_connected",
    "1 while the coordinator is connected; a file always is.", "coordinator",
)  # fmt: skip

# ---------------------------------------------------------------------- validation and the log

JUDGED = _define(
    "counter", "pidlease_batches_judged", "Batches, by outcome.",
    "door", "topic", "policy", "outcome",
)  # fmt: skip
APPENDED_BATCHES = _define("counter", "pidlease_appended_batches", "Batches appended.", "topic")
APPENDED_RECORDS = _define("counter", "pidlease_appended_records", "Records appended.", "topic")
APPENDED_BYTES = _define("counter", "pidlease_appended_bytes", "Bytes appended.", "topic")
READ_BATCHES = _define("counter", "pidlease_read_batches", "Batches sent to consumers.", "topic")
READ_RECORDS = _define(
    "counter",
    "pidlease_read_records",
    "Records in the batches sent to consumers, by the batches' headers.",
    "topic",
)
READ_BYTES = _define(
    "counter", "pidlease_read_bytes", "Bytes of the batches sent to consumers.", "topic"
)
APPENDS = _define("counter", "pidlease_appends", "Appends, each of one or more batches.")
JOINED = _define("counter", "pidlease_joined_retries", "Retries that waited for their original.")
DIFFERING = _define(
    "counter",
    "pidlease_differing_duplicates",
    "Duplicates by sequence number, with different bytes.",
)
EPOCHS_RAISED = _define(
    "counter",
    "pidlease_raised_epochs",
    "Kafka clients that raised their epoch on a partition, after a record timed out or failed.",
)
PUSHED = _define("counter", "pidlease_pushed_batches", "Batches validated and sent to the log.")
PERSISTED = _define("counter", "pidlease_persisted_batches", "Batches that the log acknowledged.")
FAILED = _define("counter", "pidlease_failed_batches", "Batches that the log did not acknowledge.")
IN_FLIGHT = _define("gauge", "pidlease_in_flight_batches", "Batches in flight to the log.")
PRODUCERS = _define("gauge", "pidlease_producers", "Producers with state, summed over partitions.")
APPEND_SECONDS = _define(
    "histogram", "pidlease_append_seconds", "Time of an append to the embedded log."
)
FSYNC_SECONDS = _define("histogram", "pidlease_fsync_seconds", "Time of an fsync of a log.")

# ---------------------------------------------------------------------- snapshots and the start

SNAPSHOTS = _define("counter", "pidlease_snapshots", "Snapshots taken.")
SNAPSHOT_FAILURES = _define("counter", "pidlease_snapshot_failures", "Snapshots that failed.")
SNAPSHOT_SECONDS = _define("gauge", "pidlease_snapshot_seconds", "Time to take the last snapshot.")
SNAPSHOT_DELAY = _define(
    "gauge",
    "pidlease_snapshot_delay_seconds",
    "Longest delay of the event loop by the last snapshot.",
)
SNAPSHOT_AGE = _define("gauge", "pidlease_snapshot_age_seconds", "Age of the newest snapshot.")
SNAPSHOT_ROWS = _define("gauge", "pidlease_snapshot_rows", "Rows of the newest snapshot.")
SNAPSHOT_BYTES = _define("gauge", "pidlease_snapshot_bytes", "Size of the newest snapshot on disk.")
REPLAY_PARTITIONS = _define(
    "gauge", "pidlease_replay_partitions", "Partitions to replay at the start."
)
REPLAY_DONE = _define("gauge", "pidlease_replay_partitions_done", "Partitions replayed.")
REPLAY_LEFT = _define("gauge", "pidlease_replay_offsets_left", "Offsets left to replay.")

# ---------------------------------------------------------------------- the listeners

KAFKA_REQUEST_SECONDS = _define(
    "histogram",
    "pidlease_kafka_request_seconds",
    "Time from a complete request to its response.",
    "api",
)
KAFKA_ERRORS = _define(
    "counter",
    "pidlease_kafka_errors",
    "Error codes in responses to Kafka clients: of each partition in Produce and Fetch, and of the"
    " response as a whole.",
    "api",
    "code",
)
KAFKA_MALFORMED = _define("counter", "pidlease_kafka_malformed_requests", "Malformed requests.")
KAFKA_REFUSED = _define(
    "counter", "pidlease_kafka_refused_connections", "Connections refused because of the limit."
)
KAFKA_CONNECTIONS = _define("gauge", "pidlease_kafka_connections", "Connected clients.")
KAFKA_PAUSED = _define(
    "gauge", "pidlease_kafka_paused_connections",
    "Connections not being read: the log or the client is slow, memory is short, or a quota is"
    " used up.",
)  # fmt: skip
QUOTA_THROTTLES = _define(
    "counter", "pidlease_quota_throttles",
    "How often a client was throttled, or refused with 429, because of a quota.",
    "quota", "listener",
)  # fmt: skip
QUOTA_THROTTLED_SECONDS = _define(
    "counter", "pidlease_quota_throttled_seconds",
    "Seconds for which clients were throttled because of quotas.", "quota", "listener",
)  # fmt: skip
LOGINS = _define(
    "counter", "pidlease_logins",
    "Logins of clients, renewed ones too. HTTP clients log in with each request: of them only"
    " refused ones count.",
    "listener", "mechanism", "outcome",
)  # fmt: skip
DENIED = _define(
    "counter", "pidlease_denied",
    "Refusals of requests, or parts of them, for want of a right, by the right's operation.",
    "operation",
)  # fmt: skip
AUDIT_LOST = _define(
    "counter", "pidlease_audit_lines_lost",
    "Lines of the audit log that could not be written.",
)  # fmt: skip
ACLS_AGE = _define(
    "gauge", "pidlease_acls_age_seconds",
    "Seconds since Kafka's ACLs were read; only with acls=kafka.",
)  # fmt: skip
KAFKA_MEMORY = _define(
    "gauge", "pidlease_kafka_memory_bytes", "Memory held by requests and responses."
)
KAFKA_MEMORY_LIMIT = _define(
    "gauge", "pidlease_kafka_memory_limit_bytes", "Limit of the memory for requests and responses."
)
HTTP_CONNECTIONS = _define(
    "gauge", "pidlease_http_connections", "Connected HTTP clients, other active servers too."
)
HTTP_CLOSED = _define(
    "counter", "pidlease_http_closed_connections", "Connections closed because of the limit."
)
HTTP_REQUEST_SECONDS = _define(
    "histogram",
    "pidlease_http_request_seconds",
    "Time from a request's head to its complete response.",
    "route",
)
HTTP_RESPONSES = _define(
    "counter", "pidlease_http_responses", "Responses, by status code.", "route", "code"
)

# ---------------------------------------------------------------------- in front of Kafka

FORWARD_SECONDS = _define(
    "histogram", "pidlease_forward_seconds", "Time from forwarding a batch to Kafka's response."
)
FORWARD_FAILURES = _define(
    "counter",
    "pidlease_forward_failures",
    "Batches that Kafka refused, or with an unknown outcome.",
    "code",
)
WRITERS_TAKEN = _define(
    "counter", "pidlease_writers_taken", "Writer takeovers and renewals by this server."
)
WRITERS_FENCED = _define(
    "counter", "pidlease_writers_fenced", "Writers taken over by another server."
)

# ---------------------------------------------------------------------- the Python client

_OF_CLIENTS: Final = {
    "records": "Records acknowledged, duplicates included.",
    "batches": "Batches acknowledged.",
    "bytes": "Bytes of acknowledged batches.",
    "duplicates": "Records that were in the log already.",
    "retries": "Batches sent again.",
    "requests": "Produce requests.",
    "reconnects": "Reconnections.",
    "leases": "Leases granted.",
    "switches": "PIDs replaced before their lease ended.",
}
#: By the field of `client.metrics.ProducerMetrics`.
CLIENT: Final = {
    field: _define("counter", f"pidlease_client_{field}", text)
    for field, text in _OF_CLIENTS.items()
}
CLIENT_BUFFERED = _define("gauge", "pidlease_client_buffered_bytes", "Bytes waiting to be sent.")
CLIENT_ERRORS = _define("counter", "pidlease_client_errors", "Records that failed.", "kind")
CLIENT_REFUSALS = _define(
    "counter", "pidlease_client_refusals", "Batches refused by the server.", "code"
)

# ---------------------------------------------------------------------- copiers

_OF_COPIERS: Final = {
    "records": "Records at the destination, duplicates included.",
    "bytes": "Bytes copied from the source.",
    "batches": "Batches acknowledged.",
    "duplicates": "Records that were at the destination already.",
    "commits": "Checkpoints saved.",
    "commit_failures": "Checkpoints that could not be saved.",
    "carried": "PIDs replaced after their lease had ended.",
    "assigned": "Partitions assigned to this copier.",
}
#: By the field of `client.copier.metrics.CopyMetrics`.
COPY: Final = {
    field: _define("counter", f"pidlease_copy_{field}", text) for field, text in _OF_COPIERS.items()
}
_TOPIC_PARTITION: Final = ("topic", "partition")

COPY_LAG = _define(
    "gauge", "pidlease_copy_lag", "Records of the source not copied yet.", *_TOPIC_PARTITION
)
COPY_OFFSET = _define(
    "gauge",
    "pidlease_copy_offset",
    "Offset of the next record to copy from the source.",
    *_TOPIC_PARTITION,
)

# ---------------------------------------------------------------------- Spark's sink

SPARK_BATCHES = _define("counter", "pidlease_spark_micro_batches", "Micro-batches completed.")
SPARK_FAILURES = _define("counter", "pidlease_spark_failures", "Queries ended by an error.")
SPARK_FENCED = _define(
    "counter", "pidlease_spark_fenced", "Queries ended because another run took over."
)
SPARK_SECONDS = _define(
    "gauge", "pidlease_spark_micro_batch_seconds", "Time of the last micro-batch."
)
SPARK_RATE = _define(
    "gauge", "pidlease_spark_rows_per_second", "Rows per second of the last micro-batch."
)
SPARK_LAG = _define(
    "gauge", "pidlease_spark_lag", "Records of the source not read yet.", *_TOPIC_PARTITION
)
SPARK_SENT = _define(
    "counter",
    "pidlease_spark_sent",
    "Rows at the destination, duplicates included.",
    *_TOPIC_PARTITION,
)
SPARK_DUPLICATES = _define(
    "counter",
    "pidlease_spark_duplicates",
    "Rows that were at the destination already.",
    *_TOPIC_PARTITION,
)
SPARK_HIGH = _define(
    "gauge", "pidlease_spark_high", "Highest sequence number at the destination.", *_TOPIC_PARTITION
)
