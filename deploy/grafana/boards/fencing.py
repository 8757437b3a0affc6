"""The dashboard of fenced producers, sequence gaps, duplicates, and errors."""

from typing import Final

from deploy.grafana.boards.choices import INSTANCE, TOPIC
from deploy.grafana.panels import (
    BATCHES,
    BYTES,
    COUNT,
    PER_SECOND,
    RECORDS,
    SHARE,
    Board,
    Limits,
    Query,
    Row,
    Variable,
    graph,
    number,
    table,
)
from deploy.grafana.promql import rate, series, total
from pidlease.observability import metric_catalogue as metrics

_CLIENT: Final = Variable(
    "client", "Client", "label_values(pidlease_client_records_total, instance)"
)
_LEGEND: Final = "{{topic}} {{policy}} {{door}}"
_LABELS: Final = ("topic", "policy", "door")


def _outcome(outcome: str, *by: str) -> str:
    return rate(metrics.JUDGED, *by, match=(f'outcome="{outcome}"',))


def _ours(name: str) -> Query:
    return Query(rate(metrics.CLIENT[name], "instance", variable="client"), "{{instance}} " + name)


_REFUSED: Final = (
    "overlap|malformed|unknown|no_lease|forbidden|session_ended|refused|not_owner|key_reused"
)
_DUPLICATES: Final = f"({_outcome('duplicate', 'topic')}) / ({rate(metrics.JUDGED, 'topic')})"

_FENCED: Final = Row("Fenced producers", (
    graph(
        "Fenced batches",
        "None, or a short peak when a producer is replaced: its predecessor gets an error. Steady:"
        " two producers take one name from each other. Runbook: FencingStorm.",
        BATCHES, Query(_outcome("fenced", *_LABELS), _LEGEND), width=16,
    ),
    table(
        "Fenced since the servers' start",
        "Topic, listener and policy (kafka: unmodified clients; strict, monotonic: leased, most by"
        " name; epoch: Producer-Id) identify the producer. The very first one shows here, too.",
        COUNT, total(metrics.JUDGED, *_LABELS, match=('outcome="fenced"',)),
    ),
))  # fmt: skip

_GAPS: Final = Row("Sequence gaps and duplicates", (
    graph(
        "Sequence gaps",
        "None. A batch came without the one before it: a client that gave up a batch and went on,"
        " several connections in one epoch, or a lost log. Runbook: GapRate.",
        BATCHES, Query(_outcome("gap", *_LABELS), _LEGEND),
    ),
    graph(
        "Duplicates",
        "Low, with a peak after each failure of the network: retries that were caught.",
        BATCHES, Query(_outcome("duplicate", *_LABELS), _LEGEND),
    ),
    graph(
        "Duplicates, as a share of all batches",
        "Below 0.01. More: responses get lost or are late, so clients send batches again.",
        SHARE, Query(_DUPLICATES, "{{topic}}"),
    ),
    graph(
        "Refused for other reasons",
        "None. forbidden: the topic does not allow this policy; no_lease: the lease table is full;"
        " not_owner: another server writes; malformed, overlap: a client with wrong numbers;"
        " key_reused: one Idempotency-Key for two requests.",
        BATCHES,
        Query(rate(metrics.JUDGED, "outcome", "topic", match=(f'outcome=~"{_REFUSED}"',)),
              "{{outcome}} {{topic}}"),
    ),
    graph(
        "Retries that waited for their original",
        "Near 0. More: the timeouts of clients are shorter than an append.",
        BATCHES, Query(rate(metrics.JOINED, "instance"), "{{instance}}"),
    ),
    number(
        "Duplicates with other bytes",
        "0. A producer used one sequence number for two records; the first is in the log. The log"
        " names the producer.",
        COUNT, total(metrics.DIFFERING), limits=Limits(1, 1), width=4,
    ),
    number(
        "Raised epochs",
        "0. A record timed out in a Kafka client, which then sent others again as new ones: they"
        " may be in the log twice. Raise the client's timeout.",
        COUNT, total(metrics.EPOCHS_RAISED), limits=Limits(1, 100), width=4,
    ),
    number(
        "Producers known",
        "Over all partitions, within a lease length. Snapshots grow with it.",
        COUNT, total(metrics.PRODUCERS), width=4,
    ),
))  # fmt: skip

_ERRORS: Final = Row("Errors to clients", (
    graph(
        "Errors to Kafka clients",
        "None for long. OUT_OF_ORDER_SEQUENCE_NUMBER: gaps. INVALID_PRODUCER_EPOCH: fenced."
        " COORDINATOR_LOAD_IN_PROGRESS: no PID to lease. REBALANCE_IN_PROGRESS comes with each"
        " change of a group.",
        PER_SECOND, Query(rate(metrics.KAFKA_ERRORS, "api", "code"), "{{api}} {{code}}"), width=12,
    ),
    graph(
        "Errors to HTTP clients",
        "409: a gap, or fenced. 410: a lease has ended. 503: retry later. Other 5xx: report it.",
        PER_SECOND,
        Query(rate(metrics.HTTP_RESPONSES, "route", "code", match=('code=~"[45].."',)),
              "{{code}} {{route}}"),
        width=12,
    ),
))  # fmt: skip

_OURS: Final = Row("LeasedProducer (where applications expose its metrics)", (
    graph(
        "Records, and duplicates of them",
        "Duplicates only after a lost response: these records had been stored.",
        RECORDS, _ours("records"), _ours("duplicates"),
    ),
    graph(
        "Retries, new connections, PIDs replaced",
        "Near 0. Retries without reconnects: the server is slow.",
        PER_SECOND, _ours("retries"), _ours("reconnects"), _ours("switches"),
    ),
    graph(
        "Records that failed, by kind",
        "None, and no line at all. These records were not stored; the application got an error.",
        RECORDS,
        Query(rate(metrics.CLIENT_ERRORS, "instance", "kind", variable="client"),
              "{{instance}} {{kind}}"),
    ),
    graph(
        "Bytes that wait to be sent",
        "Level. Growing to the producer's limit: the server or the network is slower than the"
        " application.",
        BYTES, Query(series(metrics.CLIENT_BUFFERED, variable="client"), "{{instance}}"),
    ),
))  # fmt: skip

FENCING: Final = Board(
    "pidlease-fencing", "pidlease: producers and fencing",
    "Batches that were not simply appended, and the clients that sent them.",
    (INSTANCE, TOPIC, _CLIENT), (_FENCED, _GAPS, _ERRORS, _OURS),
)  # fmt: skip
