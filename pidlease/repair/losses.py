"""Finds what a cut loses: batches after the damage, and the states of their producers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from pidlease.core.pid import policy_of
from pidlease.core.producer_names import ProducerNames
from pidlease.core.state import ProducerState
from pidlease.engine.batch_identity import identity_of
from pidlease.engine.producer_table import ProducerTable
from pidlease.engine.recovery import Base, begin_at, rows_of
from pidlease.kafka.records.writer_batch import LoggedBatch, logged
from pidlease.log.segments.batch_search import Broken, walk
from pidlease.log.segments.durable_mark import MARK_NAME
from pidlease.log.segments.log_start import LOG_START_NAME
from pidlease.log.segments.log_view import LogView
from pidlease.log.segments.scan import ScannedBatch
from pidlease.log.segments.segment import LOG_SUFFIX
from pidlease.repair.damage import Damage, segments_of
from pidlease.storage.errors import LogError
from pidlease.storage.files import Files
from pidlease.storage.snapshots import PartitionRows, Snapshot, TopicPartition
from pidlease.storage.topics.topic_store import Topic

#: The most ranges of sequence numbers listed for one producer.
_RANGES_MAX: Final = 100


class Sequences(NamedTuple):
    """The sequence numbers of intact batches after the damage."""

    generation: int
    first: int
    last: int


@dataclass(slots=True)
class ProducerLoss:
    """What one producer loses.

    Attributes:
        pid: its PID, or the stand-in PID of its producer id.
        name: the name that the PID is bound to, or the producer id; empty: none.
        kept: its state at the cut; None: all its batches are beyond the cut.
        generation: the highest one beyond the cut; -1: all its batches there are damaged.
        high: the highest sequence number of that generation beyond the cut.
        records: how many records are in its intact batches after the damage.
        ranges: their sequence numbers, at most `_RANGES_MAX` ranges.
    """

    pid: int
    name: str
    kept: ProducerState | None
    generation: int = -1
    high: int = -1
    records: int = 0
    ranges: list[Sequences] = field(default_factory=list)

    def saw(self, generation: int, high: int) -> None:
        """Note a state beyond the cut."""
        self.generation, self.high = max((self.generation, self.high), (generation, high))

    @property
    def policy(self) -> str:
        """The PID's policy, in lower case."""
        policy = policy_of(self.pid)
        return "" if policy is None else policy.name.lower()


@dataclass(slots=True)
class Readable:
    """The intact batches after the damage.

    Attributes:
        batches: how many.
        records: how many.
        bytes: their size.
        first_offset: of the first batch; -1: there is none.
        end_offset: after the last batch; -1: there is none.
    """

    batches: int = 0
    records: int = 0
    bytes: int = 0
    first_offset: int = -1
    end_offset: int = -1


class Losses(NamedTuple):
    """What a cut takes away from a partition.

    Attributes:
        rows: the producers' states at the cut.
        promised_end: the log was acknowledged at least up to here.
        readable: the intact batches after the damage.
        producers: those that lose something, in the order of their PIDs.
        snapshots: the numbers of the snapshots beyond the cut.
    """

    rows: PartitionRows
    promised_end: int
    readable: Readable
    producers: list[ProducerLoss]
    snapshots: list[int]


@dataclass(frozen=True, slots=True)
class Context:
    """The parts needed to restore the producers' states.

    Attributes:
        bound: the producers' names by their PIDs.
        snapshots: all intact snapshots, newest first.
        now_ms: the time, in ms since 1970.
    """

    files: Files
    names: ProducerNames
    bound: dict[int, str]
    snapshots: list[Snapshot]
    now_ms: int


def find_losses(context: Context, topic: Topic, number: int, damage: Damage) -> Losses:
    """Find what a cut at the damage takes away.

    Raises:
        LogError: the log before the damage cannot be read, or cannot be cut.
        OSError: a file cannot be read.
    """
    if damage.view is None:
        raise LogError(f"{damage.path}: the log cannot be cut")
    name = TopicPartition(topic.name, number)
    cut = damage.view.end_offset
    of_it = [each for each in context.snapshots if _is_of(each, name, topic)]
    beyond = [each for each in of_it if each.manifest.offset_vector[name].next_offset > cut]
    before = next((each for each in of_it if each not in beyond), None)
    known = _state_at(context, topic, name, damage.view, before)
    by_pid: dict[int, ProducerLoss] = {}

    def loss(pid: int) -> ProducerLoss:
        if pid not in by_pid:
            name_of_pid = context.names.name(pid) or context.bound.get(pid, "")
            by_pid[pid] = ProducerLoss(pid, name_of_pid, known.producer(pid))
        return by_pid[pid]

    readable, promised = Readable(), damage.promised_end
    for batch in _after(context.files, damage.view):
        _count(readable, batch)
        identity = _identity(batch, context.names)
        if identity is not None:
            pid, sequences = identity
            each = loss(pid)
            each.records += batch.header.records
            each.saw(sequences.generation, sequences.last)
            _extend(each.ranges, sequences)
    for snapshot in beyond:
        entry = snapshot.manifest.offset_vector[name]
        promised = max(promised, entry.next_offset)
        state = ProducerTable(name, topic, context.names, 0)
        state.restore(snapshot.producers[name], entry.next_offset, entry.hole_ms, entry.removed_end)
        for pid, row in state.described_producers():
            kept = known.producer(pid)
            if kept is None or (kept.generation, kept.high) < (row.generation, row.high):
                loss(pid).saw(row.generation, row.high)
    promised = max(promised, readable.end_offset)
    numbers = [each.manifest.number for each in beyond]
    losses = [by_pid[pid] for pid in sorted(by_pid)]
    return Losses(known.rows(), promised, readable, losses, numbers)


def _is_of(snapshot: Snapshot, name: TopicPartition, topic: Topic) -> bool:
    entry = snapshot.manifest.offset_vector.get(name)
    return entry is not None and entry.topic_id == topic.topic_id


def _state_at(
    context: Context, topic: Topic, name: TopicPartition, view: LogView, before: Snapshot | None
) -> ProducerTable:
    """Return the producers' states at the end of the intact part, as a start restores them."""
    known = ProducerTable(name, topic, context.names, 0)
    base = Base(None if before is None else rows_of(before, name))
    begin_at(known, view.kept_offset, base, context.now_ms)
    if known.next_offset < view.end_offset:
        scanned = view.scan(known.next_offset)
        known.replay((logged(header, data) for _, header, data in scanned), context.now_ms)
    return known


def _after(files: Files, view: LogView) -> Iterator[ScannedBatch]:
    """Yield the intact batches beyond the end of a view."""
    damaged = view.segments[-1]
    position, expected = view.last_size, view.end_offset
    for segment in segments_of(files, damaged.folder):
        if segment.base_offset < damaged.base_offset:
            continue
        if segment.base_offset > damaged.base_offset:
            position, expected = 0, segment.base_offset
        with segment.reading(LOG_SUFFIX) as log:
            for batch in walk(log, position, log.size(), expected):
                if not isinstance(batch, Broken):
                    yield batch


def _count(readable: Readable, batch: ScannedBatch) -> None:
    header = batch.header
    if readable.first_offset < 0:
        readable.first_offset = header.base_offset
    readable.end_offset = max(readable.end_offset, header.last_offset + 1)
    readable.batches += 1
    readable.records += header.records
    readable.bytes += header.size


def _identity(batch: ScannedBatch, names: ProducerNames) -> tuple[int, Sequences] | None:
    """Return the PID and sequence numbers of a batch; None: its producer is unknown."""
    try:
        read: LoggedBatch = logged(batch.header, batch.data)
    except LogError:
        return None
    identified = identity_of(read, names)
    if identified is None:
        return None
    pid, (generation, first, last, *_) = identified
    return pid, Sequences(generation, first, last)


def _extend(ranges: list[Sequences], more: Sequences) -> None:
    last = ranges[-1] if ranges else None
    if last is not None and (last.generation, last.last + 1) == (more.generation, more.first):
        ranges[-1] = last._replace(last=more.last)
    elif len(ranges) < _RANGES_MAX:
        ranges.append(more)


def parts_of(folder: Path, view: LogView) -> list[Path]:
    """Return the files of a partition that a cut changes, without its indexes."""
    files = view.segments[-1].files
    cut = view.segments[-1].base_offset
    logs = [each.path(LOG_SUFFIX) for each in segments_of(files, folder) if each.base_offset >= cut]
    beside = (folder / name for name in (MARK_NAME, LOG_START_NAME))
    return [*logs, *(path for path in beside if files.exists(path))]
