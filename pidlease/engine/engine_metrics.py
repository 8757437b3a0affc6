"""The engine's counters and gauges as metrics."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric

from pidlease.core.pid import Policy
from pidlease.engine.engine import Engine, wall_clock_ms
from pidlease.engine.leases.leases import Leases
from pidlease.engine.maintenance import Maintenance
from pidlease.engine.replay_progress import ReplayProgress
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.engine.topic_counts import Counts, TopicCounts
from pidlease.engine.topics.partition_moves import PartitionMoves
from pidlease.observability import metric_catalogue as metrics

_HTTP, _KAFKA = "http", "kafka"


def engine_metrics(engine: Engine) -> Iterable[Metric]:
    """Return all metrics of the engine, as of now."""
    yield from _partitions(engine)
    if engine.shared_cluster is not None and engine.moves is not None:
        yield from _shared(engine, engine.shared_cluster, engine.moves)
    yield from _topics(engine.counts)
    yield from _appends(engine.counts)
    yield from _leases(engine.leases)
    yield metrics.LEASE_SECONDS.histograms(
        {(listener,): each for listener, each in engine.counts.lease_seconds.items()}
    )
    yield from _snapshots(engine.maintenance)
    yield from _replay(engine.replay)


def _partitions(engine: Engine) -> Iterator[Metric]:
    partitions = engine.partitions()
    in_flight = sum(partition.in_flight for partition in partitions)
    counts = [each for _, each in engine.counts.topics()]
    persisted, failed = sum(c.batches for c in counts), sum(c.failed for c in counts)
    yield metrics.TOPICS.of(len(engine.topics))
    yield metrics.TOPICS_AWAITED.of(len(engine.awaited))
    yield metrics.TOPICS_UNSEEN.of(len(engine.unseen))
    yield metrics.PARTITIONS.of(len(partitions))
    yield metrics.PARTITIONS_STOPPED.of(sum(1 for each in partitions if each.stopped))
    yield metrics.PRODUCERS.of(sum(len(each.producers) for each in partitions))
    yield metrics.IN_FLIGHT.of(in_flight)
    yield metrics.PUSHED.of(persisted + failed + in_flight)
    yield metrics.PERSISTED.of(persisted)
    yield metrics.FAILED.of(failed)


def _shared(engine: Engine, cluster: SharedCluster, moves: PartitionMoves) -> Iterator[Metric]:
    members = cluster.view.members
    yield metrics.SERVERS.of(len(members))
    yield metrics.SERVERS_ANSWERING.of(len(members.keys() - cluster.pings.silent))
    yield metrics.DIVIDES_SLOTS.of(cluster.divides)
    yield metrics.SILENT_SERVERS_MOVED.of(cluster.silent_moved)
    yield metrics.PARTITIONS_OWNED.of(sum(not each.elsewhere for each in engine.partitions()))
    yield metrics.PARTITIONS_WITHOUT_OWNER.of(cluster.without_owner())
    yield metrics.PARTITIONS_TAKEN_OVER.of(moves.taken_over)
    yield metrics.PARTITIONS_HANDED_OVER.of(moves.handed_over)
    yield metrics.TAKEOVER_SECONDS.histogram(moves.seconds)
    yield metrics.TAKEOVER_OFFSETS.of(moves.offsets_read)
    if engine.follower is not None:
        followed = engine.follower.report().values()
        yield metrics.FOLLOWED_PARTITIONS.of(sum(each.partitions for each in followed))
        yield metrics.FOLLOWER_LAG.of(max((each.lag_seconds for each in followed), default=0.0))
        yield metrics.STATES_FETCHED.of(engine.follower.fetched)


def _topics(counts: Counts) -> Iterator[Metric]:
    topics = list(counts.topics())
    yield metrics.JUDGED.rows([row for name, each in topics for row in _judged(name, each)])
    of_each = {
        metrics.APPENDED_BATCHES: "batches",
        metrics.APPENDED_RECORDS: "records",
        metrics.APPENDED_BYTES: "bytes",
        metrics.READ_BATCHES: "read_batches",
        metrics.READ_RECORDS: "read_records",
        metrics.READ_BYTES: "read_bytes",
    }
    for definition, field in of_each.items():
        yield definition.rows([((name,), getattr(each, field)) for name, each in topics])


def _judged(topic: str, counts: TopicCounts) -> Iterator[tuple[tuple[str, ...], float]]:
    for (policy, status), total in counts.judged().items():
        by_http = counts.by_http.get((policy, status), 0)
        for listener, count in ((_HTTP, by_http), (_KAFKA, total - by_http)):
            if count > 0:
                labels = listener, topic, _policy(policy), status.value.replace(" ", "_")
                yield labels, count


def _policy(policy: Policy | None) -> str:
    return "none" if policy is None else policy.name.lower()


def _appends(counts: Counts) -> Iterator[Metric]:

    yield metrics.APPENDS.of(counts.appends)
    yield metrics.JOINED.of(counts.joined)
    yield metrics.DIFFERING.of(counts.differing)
    yield metrics.EPOCHS_RAISED.of(counts.epochs_raised)
    yield metrics.APPEND_SECONDS.histogram(counts.append_seconds)
    yield metrics.FORWARD_SECONDS.histogram(counts.forward_seconds)
    yield metrics.WRITERS_TAKEN.of(counts.writers_taken)
    yield metrics.WRITERS_FENCED.of(counts.writers_fenced)


def _leases(leases: Leases) -> Iterator[Metric]:
    yield metrics.LEASES_GRANTED.rows(
        [((_policy(policy),), count) for policy, count in leases.granted_by.items()]
    )
    yield metrics.LEASES_REFUSED.rows(
        [
            ((reason.replace(" ", "_"), _policy(policy)), count)
            for (reason, policy), count in leases.refused_by.items()
        ]
    )
    yield metrics.LEASES_EXPIRED.of(leases.expired)
    yield metrics.LEASES.of(len(leases))
    yield metrics.LEASE_LENGTH.of(leases.lease_ms / 1000)
    yield metrics.RING_USED.of(len(leases.ring))
    yield metrics.RING_CAPACITY.of(leases.ring.capacity)
    yield metrics.KEYS_USED.of(len(leases.keys))
    yield metrics.KEYS_CAPACITY.of(leases.keys.capacity)
    yield metrics.BLOCK_LEFT.of(leases.blocks.left)
    yield metrics.PREFETCH_SECONDS.of(leases.blocks.prefetch_seconds)
    yield metrics.PREFETCH_FAILURES.of(leases.blocks.prefetch_failures)


def _snapshots(maintenance: Maintenance) -> Iterator[Metric]:
    yield metrics.SNAPSHOTS.of(maintenance.snapshots_taken)
    yield metrics.SNAPSHOT_FAILURES.of(maintenance.snapshot_failures)
    yield metrics.SNAPSHOT_SECONDS.of(maintenance.snapshot_seconds)
    yield metrics.SNAPSHOT_DELAY.of(maintenance.snapshot_delay_seconds)
    newest = maintenance.newest
    if newest is not None:
        yield metrics.SNAPSHOT_AGE.of((wall_clock_ms() - newest.created_ms) / 1000)
        yield metrics.SNAPSHOT_ROWS.of(sum(newest.rows.values()))
        yield metrics.SNAPSHOT_BYTES.of(sum(size for size, _ in newest.checksums.values()))


def _replay(replay: ReplayProgress) -> Iterator[Metric]:
    yield metrics.REPLAY_PARTITIONS.of(replay.total)
    yield metrics.REPLAY_DONE.of(replay.done)
    yield metrics.REPLAY_LEFT.of(replay.offsets_left)
