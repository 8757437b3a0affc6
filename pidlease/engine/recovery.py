"""The recovery at a start: the newest valid snapshot, then the log after its offset vector."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
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
from pidlease.log.ports import LogStore, PartitionLog
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, is_unreadable, reason_for_clients
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


@dataclass(slots=True)
class Base:
    """Where the replay of a partition begins.

    Attributes:
        rows: the states to begin with; None: the log is replayed from its start.
        is_other: whether other states were known, of a log that is not this one: of a former topic
            of the name, or with records that Kafka has lost.
    """

    rows: PartitionRows | None = None
    is_other: bool = False


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
        snapshot, bases = await self.pool.run(partial(self._bases, manifests, partitions))
        await self.pool.run(self.leases.blocks.load)
        at_ends = await self._is_first(snapshot)
        if at_ends:
            await self._begin_at_ends(partitions)
        else:
            await self._replay(partitions, bases)
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
            entry = partition.position._replace(next_offset=end, hole_ms=hole_ms, end_offset=end)
            ends.append(entry.rows(partition.name, {}))
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

    def _bases(
        self, manifests: list[Manifest], partitions: list[Partition]
    ) -> tuple[Snapshot | None, dict[TopicPartition, Base]]:
        """Return the newest intact snapshot, and where the replays of the logs begin."""
        newest: Snapshot | None = None
        bases = {each.name: Base() for each in partitions}
        logs = {each.name: each for each in partitions if not each.log.stopped}
        for manifest in manifests:
            entries = {name: entry for name, entry in manifest.offset_vector.items()
                       if name in logs and bases[name].rows is None}  # fmt: skip
            fitting = self._fitting(logs, entries, bases)
            if newest is not None and not fitting:
                continue
            try:
                snapshot = self.snapshots.load(manifest.number)
            except SnapshotError as error:
                _log.error("snapshot skipped", number=manifest.number, reason=str(error))
                continue
            if newest is None:
                newest = snapshot
                for each in partitions:
                    rows = rows_of(snapshot, each.name) if each.log.stopped else None
                    if rows is not None and rows.topic_id == each.topic_id:
                        bases[each.name].rows = rows  # for the next attempt
            for name in fitting:
                bases[name].rows = entries[name].rows(name, snapshot.producers[name])
        first = {name: rows for name, each in logs.items() if bases[name].rows is None
                 and (rows := self.store.first_rows(name, each.topic_id)) is not None}  # fmt: skip
        for name in self._fitting(logs, {n: rows.entry for n, rows in first.items()}, bases):
            bases[name].rows = first[name]
        return newest, bases

    def _fitting(
        self,
        logs: Mapping[TopicPartition, Partition],
        entries: Mapping[TopicPartition, PartitionOffset],
        bases: Mapping[TopicPartition, Base],
    ) -> set[TopicPartition]:
        """Return the partitions with logs that fit their entries, and note the others."""
        fitting = fitting_entries(self.store, logs, entries)
        for name in entries.keys() - fitting:
            bases[name].is_other = True
        return fitting

    async def _replay(self, partitions: list[Partition], bases: dict[TopicPartition, Base]) -> None:
        if self.others is not None:
            await self._fetch(self.others, partitions, bases)
        now_ms = self.context.clock_ms()
        self.replay.total = len(partitions)
        for partition in partitions:
            begin(partition, bases[partition.name], now_ms)
            self.replay.begin(partition)

        def replay_one(partition: Partition) -> None:
            catch_up(partition, now_ms)
            self.replay.end(partition)

        # Large batches are checked without the interpreter's lock, so each core helps.
        await self.pool.run_each(replay_one, partitions, first_threads=os.cpu_count() or 1)

    async def _fetch(
        self,
        others: OtherStates,
        partitions: list[Partition],
        bases: dict[TopicPartition, Base],
    ) -> None:
        """Begin with what other servers know, where that is much more."""
        logs = {each.name: each for each in partitions if not each.log.stopped}
        offsets = {}
        for name, each in logs.items():
            rows = bases[name].rows
            is_enough = rows is not None and rows.next_offset >= each.log.kept_offset
            offsets[name] = rows.next_offset if rows is not None and is_enough else -1
        found = await others(offsets)
        entries = {name: rows.entry for name, rows in found.items() if name in logs}
        for name in await self.pool.run(partial(fitting_entries, self.store, logs, entries)):
            bases[name].rows = found[name]

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
    return entry.rows(name, snapshot.producers[name])


def fitting_entries(
    store: LogStore,
    logs: Mapping[TopicPartition, Partition],
    entries: Mapping[TopicPartition, PartitionOffset],
) -> set[TopicPartition]:
    """Return the partitions with logs from which their entries were made. Blocks.

    A log is that if its topic has the same id, and it is as it was up to the entry's offset: Kafka
    may have lost its end since, and have appended other batches. A log that cannot be asked now is
    stopped, and is opened again later.
    """
    epochs = {
        name: entry.leader_epoch
        for name, entry in entries.items()
        if entry.leader_epoch >= 0 and entry.topic_id == logs[name].topic_id
    }
    reached = store.ends_of_epochs(epochs) if epochs else {}
    fitting = set()
    for name, entry in entries.items():
        log = logs[name].log
        if entry.topic_id != logs[name].topic_id:
            _log.info("states are of a former topic of the name", partition=str(name))
        elif name in epochs and name not in reached:
            log.stop("whether Kafka still has what was known of it cannot be asked now")
        elif entry.needed_end > min(log.end_offset, reached.get(name, log.end_offset)):
            _log.error("states are not used: Kafka has lost records before their offset",
                       partition=str(name), offset=entry.needed_end, end=log.end_offset,
                       cut_at=reached.get(name, log.end_offset))  # fmt: skip
        else:
            fitting.add(name)
    return fitting


class KeptRows:
    """The rows of partitions in the kept snapshots, newest first, which are read once if at all."""

    def __init__(self, snapshots: SnapshotStore) -> None:
        self._snapshots: Final = snapshots
        self._loaded: Final[dict[int, Snapshot | None]] = {}

    def of(self, name: TopicPartition) -> Iterator[PartitionRows]:
        """Yield the rows of a partition. Blocks."""
        for manifest in self._snapshots.manifests():
            if name in manifest.offset_vector:
                rows = rows_of(self._load(manifest.number), name)
                if rows is not None:
                    yield rows

    def _load(self, number: int) -> Snapshot | None:
        if number not in self._loaded:
            try:
                self._loaded[number] = self._snapshots.load(number)
            except SnapshotError as error:
                self._loaded[number] = None
                LINES.write(_log, "error", "snapshot skipped", kind_of(error), number=number,
                            reason=str(error))  # fmt: skip
        return self._loaded[number]


def base_of(store: LogStore, partition: Partition, candidates: Iterable[PartitionRows]) -> Base:
    """Return where the replay of a partition begins: the first rows that its log still has. Blocks.

    Parameters:
        candidates: rows of the partition, the best ones first.
    """
    base, name = Base(), partition.name
    for rows in candidates:
        if fitting_entries(store, {name: partition}, {name: rows.entry}):
            base.rows = rows
            break
        base.is_other = True
    return base


def begin(partition: Partition, base: Base, now_ms: int) -> None:
    """Restore a partition's states, and note if earlier history is missing.

    Parameters:
        partition: its log is open, and nothing is applied.
        base: where its replay begins.
        now_ms: the time, in ms since 1970.
    """
    begin_at(partition.table, partition.log.kept_offset, base, now_ms)


def begin_at(known: ProducerTable, start: int, base: Base, now_ms: int) -> None:
    """Restore states, and note if earlier history is missing.

    Parameters:
        known: gets the states; nothing is applied yet.
        start: the first offset that the log still has.
        base: where the replay begins.
        now_ms: the time, in ms since 1970.
    """
    rows = base.rows
    offset = 0 if rows is None else rows.next_offset
    # Of another server's rows, the former topic may be unknown there.
    hole_ms = known.hole_ms if rows is None else max(rows.hole_ms, known.hole_ms)
    if base.is_other or offset < start:
        hole_ms = now_ms  # producers of the missing part continue their numbers
    removed_end = start if offset < start or rows is None else rows.removed_end
    # Copy the states: if the log cannot be read to its end now, the next attempt needs them.
    states = {} if rows is None else dict(rows.producers)
    known.restore(states, max(offset, start), hole_ms, removed_end)


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
