"""The dashboard of leases: granted and refused, and how long the PIDs last."""

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
        "One for each producer within a lease length; a producer without a name leases a new PID"
        " at each restart.",
        COUNT, total(metrics.LEASES),
    ),
    number(
        "Lease table in use",
        "Below 0.8. At 1 leases are refused until others end. Runbook: LeaseRingNearlyFull.",
        SHARE, share(metrics.RING_USED, metrics.RING_CAPACITY), "{{instance}}",
        limits=Limits(0.8, 0.9),
    ),
    number(
        "Idempotency keys in use",
        "Below 0.8. At 1 HTTP requests with new keys get 503 until others end: raise"
        " idempotency-keys-max.",
        SHARE, share(metrics.KEYS_USED, metrics.KEYS_CAPACITY), "{{instance}}",
        limits=Limits(0.8, 0.9),
    ),
    number(
        "PIDs left",
        "50 to 200: a block of 100, and the next one from 50 on. 0: runbook PidBlockExhausted.",
        COUNT, series(metrics.BLOCK_LEFT), "{{instance}}", limits=Limits(50, 1, falling=True),
    ),
    number(
        "Coordinator",
        "Connected. Away: leases are granted until the blocks at hand are used up. Runbook:"
        " CoordinatorLost.",
        COUNT, series(metrics.COORDINATOR_CONNECTED), "{{instance}} {{coordinator}}",
        limits=Limits(1, 1, falling=True), words={"0": "away", "1": "connected"},
    ),
    number(
        "Length of a lease",
        "lease-seconds: 24 h unless set. The state of a producer that is silent longer expires.",
        SECONDS, series(metrics.LEASE_LENGTH), "{{instance}}",
    ),
    number(
        "Blocks not allocated",
        "0 within the time shown. Otherwise writing to the coordinator, or to the disk, failed.",
        COUNT, gained(metrics.PREFETCH_FAILURES), limits=Limits(1, 10),
    ),
))  # fmt: skip

_GRANTS: Final = Row("Granted and refused", (
    graph(
        "Leases granted by policy",
        "kafka: InitProducerId of unmodified clients, one for each start. strict and monotonic:"
        " LeasedProducer. A high steady rate: clients are restarted all the time, or a"
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
        "None. ring_full: too many leases; no_block: no PIDs left. The first one shows in the table"
        " beside, not here: a rate needs two samples.",
        PER_SECOND,
        Query(rate(metrics.LEASES_REFUSED, "reason", "policy"), "{{reason}} {{policy}}"),
    ),
    table(
        "Refused since the servers' start",
        "Empty. A refused producer retries, and continues once there are PIDs.",
        COUNT, total(metrics.LEASES_REFUSED, "instance", "reason", "policy"),
    ),
    graph(
        "Leases that ended",
        "As many as were granted a lease length ago. The state of these producers has expired.",
        PER_SECOND, Query(rate(metrics.LEASES_EXPIRED, "instance"), "{{instance}}"),
    ),
    graph(
        "Responses to lease requests",
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
        "Below a millisecond from a block at hand; by name, the coordinator's response time.",
        metrics.LEASE_SECONDS, "door",
    ),
    graph(
        "Time to allocate the last block",
        "A few milliseconds; with ZooKeeper, its write time. Near zookeeper-timeout-seconds:"
        " look at ZooKeeper's disk.",
        SECONDS, Query(series(metrics.PREFETCH_SECONDS), "{{instance}}"),
    ),
    graph(
        "PIDs left, in time",
        "How long they last at this rate without the coordinator. Seconds: leases are granted too"
        " fast to survive an outage.",
        SECONDS, Query(_LASTS, "{{instance}}"),
    ),
))  # fmt: skip

LEASES: Final = Board(
    "pidlease-leases", "pidlease: leases",
    "PIDs leased and refused, and how long the PIDs last.",
    (INSTANCE,), (_NOW, _GRANTS, _HOW),
)  # fmt: skip
