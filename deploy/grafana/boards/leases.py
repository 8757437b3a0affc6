"""Who is leasing, and whether there is enough to lease."""

from typing import Final

from deploy.grafana.boards.choices import INSTANCE
from deploy.grafana.panels import (
    COUNT,
    PER_SECOND,
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
from deploy.grafana.promql import gained, rate, series, share, total
from pidlease.observability import metric_catalogue as metrics

_LASTS: Final = (
    f"{total(metrics.BLOCK_LEFT, 'instance')}"
    f" / clamp_min({rate(metrics.LEASES_GRANTED, 'instance')}, 0.001)"
)
_ROUTES: Final = 'route=~".*/leases.*"'

_NOW: Final = Row("Now", (
    number(
        "Leases",
        "As many as there were producers within a lease length: a producer that is restarted"
        " without a name takes a new one each time.",
        COUNT, total(metrics.LEASES),
    ),
    number(
        "Ring in use",
        "Below 0.8. At 1 leases are refused until others end. Runbook: LeaseRingNearlyFull.",
        SHARE, share(metrics.RING_USED, metrics.RING_CAPACITY), "{{instance}}",
        limits=Limits(0.8, 0.9),
    ),
    number(
        "PIDs left",
        "50 to 200: a block of 100, and the next one from 50 on. 0: runbook PidBlockExhausted.",
        COUNT, series(metrics.BLOCK_LEFT), "{{instance}}", limits=Limits(50, 1, falling=True),
    ),
    number(
        "Coordinator",
        "Connected. Away: leases go on to the end of the blocks that are there. Runbook:"
        " CoordinatorLost.",
        COUNT, series(metrics.COORDINATOR_CONNECTED), "{{instance}} {{coordinator}}",
        limits=Limits(1, 1, falling=True), words={"0": "away", "1": "connected"},
    ),
    number(
        "Length of a lease",
        "lease-seconds: 24 h unless set. A producer that is silent for longer is forgotten.",
        SECONDS, series(metrics.LEASE_LENGTH), "{{instance}}",
    ),
    number(
        "Blocks not had",
        "0 within what is shown. Otherwise the coordinator, or the disk, could not be written to.",
        COUNT, gained(metrics.PREFETCH_FAILURES), limits=Limits(1, 10),
    ),
))  # fmt: skip

_WHO: Final = Row("Who is leasing", (
    graph(
        "Leases granted by policy",
        "kafka: InitProducerId of unmodified clients, one for each start. strict and monotonic:"
        " clients of ours. A high steady rate: clients are restarted all the time, or a"
        " connection pool makes a producer for each request.",
        PER_SECOND, Query(rate(metrics.LEASES_GRANTED, "policy"), "{{policy}}"),
    ),
    graph(
        "Leases granted by server",
        "About even, where clients are spread evenly.",
        PER_SECOND, Query(rate(metrics.LEASES_GRANTED, "instance"), "{{instance}}"),
    ),
    graph(
        "Leases refused by reason",
        "None. ring_full: too many leases; no_block: no PIDs to be had. Empty until the first. Its"
        " first one shows in the table beside, not here: a rate needs two samples.",
        PER_SECOND,
        Query(rate(metrics.LEASES_REFUSED, "reason", "policy"), "{{reason}} {{policy}}"),
    ),
    table(
        "Refused since the servers' start",
        "Empty. Who was refused tries again by itself, and goes on once there are PIDs.",
        COUNT, total(metrics.LEASES_REFUSED, "instance", "reason", "policy"),
    ),
    graph(
        "Leases that ended",
        "As many as were granted a lease length ago. What was known of these producers is gone.",
        PER_SECOND, Query(rate(metrics.LEASES_EXPIRED, "instance"), "{{instance}}"),
    ),
    graph(
        "Answers to requests for leases",
        "200. 409 and 410: a producer that was replaced, or came back too late. 503: refused.",
        PER_SECOND,
        Query(
            rate(metrics.HTTP_RESPONSES, "route", "code", match=(_ROUTES,)), "{{code}} {{route}}"
        ),
    ),
))  # fmt: skip

_HOW: Final = Row("How long it takes, and how long it lasts", (
    latency(
        "Time to lease",
        "Below a millisecond from a block that is there; the coordinator's time under a name.",
        metrics.LEASE_SECONDS, "door",
    ),
    graph(
        "Time that the last block took",
        "A few milliseconds; with ZooKeeper those of its write. Near zookeeper-timeout-seconds:"
        " look at ZooKeeper's disk.",
        SECONDS, Query(series(metrics.PREFETCH_SECONDS), "{{instance}}"),
    ),
    graph(
        "PIDs left, in time",
        "How long they last at this rate without the coordinator. Seconds: leases are granted too"
        " fast for an outage to go unseen.",
        SECONDS, Query(_LASTS, "{{instance}}"),
    ),
))  # fmt: skip

LEASES: Final = Board(
    "pidlease-leases", "pidlease: leases",
    "Who is leasing PIDs, who is refused, and how long the PIDs last.",
    (INSTANCE,), (_NOW, _WHO, _HOW),
)  # fmt: skip
