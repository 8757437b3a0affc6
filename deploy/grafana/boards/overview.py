"""The overview dashboard: the state of the servers, their traffic, and latencies."""

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
    table,
)
from deploy.grafana.promql import WINDOW, quantile, rate, series, share, total
from pidlease.observability import metric_catalogue as metrics

_FENCED: Final = rate(metrics.JUDGED, match=('outcome="fenced"',))
_PROCESS: Final = '{instance=~"$instance"}'

_WELL: Final = Row("State", (
    number(
        "Servers ready",
        "As many as you run; one that stands by does not count. A missing one recovers (Log and"
        " snapshots, the start), or is down.",
        COUNT, total(metrics.READY), limits=Limits(1, 1, falling=True),
    ),
    number(
        "Partitions stopped",
        "0. Otherwise acknowledged bytes of these are damaged, or could not be made durable; the"
        " server's log names them. Runbook: PartitionStopped.",
        COUNT, total(metrics.PARTITIONS_STOPPED), limits=Limits(1, 1),
    ),
    number(
        "Fenced batches",
        "0, or a few for a moment when a producer is replaced. A steady rate: two producers share"
        " a name, or a zombie does not give up (Producers and fencing).",
        BATCHES, f"{_FENCED} or vector(0)", limits=Limits(0.1, 1),
    ),
    number(
        "Fullest lease table",
        "Below 0.8. At 1 no producer gets a PID until a lease ends (Leases).",
        SHARE, f"max ({share(metrics.RING_USED, metrics.RING_CAPACITY)})", limits=Limits(0.8, 0.9),
    ),
    number(
        "Fewest PIDs left",
        "Between 50 and 200 for each server. 0: no producer gets a PID (Leases).",
        COUNT, f"min ({series(metrics.BLOCK_LEFT)})", limits=Limits(50, 1, falling=True),
    ),
    number(
        "Oldest snapshot",
        "About snapshot-seconds (60 s) while records come; an idle server takes none. Old while"
        " records come: it fails (Log and snapshots).",
        SECONDS, f"max ({series(metrics.SNAPSHOT_AGE)})", limits=Limits(300, 900),
    ),
))  # fmt: skip

_TRAFFIC: Final = Row("Traffic", (
    graph(
        "Batches by outcome",
        "Nearly all appended. Duplicates are retries that were caught: harmless. Fenced and gap"
        " have panels in Producers and fencing; failed in Log and snapshots.",
        BATCHES, Query(rate(metrics.JUDGED, "outcome"), "{{outcome}}"),
    ),
    graph(
        "Records appended by topic",
        "Whatever is usual for the topic. Zero where there should be some: look at its producers.",
        RECORDS, Query(rate(metrics.APPENDED_RECORDS, "topic"), "{{topic}}"),
    ),
    graph(
        "Bytes in and out",
        "Read well below appended, for long: consumers do not keep up, or there are none.",
        BYTES_PER_SECOND,
        Query(rate(metrics.APPENDED_BYTES), "appended"), Query(rate(metrics.READ_BYTES), "read"),
    ),
))  # fmt: skip

_LATE: Final = Row("Latency", (
    graph(
        "Kafka requests, 99th percentile",
        "Produce: an append and its fsync, some milliseconds. Fetch waits for records, and"
        " JoinGroup for members: as long as clients allow. All at once slow: the event loop.",
        SECONDS, Query(quantile(0.99, metrics.KAFKA_REQUEST_SECONDS, "api"), "{{api}}"),
    ),
    graph(
        "HTTP requests, 99th percentile",
        "As Produce; GET of records waits as long as its client allows.",
        SECONDS, Query(quantile(0.99, metrics.HTTP_REQUEST_SECONDS, "route"), "{{route}}"),
    ),
    latency(
        "Event-loop lag",
        "p99 below 20 ms. It adds to every latency. High: no core is left for the server,"
        " its host pauses it, or requests are very large. Runbook: EventLoopLate.",
        metrics.EVENT_LOOP_LAG, "instance",
    ),
))  # fmt: skip

_ROOM: Final = Row("Resources", (
    graph(
        "Processor",
        "At most about 1 for the event loop, plus fsyncs and snapshots. Near 1 for long: spread"
        " topics over more servers.",
        COUNT, Query(f"rate(process_cpu_seconds_total{_PROCESS}[{WINDOW}])", "{{instance}}"),
        width=6,
    ),
    graph(
        "Memory of the process",
        "Level, with the number of producers and leases. Growing without end: report it.",
        BYTES, Query(f"process_resident_memory_bytes{_PROCESS}", "{{instance}}"), width=6,
    ),
    graph(
        "Memory of requests",
        "Well below its limit (memory-bytes-max). At the limit connections are paused: the log is"
        " slow, or clients do not read their responses.",
        SHARE, Query(share(metrics.KAFKA_MEMORY, metrics.KAFKA_MEMORY_LIMIT), "{{instance}}"),
        width=6,
    ),
    graph(
        "Connections",
        "Level. The server does not read from paused ones: the log or the clients are slow, memory"
        " is short, or a quota is used up. HTTP closed: beyond connections-max.",
        COUNT,
        Query(total(metrics.KAFKA_CONNECTIONS, "instance"), "{{instance}} Kafka"),
        Query(total(metrics.HTTP_CONNECTIONS, "instance"), "{{instance}} HTTP"),
        Query(total(metrics.KAFKA_PAUSED, "instance"), "{{instance}} paused"),
        Query(rate(metrics.HTTP_CLOSED, "instance"), "{{instance}} HTTP closed by second"), width=6,
    ),
    graph(
        "Throttled by quotas",
        "0 without quotas. Otherwise clients want more than their quotas allow: how often a second,"
        " and how many of them wait on average.",
        COUNT,
        Query(f"{rate(metrics.QUOTA_THROTTLES, 'quota')} or vector(0)", "{{quota}} by second"),
        Query(f"{rate(metrics.QUOTA_THROTTLED_SECONDS, 'quota')} or vector(0)", "{{quota}} wait"),
        width=8,
    ),
    graph(
        "Logins and refusals",
        "0 refused without a cause that you know: a client has a wrong password, an expired token,"
        " or no right to what it asks for. The audit log names it. Lost lines are missing there.",
        COUNT,
        Query(f"{rate(metrics.LOGINS, 'outcome')} or vector(0)", "logins: {{outcome}}"),
        Query(f"{rate(metrics.DENIED)} or vector(0)", "without a right"),
        Query(f"{rate(metrics.AUDIT_LOST)} or vector(0)", "audit lines lost"), width=8,
    ),
    graph(
        "Age of Kafka's ACLs",
        "Below 10 s. 0 where Kafka's ACLs do not count. While it grows, Kafka does not return its"
        " ACLs, and the previous ones stay in force: a right that was revoked there still counts.",
        SECONDS, Query(f"{total(metrics.ACLS_AGE, 'instance')} or vector(0)", "{{instance}}"),
        width=8,
    ),
    table(
        "Versions",
        "One version everywhere, except during an upgrade. log: embedded, or kafka (in front of"
        " Kafka).",
        COUNT, series(metrics.BUILD_INFO), width=8,
    ),
))  # fmt: skip

OVERVIEW: Final = Board(
    "pidlease-overview", "pidlease: overview",
    "Begin here. Each value that is coloured, or has jumped, has a dashboard of its own.",
    (INSTANCE, TOPIC), (_WELL, _TRAFFIC, _LATE, _ROOM),
)  # fmt: skip
