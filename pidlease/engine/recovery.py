"""The recovery at a start: the newest valid snapshot, then the log after its offset vector."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from pidlease.engine.leases.leases import Leases
from pidlease.engine.partition import Partition
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.producer_table import ProducerTable
from pidlease.engine.replay_progress import ReplayProgress
from pidlease.engine.unloaded_partitions import UnloadedPartition
from pidlease.log.ports import LogStore
from pidlease.storage.errors import LogError, reason_for_clients
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import (
    Manifest,
    PartitionOffset,
    PartitionRows,
    Snapshot,
    SnapshotError,
    SnapshotStore,
    TopicPartition,
)
from pidlease.storage.topics.topic_store import Topic

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a start found.

    Attributes:
        topics: the definitions.
        partitions: each with its state, in the order of topics and numbers.
        snapshot: what the state began with; None: the whole log was replayed.
        awaited: topics that cannot be read yet.
        held: what the snapshot has of partitions that are still to be read, or seen.
    """

    topics: list[Topic]
    partitions: list[Partition]
    snapshot: Manifest | None
    awaited: list[Topic]
    held: list[UnloadedPartition]


@dataclass(frozen=True, slots=True)
class Recovery:
    """The parts that a start needs."""

    store: LogStore
    snapshots: SnapshotStore
    leases: Leases
    around: PartitionContext
    pool: IoPool
    replay: ReplayProgress

    async def run(self) -> Recovered:
        """Bring everything back to where it was.

        Raises:
            SequenceError: the PID sequence cannot be read, or gives no block.
            DataFolderError: a topic's definition is damaged.
        """
        topics = await self.pool.run(self.store.topics)
        awaited = await self.pool.run(self.store.awaited)
        manifests = await self.pool.run(self._manifests)
        durable = manifests[0].offset_vector if manifests else {}
        partitions = await self._open(topics, durable)
        snapshot = await self.pool.run(partial(self._choose, manifests, partitions))
        await self.pool.run(self.leases.blocks.load)
        await self._replay(partitions, snapshot)
        if snapshot is not None:
            self.leases.restore_rows(snapshot.leases)
        for partition in partitions:
            partition.note_leases()
            await asyncio.sleep(0)  # requests for the progress get a response
        await self.pool.run(self.leases.first_block)
        held = self._held(snapshot, awaited, partitions)
        for each in held:
            self.leases.restore(each.producers, each)
        manifest = snapshot.manifest if snapshot else None
        return Recovered(topics, partitions, manifest, awaited, held)

    def _manifests(self) -> list[Manifest]:
        """Return the manifests of the snapshots, newest first; log what cannot be read."""
        found = []
        for number in self.snapshots.numbers():
            try:
                found.append(self.snapshots.manifest(number))
            except SnapshotError as error:
                _log.error("snapshot skipped", number=number, reason=str(error))
        return found

    async def _open(
        self, topics: list[Topic], durable: Mapping[TopicPartition, PartitionOffset]
    ) -> list[Partition]:
        async def open_one(topic: Topic, number: int) -> Partition:
            name = TopicPartition(topic.name, number)
            place = durable.get(name)
            known = place.next_offset if place and place.topic_id == topic.topic_id else 0
            work = partial(self.store.open_partition, topic, number, known)
            return Partition(name, topic, await self.pool.run(work), self.around)

        numbers = [(topic, number) for topic in topics for number in range(topic.partitions)]
        return list(await asyncio.gather(*(open_one(*each) for each in numbers)))

    def _choose(self, manifests: list[Manifest], partitions: list[Partition]) -> Snapshot | None:
        """The newest snapshot that is intact and does not lie beyond the log."""
        ends = {p.name: (p.topic_id, p.log.end_offset) for p in partitions if not p.log.stopped}
        for manifest in manifests:
            beyond = [
                name
                for name, place in manifest.offset_vector.items()
                if name in ends
                and ends[name][0] == place.topic_id
                and ends[name][1] < place.next_offset
            ]
            if beyond:
                # Removed, too: once the log has grown past it again, it would speak of batches
                # that were lost as if they stood there.
                _log.error("snapshot removed: the log ends before it", number=manifest.number,
                           partitions=[str(name) for name in beyond[:10]])  # fmt: skip
                self.snapshots.remove(manifest.number)
                continue
            try:
                return self.snapshots.load(manifest.number)
            except SnapshotError as error:
                _log.error("snapshot skipped", number=manifest.number, reason=str(error))
        return None

    async def _replay(self, partitions: list[Partition], snapshot: Snapshot | None) -> None:
        now_ms = self.around.clock_ms()
        self.replay.total = len(partitions)
        for partition in partitions:
            begin(partition, _rows_of(snapshot, partition.name), now_ms)
            self.replay.begin(partition)

        async def replay_one(partition: Partition) -> None:
            await self.pool.run(partial(catch_up, partition, now_ms))
            self.replay.end(partition)

        await asyncio.gather(*(replay_one(partition) for partition in partitions))

    def _held(
        self, snapshot: Snapshot | None, awaited: list[Topic], partitions: list[Partition]
    ) -> list[UnloadedPartition]:
        """What a snapshot has of partitions that cannot be read yet, not to the end, or not seen.

        Where others make the topics, one that is not seen may be there all the same.
        """
        read = {partition.name for partition in partitions if not partition.log.stopped}
        names = {TopicPartition(each.name, number) for each in awaited
                 for number in range(each.partitions)}  # fmt: skip
        names |= {partition.name for partition in partitions}
        if snapshot is not None and self.store.made_by_others:
            names |= snapshot.manifest.offset_vector.keys()
        found = (_rows_of(snapshot, name) for name in sorted(names - read))
        return [UnloadedPartition(rows) for rows in found if rows is not None]


def _rows_of(snapshot: Snapshot | None, name: TopicPartition) -> PartitionRows | None:
    """What a snapshot has of a partition."""
    place = snapshot.manifest.offset_vector.get(name) if snapshot else None
    if snapshot is None or place is None:
        return None
    producers = snapshot.producers[name]
    return PartitionRows(name, place.topic_id, place.next_offset, place.hole_ms, producers)


def begin(partition: Partition, rows: PartitionRows | None, now_ms: int) -> None:
    """Give a partition what a snapshot has of it, and note where earlier history is missing.

    Parameters:
        partition: its log is open, and nothing of it is applied.
        rows: None: there are none.
        now_ms: the time, in ms since 1970.
    """
    begin_at(partition.table, partition.log.kept_offset, rows, now_ms)


def begin_at(known: ProducerTable, start: int, rows: PartitionRows | None, now_ms: int) -> None:
    """Begin with what a snapshot has; see `begin`.

    Parameters:
        known: nothing is applied to it.
        start: the first offset that the log still has.
        rows: None: there are none.
        now_ms: the time, in ms since 1970.
    """
    if rows is None or rows.topic_id != known.topic_id:
        # Another topic had the name: its producers go on where they were.
        missing = start > 0 or rows is not None
        known.restore({}, start, now_ms if missing else known.hole_ms)
        return
    hole_ms = now_ms if rows.next_offset < start else rows.hole_ms
    # A copy: where the log cannot be read to its end now, it begins with these rows again.
    known.restore(dict(rows.producers), max(rows.next_offset, start), hole_ms)


def catch_up(partition: Partition, now_ms: int) -> None:
    """Replay a partition's log after the applied offset. Blocks."""
    log, table = partition.log, partition.table
    if table.next_offset >= log.end_offset:
        return
    try:
        table.replay(log.read_batches(table.next_offset), now_ms)
    except LogError as error:
        reason = f"the log could not be read again: {reason_for_clients(error)}"
        log.stop_short(reason, table.next_offset, str(error))
