"""In front of Kafka: how it takes what is sent on."""

from typing import Final

from deploy.grafana.boards.choices import IN_FRONT, TOPIC
from deploy.grafana.panels import (
    BATCHES,
    COUNT,
    PER_SECOND,
    RECORDS,
    SECONDS,
    Board,
    Limits,
    Query,
    Row,
    graph,
    latency,
    number,
    table,
)
from deploy.grafana.promql import gained, quantile, rate, series, total
from pidlease.observability import metric_catalogue as metrics

_NOT_TAKEN: Final = 'outcome=~"failed|refused|not_owner"'

_NOW: Final = Row("Now", (
    number(
        "Servers that take requests",
        "One for each Kafka cluster; others stand by.",
        COUNT, total(metrics.READY), limits=Limits(1, 1, falling=True),
    ),
    number(
        "Servers that stand by",
        "As many as were started to. 0: there is nobody to take over.",
        COUNT, total(metrics.STANDING_BY),
    ),
    number(
        "Writers lost",
        "0 within what is shown. Another server, or a tool, has taken a partition's writer."
        " Runbook: WriterLost.",
        COUNT, gained(metrics.WRITERS_FENCED), limits=Limits(1, 1),
    ),
    number(
        "Topics awaited",
        "0. Others are in Kafka and cannot be read: a partition of theirs has no leader. Clients"
        " wait for them.",
        COUNT, total(metrics.TOPICS_AWAITED), limits=Limits(1, 100),
    ),
    number(
        "Topics not seen any more",
        "Those that were deleted within the last hour. More: brokers do not show what is there, or"
        " we have no right to see it.",
        COUNT, total(metrics.TOPICS_UNSEEN),
    ),
    number(
        "On their way to Kafka",
        "Few. Growing: Kafka is slower than clients send.",
        COUNT, total(metrics.IN_FLIGHT),
    ),
    number(
        "Offsets to read again",
        "0, but at a start: what stands in Kafka behind the last snapshot.",
        COUNT, total(metrics.REPLAY_LEFT), limits=Limits(1, 1_000_000),
    ),
    number(
        "Coordinator",
        "Connected. It says which server serves this cluster.",
        COUNT, series(metrics.COORDINATOR_CONNECTED), "{{instance}} {{coordinator}}",
        limits=Limits(1, 1, falling=True), words={"0": "away", "1": "connected"},
    ),
))  # fmt: skip

_ON: Final = Row("Sent on", (
    latency(
        "Time to Kafka's answer",
        "That of Kafka's own producers: some milliseconds, with acks of all replicas some more."
        " Near upstream-timeout-seconds: brokers hang.",
        metrics.FORWARD_SECONDS, "instance",
    ),
    graph(
        "What Kafka did not take, by code",
        "None. NOT_LEADER_OR_FOLLOWER: for a moment, when leaders move. NOT_ENOUGH_REPLICAS: a"
        " broker is down. UNKNOWN_OUTCOME: a connection was lost in the middle; it is read again"
        " what became of them. Empty until the first. Runbook: UpstreamFailing.",
        BATCHES, Query(rate(metrics.FORWARD_FAILURES, "instance", "code"), "{{instance}} {{code}}"),
    ),
    table(
        "Not taken since the servers' start",
        "Empty. Unlike rates, it shows the very first of a code, too.",
        COUNT, total(metrics.FORWARD_FAILURES, "instance", "code"),
    ),
    graph(
        "What clients were told of that",
        "None. failed: they send it again. refused: Kafka's reason is theirs (too large, no such"
        " topic). not_owner: they are to go to the other server.",
        BATCHES, Query(rate(metrics.JUDGED, "outcome", "topic", match=(_NOT_TAKEN,)),
                       "{{outcome}} {{topic}}"),
    ),
    graph(
        "Writers taken and lost",
        "Taken at a start, and again after any doubt. Lost: never.",
        PER_SECOND,
        Query(rate(metrics.WRITERS_TAKEN, "instance"), "{{instance}} taken"),
        Query(rate(metrics.WRITERS_FENCED, "instance"), "{{instance}} lost"),
    ),
    graph(
        "Records that Kafka took", "Whatever is usual for the topic.", RECORDS,
        Query(rate(metrics.APPENDED_RECORDS, "topic"), "{{topic}}"),
    ),
))  # fmt: skip

_CLIENTS: Final = Row("Clients", (
    graph(
        "Requests, 99th percentile",
        "As of Kafka itself, and a little more. Fetch, JoinGroup and Heartbeat are answered by"
        " Kafka, and wait as long as clients allow.",
        SECONDS, Query(quantile(0.99, metrics.KAFKA_REQUEST_SECONDS, "api"), "{{api}}"),
    ),
    graph(
        "Requests", "Whatever is usual.", PER_SECOND,
        Query(rate(metrics.KAFKA_REQUEST_SECONDS, "api", suffix="_count"), "{{api}}"),
    ),
    graph(
        "Connections, refused and malformed",
        "Level, 0 and 0. Refused: beyond connections-max. Malformed: somebody who speaks no Kafka.",
        COUNT,
        Query(series(metrics.KAFKA_CONNECTIONS), "{{instance}} connected"),
        Query(rate(metrics.KAFKA_REFUSED, "instance"), "{{instance}} refused by second"),
        Query(rate(metrics.KAFKA_MALFORMED, "instance"), "{{instance}} malformed by second"),
    ),
))  # fmt: skip

UPSTREAM: Final = Board(
    "pidlease-upstream", "pidlease: in front of Kafka",
    "How Kafka takes what is sent on to it. Servers with a log of their own are not shown here.",
    (IN_FRONT, TOPIC), (_NOW, _ON, _CLIENTS),
)  # fmt: skip
