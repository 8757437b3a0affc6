"""The recovery at a start: the newest valid snapshot, then the log after its offset vector."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from pidlease.engine.leases.leases import Leases
from pidlease.engine.partition import Partition
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.producer_table import ProducerTable
from pidlease.engine.replay_progress import ReplayProgress
from pidlease.engine.unloaded_partitions import UnloadedPartition
from pidlease.log.ports import ForwardingLog, LogStore, PartitionLog
from pidlease.storage.errors import LogError, is_unreadable, reason_for_clients
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import (
    Manifest,
    PartitionRows,
    Snapshot,
    SnapshotError,
    SnapshotStore,
    TopicPartition,
)
from pidlease.storage.topics.topic_store import Topic

#: Returns what others know of partitions, by the offsets up to which this server knows them.
OtherStates = Callable[
    [Mapping[TopicPartition, int]], Coroutine[Any, Any, dict[TopicPartition, PartitionRows]]
]

#: Partitions that are made before requests are answered, and those asked for their ends at once.
_AT_ONCE: Final = 100

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a start.

    Attributes:
        topics: the definitions.
        partitions: with their producers' states, in the order of topics and partition numbers.
        snapshot: the snapshot used; None: the whole log was replayed.
        at_ends: nothing was replayed: the logs had never been served before.
        awaited: topics that cannot be read yet.
        held: the snapshot's rows of partitions that are not loaded.
    """

    topics: list[Topic]
    partitions: list[Partition]
    snapshot: Manifest | None
    at_ends: bool
    awaited: list[Topic]
    held: list[UnloadedPartition]


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovers the state at a start."""

    store: LogStore
    snapshots: SnapshotStore
    leases: Leases
    context: PartitionContext
    pool: IoPool
    replay: ReplayProgress
    #: Returns what other active servers know of partitions, if it is much more than up to the given
    #: offsets; None: there are none.
    others: OtherStates | None = None

    async def run(self) -> Recovered:
        """Open all partitions, and restore the producers' states and the leases.

        Raises:
            SequenceError: the PID sequence cannot be read, or gives no block.
            DataFolderError: a topic's definition is damaged.
        """
        topics = await self.pool.run(self.store.topics)
        awaited = await self.pool.run(self.store.awaited)
        manifests = await self.pool.run(self.snapshots.manifests)
        partitions = await self._open(topics, manifests[0] if manifests else None)
        snapshot = await self.pool.run(partial(self._choose, manifests, partitions))
        await self.pool.run(self.leases.blocks.load)
        at_ends = await self._is_first(snapshot)
        if at_ends:
            await self._begin_at_ends(partitions)
        else:
            await self._replay(partitions, snapshot)
        if snapshot is not None:
            self.leases.restore_rows(snapshot.leases)
        for partition in partitions:
            partition.note_leases()
            await asyncio.sleep(0)  # let requests for the progress run
        await self.pool.run(self.leases.first_block)
        held = self._unloaded(snapshot, awaited, partitions)
        for each in held:
            self.leases.restore(each.producers, each)
        manifest = snapshot.manifest if snapshot else None
        return Recovered(topics, partitions, manifest, at_ends, awaited, held)

    async def _is_first(self, snapshot: Snapshot | None) -> bool:
        """Return whether no server has ever leased a PID for these logs."""
        is_first = await self.pool.run(self.store.is_first_service)
        # A sequence with blocks, or a snapshot, is of a server from before logs were marked.
        return is_first and snapshot is None and not len(self.leases.blocks.ages)

    async def _begin_at_ends(self, partitions: list[Partition]) -> None:
        """Begin with what is appended from now on: the logs have no batch of a leased PID."""
        # Before any block of PIDs: one of this very millisecond is young.
        hole_ms = self.context.clock_ms() - 1
        ends = []
        for partition in partitions:
            end = partition.log.end_offset
            partition.table.restore({}, end, hole_ms)
            ends.append(PartitionRows(partition.name, partition.topic_id, end, hole_ms, {}))
        try:
            await self.pool.run(partial(self.store.note_first_service, ends))
        except OSError as error:
            _log.warning("later first starts of other servers read the logs from their beginning",
                         error=str(error))  # fmt: skip
        _log.info("first start: no server has served these logs, so they are not read",
                  partitions=len(partitions))  # fmt: skip

    async def _open(self, topics: list[Topic], newest: Manifest | None) -> list[Partition]:
        def open_one(each: tuple[Topic, TopicPartition]) -> PartitionLog:
            topic, name = each
            known = newest.next_offset(name, topic.topic_id) if newest else 0
            return self.store.open_partition(topic, name.partition, known)

        names = [(topic, TopicPartition(topic.name, number))
                 for topic in topics for number in range(topic.partitions)]  # fmt: skip
        logs = await self.pool.run_each(open_one, names)
        partitions = []
        for index, ((topic, name), log) in enumerate(zip(names, logs, strict=True)):
            partitions.append(Partition(name, topic, log, self.context))
            if index % _AT_ONCE == 0:
                await asyncio.sleep(0)  # let requests for the progress run
        return partitions

    def _choose(self, manifests: list[Manifest], partitions: list[Partition]) -> Snapshot | None:
        """Return the newest snapshot that is intact and not ahead of the log."""
        ends = {p.name: (p.topic_id, p.log.end_offset) for p in partitions if not p.log.stopped}
        for manifest in manifests:
            beyond = [
                name
                for name, entry in manifest.offset_vector.items()
                if name in ends
                and ends[name][0] == entry.topic_id
                and ends[name][1] < entry.next_offset
            ]
            if beyond:
                # Remove it: when the log has grown past it, its states would count lost batches as
                # appended.
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
        known = {each.name: rows_of(snapshot, each.name) or first_rows(self.store, each)
                 for each in partitions}  # fmt: skip
        if self.others is not None:
            ids = {each.name: each.topic_id for each in partitions}
            starts = {each.name: each.log.kept_offset for each in partitions}
            offsets = {
                name: rows.next_offset
                if rows is not None
                and rows.topic_id == ids[name]
                and rows.next_offset >= starts[name]
                else -1
                for name, rows in known.items()
            }
            found = await self.others(offsets)
            logs = {each.name: each.log for each in partitions}
            fitting = [each for name, each in found.items() if each.topic_id == ids[name]]
            for start in range(0, len(fitting), _AT_ONCE):
                some = fitting[start : start + _AT_ONCE]
                there = await asyncio.gather(
                    *(reaches(logs[each.partition], each.next_offset) for each in some)
                )
                known |= {each.partition: each for each, is_there in zip(some, there, strict=True)
                          if is_there}  # fmt: skip
        now_ms = self.context.clock_ms()
        self.replay.total = len(partitions)
        for partition in partitions:
            begin(partition, known[partition.name], now_ms)
            self.replay.begin(partition)

        def replay_one(partition: Partition) -> None:
            catch_up(partition, now_ms)
            self.replay.end(partition)

        # Large batches are checked without the interpreter's lock, so each core helps.
        await self.pool.run_each(replay_one, partitions, first_threads=os.cpu_count() or 1)

    def _unloaded(
        self, snapshot: Snapshot | None, awaited: list[Topic], partitions: list[Partition]
    ) -> list[UnloadedPartition]:
        """Return the snapshot's rows of partitions that cannot be read completely, or are not seen.

        If others create the topics, a topic that is not seen may still exist.
        """
        read = {partition.name for partition in partitions if not partition.log.stopped}
        names = {TopicPartition(each.name, number) for each in awaited
                 for number in range(each.partitions)}  # fmt: skip
        names |= {partition.name for partition in partitions}
        if snapshot is not None and self.store.made_by_others:
            names |= snapshot.manifest.offset_vector.keys()
        rows = (rows_of(snapshot, name) for name in sorted(names - read))
        return [UnloadedPartition(each) for each in rows if each is not None]


def rows_of(snapshot: Snapshot | None, name: TopicPartition) -> PartitionRows | None:
    """Return a snapshot's rows of a partition; None: it has none."""
    entry = snapshot.manifest.offset_vector.get(name) if snapshot else None
    if snapshot is None or entry is None:
        return None
    producers = snapshot.producers[name]
    return PartitionRows(name, entry.topic_id, entry.next_offset, entry.hole_ms, producers)


async def reaches(log: PartitionLog, offset: int) -> bool:
    """Return whether a log goes up to an offset that another server has read it to.

    If not, Kafka has cut it since. What that server knows then has batches that were lost.
    """
    if offset <= log.end_offset:
        return True
    try:
        # Others go on appending: its end is not what it was when it was opened.
        return isinstance(log, ForwardingLog) and offset <= await log.look()
    except LogError:
        return False


def first_rows(store: LogStore, partition: Partition) -> PartitionRows | None:
    """Return where a partition's log begins to have batches of leased PIDs, if that is known."""
    found = store.first_rows(partition.name, partition.topic_id)
    # A log that ends before it has lost records, and may have had others there.
    return None if found is None or found.next_offset > partition.log.end_offset else found


def begin(partition: Partition, rows: PartitionRows | None, now_ms: int) -> None:
    """Restore a partition's states from a snapshot, and note if earlier history is missing.

    Parameters:
        partition: its log is open, and nothing is applied.
        rows: the snapshot's rows; None: there are none.
        now_ms: the time, in ms since 1970.
    """
    begin_at(partition.table, partition.log.kept_offset, rows, now_ms)


def begin_at(known: ProducerTable, start: int, rows: PartitionRows | None, now_ms: int) -> None:
    """Restore states from a snapshot, and note if earlier history is missing.

    Parameters:
        known: gets the states; nothing is applied yet.
        start: the first offset that the log still has.
        rows: the snapshot's rows; None: there are none.
        now_ms: the time, in ms since 1970.
    """
    if rows is None or rows.topic_id != known.topic_id:
        # The rows are of a former topic: its producers continue their numbers.
        missing = start > 0 or rows is not None
        known.restore({}, start, now_ms if missing else known.hole_ms)
        return
    # Of another server's rows, the former topic may be unknown there.
    hole_ms = now_ms if rows.next_offset < start else max(rows.hole_ms, known.hole_ms)
    # Copy the states: if the log cannot be read to its end now, the next attempt needs them.
    known.restore(dict(rows.producers), max(rows.next_offset, start), hole_ms)


def catch_up(partition: Partition, now_ms: int) -> None:
    """Replay a partition's log from its applied offset. Blocks."""
    log, table = partition.log, partition.table
    if table.next_offset >= log.end_offset:
        return
    try:
        table.replay(log.read_batches(table.next_offset), now_ms)
    except (LogError, OSError) as error:
        if not isinstance(error, LogError) and not is_unreadable(error):
            raise
        reason = f"the log could not be read again: {reason_for_clients(error)}"
        log.stop_short(reason, table.next_offset, str(error))
