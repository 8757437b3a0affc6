"""The dashboard of servers with Kafka as the log: the batches forwarded to it."""

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
        "Servers ready",
        "One for each Kafka cluster; others stand by.",
        COUNT, total(metrics.READY), limits=Limits(1, 1, falling=True),
    ),
    number(
        "Servers standing by",
        "As many as were started for it. 0: no server can take over.",
        COUNT, total(metrics.STANDING_BY),
    ),
    number(
        "Writers lost",
        "0 within the time shown. Another server, or a tool, has become a partition's writer."
        " Runbook: WriterLost.",
        COUNT, gained(metrics.WRITERS_FENCED), limits=Limits(1, 1),
    ),
    number(
        "Topics not loaded",
        "0. These are in Kafka and cannot be read: one of their partitions has no leader. Clients"
        " wait for them.",
        COUNT, total(metrics.TOPICS_AWAITED), limits=Limits(1, 100),
    ),
    number(
        "Topics not seen any more",
        "Those that were deleted within the last hour. More: brokers do not list all topics, or"
        " pidlease may not see them.",
        COUNT, total(metrics.TOPICS_UNSEEN),
    ),
    number(
        "Batches in flight to Kafka",
        "Few. Growing: Kafka is slower than the clients.",
        COUNT, total(metrics.IN_FLIGHT),
    ),
    number(
        "Offsets to replay",
        "0, except at a start: the offsets in Kafka after the last snapshot.",
        COUNT, total(metrics.REPLAY_LEFT), limits=Limits(1, 1_000_000),
    ),
    number(
        "Coordinator",
        "Connected. It says which server serves this cluster.",
        COUNT, series(metrics.COORDINATOR_CONNECTED), "{{instance}} {{coordinator}}",
        limits=Limits(1, 1, falling=True), words={"0": "away", "1": "connected"},
    ),
))  # fmt: skip

_ON: Final = Row("Forwarded", (
    latency(
        "Time to Kafka's response",
        "As for any producer of Kafka: some milliseconds, with acks of all replicas some more."
        " Near upstream-timeout-seconds: brokers hang.",
        metrics.FORWARD_SECONDS, "instance",
    ),
    graph(
        "Refused by Kafka, by code",
        "None. NOT_LEADER_OR_FOLLOWER: for a moment, when leaders move. NOT_ENOUGH_REPLICAS: a"
        " broker is down. UNKNOWN_OUTCOME: a connection was lost; the log shows whether they were"
        " stored. Empty until the first. Runbook: UpstreamFailing.",
        BATCHES, Query(rate(metrics.FORWARD_FAILURES, "instance", "code"), "{{instance}} {{code}}"),
    ),
    table(
        "Refused since the servers' start",
        "Empty. Unlike rates, it shows the very first one of a code, too.",
        COUNT, total(metrics.FORWARD_FAILURES, "instance", "code"),
    ),
    graph(
        "Errors to clients",
        "None. failed: they send the batch again. refused: they get Kafka's error (too large, no"
        " such topic). not_owner: they turn to the other server.",
        BATCHES, Query(rate(metrics.JUDGED, "outcome", "topic", match=(_NOT_TAKEN,)),
                       "{{outcome}} {{topic}}"),
    ),
    graph(
        "Writer takeovers and losses",
        "Takeovers at a start, and after a send with an unknown outcome. Losses: never.",
        PER_SECOND,
        Query(rate(metrics.WRITERS_TAKEN, "instance"), "{{instance}} taken"),
        Query(rate(metrics.WRITERS_FENCED, "instance"), "{{instance}} lost"),
    ),
    graph(
        "Records appended by Kafka", "Whatever is usual for the topic.", RECORDS,
        Query(rate(metrics.APPENDED_RECORDS, "topic"), "{{topic}}"),
    ),
))  # fmt: skip

_SHARED: Final = Row("Several active servers", (
    number(
        "Partitions without owner",
        "0, except for a moment when servers come and go. Runbook: PartitionsWithoutOwner.",
        COUNT, total(metrics.PARTITIONS_WITHOUT_OWNER), limits=Limits(1, 1),
    ),
    graph(
        "Partitions owned", "About as many for each server. Empty without --shared.",
        COUNT, Query(series(metrics.PARTITIONS_OWNED), "{{instance}}"),
    ),
    graph(
        "Servers known, and those that answer",
        "The same numbers for all: as many as run. Fewer that answer: a server was killed, hangs or"
        " cannot be reached. Moved: its partitions have other owners.",
        COUNT, Query(series(metrics.SERVERS), "{{instance}}"),
        Query(series(metrics.SERVERS_ANSWERING), "{{instance}} answering"),
        Query(gained(metrics.SILENT_SERVERS_MOVED, "instance"), "moved by {{instance}}"),
    ),
    graph(
        "Servers that divide the slots",
        "One. Two: they do not reach one another. Runbook: TwoDeciders.",
        COUNT, Query(series(metrics.DIVIDES_SLOTS), "{{instance}}"),
    ),
    graph(
        "Partitions moved", "None, except when servers come and go.", PER_SECOND,
        Query(rate(metrics.PARTITIONS_TAKEN_OVER, "instance"), "{{instance}} taken over"),
        Query(rate(metrics.PARTITIONS_HANDED_OVER, "instance"), "{{instance}} handed over"),
    ),
    latency(
        "Takeover", "Far below a second. More: there was much to read after the known states.",
        metrics.TAKEOVER_SECONDS, "instance",
    ),
    graph(
        "Partitions followed",
        "Together as many as are owned. Each server follows what it gets if the owner ends.",
        COUNT, Query(series(metrics.FOLLOWED_PARTITIONS), "{{instance}}"),
        Query(gained(metrics.STATES_FETCHED, "instance"), "{{instance}} fetched at once"),
    ),
    graph(
        "Age of the followed states",
        "1 s to 2 s. More: a server does not send its states. Runbook: FollowedStatesOld.",
        SECONDS, Query(series(metrics.FOLLOWER_LAG), "{{instance}}"),
    ),
    graph(
        "Offsets read by takeovers",
        "A second or two of what is appended. More: the states were old, see the age.",
        RECORDS, Query(rate(metrics.TAKEOVER_OFFSETS, "instance"), "{{instance}}"),
    ),
))  # fmt: skip

_CLIENTS: Final = Row("Clients", (
    graph(
        "Requests, 99th percentile",
        "As of Kafka itself, and a little more. Fetch, JoinGroup and Heartbeat go to Kafka, and"
        " wait as long as clients allow.",
        SECONDS, Query(quantile(0.99, metrics.KAFKA_REQUEST_SECONDS, "api"), "{{api}}"),
    ),
    graph(
        "Requests", "Whatever is usual.", PER_SECOND,
        Query(rate(metrics.KAFKA_REQUEST_SECONDS, "api", suffix="_count"), "{{api}}"),
    ),
    graph(
        "Connections, refused and malformed",
        "Level, 0 and 0. Refused: beyond connections-max. Malformed: a client of another"
        " protocol.",
        COUNT,
        Query(series(metrics.KAFKA_CONNECTIONS), "{{instance}} connected"),
        Query(rate(metrics.KAFKA_REFUSED, "instance"), "{{instance}} refused by second"),
        Query(rate(metrics.KAFKA_MALFORMED, "instance"), "{{instance}} malformed by second"),
    ),
))  # fmt: skip

UPSTREAM: Final = Board(
    "pidlease-upstream", "pidlease: in front of Kafka",
    "Batches forwarded to Kafka. Servers with the embedded log are not shown here.",
    (IN_FRONT, TOPIC), (_NOW, _ON, _SHARED, _CLIENTS),
)  # fmt: skip
