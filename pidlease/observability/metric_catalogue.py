"""Every metric, once: name, kind, labels and meaning; docs/metrics.md says the same.

Whoever has the numbers keeps them as plain ones, and makes samples of them when somebody scrapes:
the hot path pays an addition for a counter, and a search among fourteen bounds for a histogram. No
PID is ever a label; topics beyond a limit share one (`engine.counts`).
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pidlease.core.histogram import Histogram

Kind = Literal["counter", "gauge", "histogram"]
#: Values of a metric by those of its labels.
Rows = Iterable[tuple[tuple[str, ...], float]]


class Definition(NamedTuple):
    """One metric.

    Attributes:
        kind: what Prometheus calls its type.
        name: without what the exposition adds (_total to a counter).
        text: what it says, for people.
        labels: the names of its labels.
    """

    kind: Kind
    name: str
    text: str
    labels: tuple[str, ...] = ()

    @property
    def exposed(self) -> str:
        """The name that a query has."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def of(self, value: float) -> Metric:
        """Its one sample, where it has no labels."""
        return self.rows([((), value)])

    def rows(self, values: Rows) -> Metric:
        """A sample for each value; their order is that of the labels."""
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = kind(self.name, self.text, labels=self.labels)
        for labels, value in values:
            family.add_metric(labels, value)
        return family

    def histograms(self, values: Mapping[tuple[str, ...], Histogram]) -> Metric:
        """The samples of a histogram each."""
        family = HistogramMetricFamily(self.name, self.text, labels=self.labels)
        for labels, each in values.items():
            family.add_metric(labels, _buckets(each), each.total)
        return family

    def histogram(self, one: Histogram) -> Metric:
        """The samples of its one histogram, where it has no labels."""
        return self.histograms({(): one})


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(repr, histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, histogram.cumulated()), strict=True))


#: All of them, by name.
CATALOGUE: Final[dict[str, Definition]] = {}


def _define(kind: Kind, name: str, text: str, *labels: str) -> Definition:
    if name in CATALOGUE:
        raise ValueError(f"two metrics are called {name}")
    found = CATALOGUE[name] = Definition(kind, name, text, labels)
    return found


class Source(Protocol):
    """Something that can tell its metrics."""

    def __call__(self) -> Iterable[Metric]:
        """The metrics as they are now."""


class PidleaseCollector(Collector):
    """Asks the sources each time it is scraped.

    Parameters:
        sources: where the numbers are.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources: Final = list(sources)

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        for source in self._sources:
            yield from source()


# ---------------------------------------------------------------------- the server

BUILD_INFO = _define(
    "gauge", "pidlease_build_info", "1, with what runs.", "version", "python", "log"
)
READY = _define("gauge", "pidlease_ready", "1 while requests are taken.")
STANDING_BY = _define(
    "gauge", "pidlease_standing_by", "1 while another server serves this Kafka cluster."
)
TOPICS = _define("gauge", "pidlease_topics", "Topics.")
TOPICS_AWAITED = _define(
    "gauge",
    "pidlease_topics_awaited",
    "Topics in Kafka that cannot be read yet: not all their partitions had a leader.",
)
TOPICS_UNSEEN = _define(
    "gauge",
    "pidlease_topics_unseen",
    "Topics that Kafka does not show any more: what is known of them is kept for an hour.",
)
PARTITIONS = _define("gauge", "pidlease_partitions", "Partitions.")
PARTITIONS_STOPPED = _define(
    "gauge", "pidlease_partitions_stopped", "Partitions that take no appends."
)
EVENT_LOOP_LAG = _define(
    "histogram", "pidlease_event_loop_lag_seconds", "How late the event loop comes to what is due."
)
DISK_FREE = _define("gauge", "pidlease_disk_free_bytes", "Left where the data directory is.")
DISK_SIZE = _define(
    "gauge", "pidlease_disk_size_bytes", "All that there is where the data directory is."
)

# ---------------------------------------------------------------------- leases

LEASES_GRANTED = _define("counter", "pidlease_leases_granted", "PIDs leased.", "policy")
LEASES_REFUSED = _define(
    "counter", "pidlease_leases_refused", "Leases refused, and why.", "reason", "policy"
)
LEASES_EXPIRED = _define("counter", "pidlease_leases_expired", "PIDs whose lease has ended.")
LEASES = _define("gauge", "pidlease_leases", "Leases that are kept.")
RING_USED = _define("gauge", "pidlease_lease_ring_used", "Slots of the ring that are taken.")
RING_CAPACITY = _define("gauge", "pidlease_lease_ring_capacity", "Slots that the ring has.")
LEASE_LENGTH = _define("gauge", "pidlease_lease_length_seconds", "How long a lease is.")
LEASE_SECONDS = _define(
    "histogram",
    "pidlease_lease_seconds",
    "How long a lease took that was granted or refused.",
    "door",
)
BLOCK_LEFT = _define(
    "gauge", "pidlease_pid_block_left", "PIDs to lease before another block is needed."
)
PREFETCH_SECONDS = _define(
    "gauge", "pidlease_pid_prefetch_seconds", "How long the last block took."
)
PREFETCH_FAILURES = _define(
    "counter", "pidlease_pid_prefetch_failures", "Blocks that could not be had."
)
COORDINATOR_CONNECTED = _define(
    "gauge", "pidlease_coordinator_connected",
    "1 while the coordinator can be asked; a file always can.", "coordinator",
)  # fmt: skip

# ---------------------------------------------------------------------- judging and the log

JUDGED = _define(
    "counter", "pidlease_batches_judged", "Batches, by what became of them.",
    "door", "topic", "policy", "outcome",
)  # fmt: skip
APPENDED_BATCHES = _define("counter", "pidlease_appended_batches", "Batches appended.", "topic")
APPENDED_RECORDS = _define("counter", "pidlease_appended_records", "Records appended.", "topic")
APPENDED_BYTES = _define("counter", "pidlease_appended_bytes", "Bytes appended.", "topic")
READ_BATCHES = _define(
    "counter", "pidlease_read_batches", "Batches that consumers were given.", "topic"
)
READ_RECORDS = _define("counter", "pidlease_read_records", "Records in them; holes count.", "topic")
READ_BYTES = _define("counter", "pidlease_read_bytes", "Bytes of them.", "topic")
APPENDS = _define("counter", "pidlease_appends", "Appends, each of one batch or more.")
JOINED = _define("counter", "pidlease_joined_retries", "Retries that waited for their original.")
DIFFERING = _define(
    "counter", "pidlease_differing_duplicates", "Duplicates by their numbers, with other bytes."
)
PUSHED = _define(
    "counter", "pidlease_pushed_batches", "Batches that were judged and sent to the log."
)
PERSISTED = _define(
    "counter", "pidlease_persisted_batches", "Those of them that the log acknowledged."
)
FAILED = _define("counter", "pidlease_failed_batches", "Those of them that it did not.")
IN_FLIGHT = _define("gauge", "pidlease_in_flight_batches", "Batches on their way to the log.")
PRODUCERS = _define("gauge", "pidlease_producers", "Producers known, over all partitions.")
APPEND_SECONDS = _define(
    "histogram", "pidlease_append_seconds", "How long an append to the own log took."
)
FSYNC_SECONDS = _define("histogram", "pidlease_fsync_seconds", "How long an fsync of a log took.")

# ---------------------------------------------------------------------- snapshots and the start

SNAPSHOTS = _define("counter", "pidlease_snapshots", "Snapshots taken.")
SNAPSHOT_FAILURES = _define("counter", "pidlease_snapshot_failures", "Snapshots that failed.")
SNAPSHOT_SECONDS = _define("gauge", "pidlease_snapshot_seconds", "How long the last snapshot took.")
SNAPSHOT_DELAY = _define(
    "gauge", "pidlease_snapshot_delay_seconds", "The longest that anything else waited for it."
)
SNAPSHOT_AGE = _define("gauge", "pidlease_snapshot_age_seconds", "Age of the newest snapshot.")
SNAPSHOT_ROWS = _define("gauge", "pidlease_snapshot_rows", "Rows of the newest snapshot.")
SNAPSHOT_BYTES = _define("gauge", "pidlease_snapshot_bytes", "Its size on the disk.")
REPLAY_PARTITIONS = _define(
    "gauge", "pidlease_replay_partitions", "Partitions that the start replays."
)
REPLAY_DONE = _define("gauge", "pidlease_replay_partitions_done", "Those that it has replayed.")
REPLAY_LEFT = _define(
    "gauge", "pidlease_replay_offsets_left", "Offsets that it has still to replay."
)

# ---------------------------------------------------------------------- the doors

KAFKA_REQUEST_SECONDS = _define(
    "histogram", "pidlease_kafka_request_seconds", "From a whole request to its answer.", "api"
)
KAFKA_ERRORS = _define(
    "counter",
    "pidlease_kafka_errors",
    "Error codes that Kafka clients were told: of each partition by Produce and Fetch, and those"
    " that an answer as a whole has.",
    "api",
    "code",
)
KAFKA_MALFORMED = _define(
    "counter", "pidlease_kafka_malformed_requests", "Requests that were none."
)
KAFKA_REFUSED = _define(
    "counter", "pidlease_kafka_refused_connections", "Connections beyond the limit."
)
KAFKA_CONNECTIONS = _define("gauge", "pidlease_kafka_connections", "Clients connected.")
KAFKA_PAUSED = _define(
    "gauge", "pidlease_kafka_paused_connections",
    "Those that are not read from: the log, the memory or they themselves are slow.",
)  # fmt: skip
KAFKA_MEMORY = _define("gauge", "pidlease_kafka_memory_bytes", "Held by requests and answers.")
KAFKA_MEMORY_LIMIT = _define(
    "gauge", "pidlease_kafka_memory_limit_bytes", "What they may hold at most."
)
HTTP_REQUEST_SECONDS = _define(
    "histogram",
    "pidlease_http_request_seconds",
    "From a request's head to its whole answer.",
    "route",
)
HTTP_RESPONSES = _define(
    "counter", "pidlease_http_responses", "Answers, by their status code.", "route", "code"
)

# ---------------------------------------------------------------------- in front of Kafka

FORWARD_SECONDS = _define(
    "histogram", "pidlease_forward_seconds", "From a batch sent on to Kafka's answer."
)
FORWARD_FAILURES = _define(
    "counter",
    "pidlease_forward_failures",
    "Batches that Kafka did not take, or nobody knows.",
    "code",
)
WRITERS_TAKEN = _define(
    "counter", "pidlease_writers_taken", "Writers of partitions taken, or renewed."
)
WRITERS_FENCED = _define("counter", "pidlease_writers_fenced", "Writers that another server took.")

# ---------------------------------------------------------------------- producers of ours

_OF_CLIENTS: Final = {
    "records": "Records acknowledged, duplicates included.",
    "batches": "Batches acknowledged.",
    "bytes": "Bytes of acknowledged batches.",
    "duplicates": "Records that had been in the log before.",
    "retries": "Batches sent again.",
    "requests": "Produce requests.",
    "reconnects": "Connections made anew.",
    "leases": "Leases granted.",
    "switches": "PIDs replaced before their lease ended.",
}
#: By the field of `client.metrics.ProducerMetrics`.
CLIENT: Final = {
    field: _define("counter", f"pidlease_client_{field}", text)
    for field, text in _OF_CLIENTS.items()
}
CLIENT_BUFFERED = _define("gauge", "pidlease_client_buffered_bytes", "Bytes that wait to be sent.")
CLIENT_ERRORS = _define("counter", "pidlease_client_errors", "Records that failed.", "kind")
CLIENT_REFUSALS = _define(
    "counter", "pidlease_client_refusals", "Batches refused by the server.", "code"
)

# ---------------------------------------------------------------------- copiers

_OF_COPIERS: Final = {
    "records": "Records at the destination, duplicates included.",
    "bytes": "Bytes of the source copied.",
    "batches": "Batches acknowledged.",
    "duplicates": "Records that had been at the destination before.",
    "commits": "Checkpoints saved.",
    "commit_failures": "Checkpoints that could not be saved.",
    "carried": "PIDs replaced after their lease had ended.",
    "assigned": "Partitions that came to this copier.",
}
#: By the field of `client.copier.metrics.CopyMetrics`.
COPY: Final = {
    field: _define("counter", f"pidlease_copy_{field}", text) for field, text in _OF_COPIERS.items()
}
_PLACE: Final = ("topic", "partition")
COPY_LAG = _define(
    "gauge", "pidlease_copy_lag", "Records of the source that are not copied yet.", *_PLACE
)
COPY_OFFSET = _define("gauge", "pidlease_copy_offset", "The source's next record.", *_PLACE)

# ---------------------------------------------------------------------- Spark's sink

SPARK_BATCHES = _define("counter", "pidlease_spark_micro_batches", "Micro-batches done.")
SPARK_FAILURES = _define("counter", "pidlease_spark_failures", "Ends by an error.")
SPARK_FENCED = _define("counter", "pidlease_spark_fenced", "Ends because another run took over.")
SPARK_SECONDS = _define(
    "gauge", "pidlease_spark_micro_batch_seconds", "How long the last micro-batch took."
)
SPARK_RATE = _define("gauge", "pidlease_spark_rows_per_second", "Rows of the last one by second.")
SPARK_LAG = _define(
    "gauge", "pidlease_spark_lag", "Records of the source that are not read yet.", *_PLACE
)
SPARK_SENT = _define(
    "counter", "pidlease_spark_sent", "Rows at the destination, duplicates included.", *_PLACE
)
SPARK_DUPLICATES = _define(
    "counter", "pidlease_spark_duplicates", "Rows that had been there before.", *_PLACE
)
SPARK_HIGH = _define("gauge", "pidlease_spark_high", "H: the last number that is there.", *_PLACE)
