"""Who is fenced, who leaves gaps, who comes twice."""

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
_WHO: Final = "{{topic}} {{policy}} {{door}}"
_LABELS: Final = ("topic", "policy", "door")


def _outcome(outcome: str, *by: str) -> str:
    return rate(metrics.JUDGED, *by, match=(f'outcome="{outcome}"',))


def _ours(name: str) -> Query:
    return Query(rate(metrics.CLIENT[name], "instance", who="client"), "{{instance}} " + name)


_REFUSED: Final = "overlap|malformed|unknown|no_lease|forbidden|session_ended|refused|not_owner"
_DUPLICATES: Final = f"({_outcome('duplicate', 'topic')}) / ({rate(metrics.JUDGED, 'topic')})"

_FENCED: Final = Row("Who is fenced", (
    graph(
        "Fenced batches",
        "None, or a short peak when a producer is replaced: its former self is told to end. Steady:"
        " two producers take one name from each other. Runbook: FencingStorm.",
        BATCHES, Query(_outcome("fenced", *_LABELS), _WHO), width=16,
    ),
    table(
        "Fenced since the servers' start",
        "The topic, the door and the policy (kafka: unmodified clients; strict, monotonic: leased,"
        " most by name; epoch: Producer-Id) say whom to look for. Also the very first shows here.",
        COUNT, total(metrics.JUDGED, *_LABELS, match=('outcome="fenced"',)),
    ),
))  # fmt: skip

_GAPS: Final = Row("Who leaves gaps, who comes twice", (
    graph(
        "Gaps",
        "None. A batch came whose predecessor did not: a client that gave up a batch and went on,"
        " several connections in one epoch, or a lost log. Runbook: GapRate.",
        BATCHES, Query(_outcome("gap", *_LABELS), _WHO),
    ),
    graph(
        "Duplicates",
        "Low, with a peak behind each hiccup of the network: retries that were caught.",
        BATCHES, Query(_outcome("duplicate", *_LABELS), _WHO),
    ),
    graph(
        "Duplicates, as a part of all batches",
        "Below 0.01. More: answers get lost or come too late, so that clients send all again.",
        SHARE, Query(_DUPLICATES, "{{topic}}"),
    ),
    graph(
        "Refused for other reasons",
        "None. forbidden: the topic does not take this policy; no_lease: the ring is full;"
        " not_owner: another server writes; malformed, overlap: a client that counts wrongly.",
        BATCHES,
        Query(rate(metrics.JUDGED, "outcome", "topic", match=(f'outcome=~"{_REFUSED}"',)),
              "{{outcome}} {{topic}}"),
    ),
    graph(
        "Retries that waited for their original",
        "Near 0. Clients' time-outs are shorter than an append takes.",
        BATCHES, Query(rate(metrics.JOINED, "instance"), "{{instance}}"),
    ),
    number(
        "Duplicates with other bytes",
        "0. A producer used a number for two things; the first is in the log. Its log lines name"
        " it.",
        COUNT, total(metrics.DIFFERING), limits=Limits(1, 1), width=4,
    ),
    number(
        "Producers known",
        "Over all partitions, within a lease length. It says how large snapshots are.",
        COUNT, total(metrics.PRODUCERS), width=4,
    ),
))  # fmt: skip

_TOLD: Final = Row("What clients are told", (
    graph(
        "Errors to Kafka clients",
        "None for long. OUT_OF_ORDER_SEQUENCE_NUMBER: gaps. INVALID_PRODUCER_EPOCH: fenced."
        " COORDINATOR_LOAD_IN_PROGRESS: no PID to lease. REBALANCE_IN_PROGRESS comes with each"
        " change of a group.",
        PER_SECOND, Query(rate(metrics.KAFKA_ERRORS, "api", "code"), "{{api}} {{code}}"), width=12,
    ),
    graph(
        "Refusals to HTTP clients",
        "409: a gap or a fence. 410: a lease has ended. 503: try again later. 5xx else: report it.",
        PER_SECOND,
        Query(rate(metrics.HTTP_RESPONSES, "route", "code", match=('code=~"[45].."',)),
              "{{code}} {{route}}"),
        width=12,
    ),
))  # fmt: skip

_OURS: Final = Row("Producers of ours (where applications expose their metrics)", (
    graph(
        "Records, and duplicates of them",
        "Duplicates behind a lost answer only: these were told of what had been stored.",
        RECORDS, _ours("records"), _ours("duplicates"),
    ),
    graph(
        "Retries, connections made anew, PIDs replaced",
        "Near 0. Retries without reconnects: the server is slow.",
        PER_SECOND, _ours("retries"), _ours("reconnects"), _ours("switches"),
    ),
    graph(
        "Records that failed, by kind",
        "None, and no line at all. What is here was not stored; the application was told.",
        RECORDS,
        Query(rate(metrics.CLIENT_ERRORS, "instance", "kind", who="client"),
              "{{instance}} {{kind}}"),
    ),
    graph(
        "Bytes that wait to be sent",
        "Level. Growing to the producer's bound: the server, or the network, is slower than the"
        " application.",
        BYTES, Query(series(metrics.CLIENT_BUFFERED, who="client"), "{{instance}}"),
    ),
))  # fmt: skip

FENCING: Final = Board(
    "pidlease-fencing", "pidlease: producers and fencing",
    "What became of batches that were not simply appended, and who sent them.",
    (INSTANCE, TOPIC, _CLIENT), (_FENCED, _GAPS, _TOLD, _OURS),
)  # fmt: skip
