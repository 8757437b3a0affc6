"""The dashboard of the log, its disk, snapshots, and the start."""

from typing import Final

from deploy.grafana.boards.choices import INSTANCE, TOPIC
from deploy.grafana.panels import (
    BATCHES,
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    RECORDS,
    SECONDS,
    SHARE,
    Board,
    Limits,
    Query,
    Row,
    graph,
    latency,
    number,
)
from deploy.grafana.promql import gained, rate, series, share, total
from pidlease.observability import metric_catalogue as metrics

_TOGETHER: Final = f"{rate(metrics.PERSISTED, 'instance')} / {rate(metrics.APPENDS, 'instance')}"
_FULL_IN: Final = f"predict_linear({series(metrics.DISK_FREE)}[1h], 4 * 3600)"

_NOW: Final = Row("Now", (
    number("Topics", "Created by an administrator, or on first use.", COUNT, total(metrics.TOPICS)),
    number(
        "Partitions", "At most partitions-max (20,000) for a server.", COUNT,
        total(metrics.PARTITIONS),
    ),
    number(
        "Partitions stopped",
        "0. Runbook: PartitionStopped.",
        COUNT, total(metrics.PARTITIONS_STOPPED), limits=Limits(1, 1),
    ),
    number(
        "Batches that failed",
        "0 within the time shown. The disk (or Kafka) refused them; they are not in the log, and"
        " clients send them again.",
        COUNT, gained(metrics.FAILED), limits=Limits(1, 10),
    ),
    number(
        "Snapshots that failed",
        "0 within the time shown. The last good one stays; a start takes longer. Runbook:"
        " SnapshotTooOld.",
        COUNT, gained(metrics.SNAPSHOT_FAILURES), limits=Limits(1, 3),
    ),
    number(
        "Disk left",
        "Above 0.2. Runbook: DiskFilling.",
        SHARE, share(metrics.DISK_FREE, metrics.DISK_SIZE), "{{instance}}",
        limits=Limits(0.2, 0.1, falling=True),
    ),
))  # fmt: skip

_IN: Final = Row("Into the log", (
    graph(
        "Records appended", "Whatever is usual for the topic.", RECORDS,
        Query(rate(metrics.APPENDED_RECORDS, "topic"), "{{topic}}"),
    ),
    graph(
        "Bytes appended", "Times the retention: the disk space needed.", BYTES_PER_SECOND,
        Query(rate(metrics.APPENDED_BYTES, "topic"), "{{topic}}"),
    ),
    graph(
        "Batches appended",
        "Many for few records: clients do not batch (linger), and each batch costs the server.",
        BATCHES, Query(rate(metrics.APPENDED_BATCHES, "topic"), "{{topic}}"),
    ),
    latency(
        "Time of an append",
        "With fsync=batch the disk's fsync and little more; otherwise below a millisecond.",
        metrics.APPEND_SECONDS, "instance",
    ),
    latency(
        "Time of an fsync",
        "An SSD: some milliseconds at most. p99 of 100 ms and more: the disk is shared, or worn.",
        metrics.FSYNC_SECONDS, "instance",
    ),
    graph(
        "Batches in one append",
        "1 while there is little to do; more under load, when waiting batches share an fsync.",
        COUNT, Query(_TOGETHER, "{{instance}}"),
    ),
    graph(
        "Sent to the log, and acknowledged by it",
        "Equal. Different: appends fail, or hang.",
        BATCHES,
        Query(rate(metrics.PUSHED, "instance"), "{{instance}} sent"),
        Query(rate(metrics.PERSISTED, "instance"), "{{instance}} acknowledged"),
    ),
    graph(
        "Batches in flight",
        "Few. Growing: the log is slower than the clients, which are paused in the end.",
        COUNT, Query(series(metrics.IN_FLIGHT), "{{instance}}"),
    ),
    graph(
        "Free in four hours",
        "Above 0, at the pace of the last hour. Below: remove something, or shorten retention.ms.",
        BYTES, Query(_FULL_IN, "{{instance}} in 4 h"),
        Query(series(metrics.DISK_FREE), "{{instance}} now"),
    ),
))  # fmt: skip

_OUT: Final = Row("Out of the log", (
    graph(
        "Records read", "By topic, for all readers together; a record read twice counts twice.",
        RECORDS, Query(rate(metrics.READ_RECORDS, "topic"), "{{topic}}"),
    ),
    graph(
        "Bytes read", "Much more than is appended: a consumer reads from the beginning.",
        BYTES_PER_SECOND, Query(rate(metrics.READ_BYTES, "topic"), "{{topic}}"),
    ),
    graph(
        "Batches read", "The server returns batches as they were appended.",
        BATCHES, Query(rate(metrics.READ_BATCHES, "topic"), "{{topic}}"),
    ),
))  # fmt: skip

_SNAPSHOTS: Final = Row("Snapshots", (
    graph(
        "Age of the newest",
        "Up to snapshot-seconds (60 s) while records come; it grows while none do. Growing while"
        " records come: they fail. Runbook: SnapshotTooOld.",
        SECONDS, Query(series(metrics.SNAPSHOT_AGE), "{{instance}}"),
    ),
    graph(
        "Time of a snapshot, and delay of others",
        "Seconds for a million producers; appends are delayed by some milliseconds.",
        SECONDS,
        Query(series(metrics.SNAPSHOT_SECONDS), "{{instance}} took"),
        Query(series(metrics.SNAPSHOT_DELAY), "{{instance}} waited"),
    ),
    graph(
        "Snapshots taken", "One in snapshot-seconds, while records come.", "ops",
        Query(rate(metrics.SNAPSHOTS, "instance"), "{{instance}}"),
    ),
    graph(
        "Rows", "One for each producer on each partition, and each lease.", COUNT,
        Query(series(metrics.SNAPSHOT_ROWS), "{{instance}}"), width=12,
    ),
    graph(
        "Size", "Some tens of bytes for a row; a few snapshots are kept.", BYTES,
        Query(series(metrics.SNAPSHOT_BYTES), "{{instance}}"), width=12,
    ),
))  # fmt: skip

_START: Final = Row("The start", (
    graph(
        "Ready", "1. 0 while it recovers, waits for Kafka, stands by or stops.", COUNT,
        Query(series(metrics.READY), "{{instance}}"),
    ),
    graph(
        "Offsets to replay",
        "0. During a start it falls to 0; level for minutes: the disk or Kafka does not respond."
        " Runbook: ReplaySlow.",
        COUNT, Query(series(metrics.REPLAY_LEFT), "{{instance}}"),
    ),
    graph(
        "Partitions to replay, and those done", "Equal when the start is over.", COUNT,
        Query(series(metrics.REPLAY_PARTITIONS), "{{instance}} of"),
        Query(series(metrics.REPLAY_DONE), "{{instance}} done"),
    ),
))  # fmt: skip

LOG: Final = Board(
    "pidlease-log", "pidlease: log and snapshots",
    "Appends and reads, the latency of the disk, snapshots and the start.",
    (INSTANCE, TOPIC), (_NOW, _IN, _OUT, _SNAPSHOTS, _START),
)  # fmt: skip
