"""The engine's numbers as metrics."""

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import Metric

from pidlease.core.pid import Policy
from pidlease.engine.engine import Engine, wall_clock_ms
from pidlease.metrics import counter, gauge, labelled_counter

_POLICY_NAMES: Final = ("none", *(policy.name.lower() for policy in Policy))


def engine_metrics(engine: Engine) -> Iterable[Metric]:
    """All metrics of the engine, as they are now."""
    yield from _traffic(engine)
    yield from _leases(engine)
    yield from _snapshots(engine)
    partitions = engine.partitions()
    yield gauge("pidlease_ready", "1 when requests are taken.", float(engine.ready))
    yield from _replay(engine)
    yield gauge("pidlease_topics", "Topics.", len(engine.topics))
    yield gauge("pidlease_partitions", "Partitions.", len(partitions))
    stopped = sum(1 for partition in partitions if partition.log.stopped)
    yield gauge("pidlease_partitions_stopped", "Partitions that take no appends.", stopped)
    producers = sum(len(partition.producers) for partition in partitions)
    yield gauge("pidlease_producers", "Producers known, over all partitions.", producers)
    in_flight = sum(partition.in_flight for partition in partitions)
    yield gauge("pidlease_in_flight_batches", "Batches on their way to the log.", in_flight)


def _replay(engine: Engine) -> Iterable[Metric]:
    replay = engine.replay
    yield gauge("pidlease_replay_partitions", "Partitions that the start replays.", replay.total)
    yield gauge("pidlease_replay_partitions_done", "Those that it has replayed.", replay.done)
    yield gauge(
        "pidlease_replay_offsets_left",
        "Offsets that the start has still to replay.",
        replay.offsets_left,
    )


def _traffic(engine: Engine) -> Iterable[Metric]:
    counts = engine.counts
    verdicts = [
        ((policy.name.lower() if policy else "none", status.value.replace(" ", "_")), float(n))
        for (policy, status), n in counts.verdicts.items()
    ]
    appended = [((_POLICY_NAMES[i], "appended"), float(n)) for i, n in enumerate(counts.appended)]
    verdicts += [row for row in appended if row[1]]
    yield labelled_counter(
        "pidlease_batches_judged",
        "Batches by what became of them.",
        ("policy", "outcome"),
        verdicts,
    )
    yield counter("pidlease_appended_batches", "Batches appended.", counts.batches)
    yield counter("pidlease_appended_records", "Records appended.", counts.records)
    yield counter("pidlease_appended_bytes", "Bytes appended.", counts.bytes)
    yield counter("pidlease_appends", "Appends, each of one batch or more.", counts.appends)
    yield counter(
        "pidlease_joined_retries", "Retries that waited for their original.", counts.joined
    )
    yield counter(
        "pidlease_differing_duplicates",
        "Duplicates by their numbers, with other bytes.",
        counts.differing,
    )


def _leases(engine: Engine) -> Iterable[Metric]:
    leases = engine.leases
    yield counter("pidlease_leases_granted", "PIDs leased.", leases.granted)
    yield labelled_counter(
        "pidlease_leases_refused",
        "Leases refused.",
        ("reason",),
        [((reason.replace(" ", "_"),), float(n)) for reason, n in leases.refused.items()],
    )
    yield counter("pidlease_leases_expired", "PIDs whose lease ended.", leases.expired)
    yield gauge("pidlease_lease_ring_used", "Slots taken.", len(leases.ring))
    yield gauge("pidlease_lease_ring_capacity", "Slots there are.", leases.ring.capacity)
    yield gauge("pidlease_pid_block_left", "PIDs to lease before a new block.", leases.blocks.left)
    yield gauge(
        "pidlease_pid_prefetch_seconds",
        "How long the last block took.",
        leases.blocks.prefetch_seconds,
    )


def _snapshots(engine: Engine) -> Iterable[Metric]:
    keeper = engine.keeper
    yield counter("pidlease_snapshot_failures", "Snapshots that failed.", keeper.snapshot_failures)
    yield gauge(
        "pidlease_snapshot_seconds", "How long the last snapshot took.", keeper.snapshot_seconds
    )
    if keeper.newest is not None:
        age = (wall_clock_ms() - keeper.newest.created_ms) / 1000
        yield gauge("pidlease_snapshot_age_seconds", "Age of the newest snapshot.", age)
        rows = sum(keeper.newest.rows.values())
        yield gauge("pidlease_snapshot_rows", "Rows of the newest snapshot.", rows)
