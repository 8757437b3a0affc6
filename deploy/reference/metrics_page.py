"""docs/reference/metrics.md: every metric, from the catalogue."""

from typing import Final, NamedTuple

from deploy.reference.markdown_tables import NOTE, cell, code, table
from pidlease.observability.metric_catalogue import CATALOGUE, Definition

_INTRODUCTION: Final = """\
`GET /metrics` on the HTTP port returns the server's metrics in Prometheus's text format. Copiers, Python producers and
Spark queries expose theirs in their own processes. [Monitor](../operate/monitor.md) says which of them to watch.

The names are those to use in queries. A histogram adds `_bucket`, `_sum` and `_count`. A PID is never a label, so the
number of series is bounded. A series with labels appears with its first event. The Prometheus client adds `process_*`.
"""


class _Section(NamedTuple):
    """A heading, the first metric under it, and the meaning of the labels."""

    title: str
    first: str
    text: str = ""


_SECTIONS: Final = (
    _Section("Server", "pidlease_build_info"),
    _Section(
        "Leases", "pidlease_leases_granted",
        "`reason` is `no_block` (the coordinator gave no block of PIDs in time) or `ring_full` (the lease table is full)."
        " `policy` is `kafka`, `strict`, `monotonic` or `epoch`. `door` is the listener, `http` or `kafka`."
        " `coordinator` is `kafka`, `zookeeper` or `file`.",
    ),
    _Section(
        "Validation and the log", "pidlease_batches_judged",
        "`outcome` is `appended`, `duplicate`, `gap`, `overlap`, `fenced`, `malformed`, `unknown`, `failed`, `stopped`,"
        " `no_lease`, `forbidden`, `session_ended`, `refused`, `not_owner` or `key_reused`. `policy` is `none` for a"
        " batch without a PID. `topic` is `(others)` for topics beyond the first 200. Pushed batches were validated and sent to the"
        " log, persisted ones were acknowledged by it: pushed = persisted + failed + in flight. With Kafka as the log,"
        " the metrics of reads stay at 0: Kafka counts them.",
    ),
    _Section("Snapshots and the start", "pidlease_snapshots"),
    _Section(
        "Listeners", "pidlease_kafka_request_seconds",
        "`api` is Kafka's name of a request. `code` is Kafka's name of an error, or an HTTP status. `route` is a method"
        " and a path of the HTTP API, `(none)` for any other. Fetch, JoinGroup and SyncGroup wait for records and for"
        " other members, so their times say nothing about the server.",
    ),
    _Section(
        "Kafka as the log", "pidlease_forward_seconds",
        "`code` is Kafka's name of the error. `UNKNOWN_OUTCOME` means that no response came: the connection ended"
        " before it, or no leader could be reached.",
    ),
    _Section(
        "Python producers", "pidlease_client_records",
        "An application registers them: `registry.register(ProducerCollector(lambda: producer.metrics))`"
        " ([Python client](../produce/python-client.md)).",
    ),
    _Section(
        "Copiers", "pidlease_copy_records",
        "Exposed with `pidlease copy --metrics-port` ([Copy a cluster](../copy-a-cluster.md)).",
    ),
    _Section(
        "Spark", "pidlease_spark_micro_batches", "Of streaming queries with the sink ([Spark](../spark.md))."
    ),
)  # fmt: skip


def metrics_page() -> str:
    """Return the page."""
    firsts = {each.first: each for each in _SECTIONS}
    groups: list[tuple[_Section, list[Definition]]] = []
    for definition in CATALOGUE.values():
        if definition.name in firsts:
            groups.append((firsts.pop(definition.name), []))
        groups[-1][1].append(definition)
    if firsts:
        raise ValueError(f"no such metrics: {', '.join(firsts)}")
    parts = [f"# Metrics\n\n{NOTE}\n\n{_INTRODUCTION}"]
    for section, definitions in groups:
        rows = [
            (code(each.exposed), each.kind, ", ".join(map(code, each.labels)), cell(each.text))
            for each in definitions
        ]
        parts.append(f"## {section.title}\n")
        parts += [f"{section.text}\n"] if section.text else []
        parts.append(table(("metric", "kind", "labels", "meaning"), rows))
    return "\n".join(parts)
