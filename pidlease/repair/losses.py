"""What a cut takes away: batches after the damage, and what they and snapshots say of producers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from pidlease.core.pid import policy_of
from pidlease.core.producer_names import ProducerNames
from pidlease.core.state import ProducerState
from pidlease.engine.batch_identity import identity_of
from pidlease.engine.producer_table import ProducerTable
from pidlease.engine.recovery import begin_at
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

#: Ranges of sequences of one producer that are listed.
_RANGES_MAX: Final = 100


class Sequences(NamedTuple):
    """Sequences that intact batches after the damage hold."""

    generation: int
    first: int
    last: int


@dataclass(slots=True)
class ProducerLoss:
    """What one producer loses.

    Attributes:
        pid: its PID, or what stands for its producer id.
        name: that the PID is bound to, or the producer id; empty: none.
        kept: its state at the cut; None: none of its batches are before it.
        generation: the highest that is known beyond the cut; -1: only damaged bytes could show it.
        high: the highest sequence that is known there, in that generation.
        records: of it, in intact batches after the damage.
        ranges: their sequences, at most `_RANGES_MAX`.
    """

    pid: int
    name: str
    kept: ProducerState | None
    generation: int = -1
    high: int = -1
    records: int = 0
    ranges: list[Sequences] = field(default_factory=list)

    def saw(self, generation: int, high: int) -> None:
        """Take note of a state beyond the cut."""
        self.generation, self.high = max((self.generation, self.high), (generation, high))

    @property
    def policy(self) -> str:
        """Of the PID, in lower case."""
        policy = policy_of(self.pid)
        return "" if policy is None else policy.name.lower()


@dataclass(slots=True)
class Readable:
    """Intact batches after the damage.

    Attributes:
        batches: how many.
        records: how many they hold.
        bytes: how many they take.
        first_offset: of the first; -1: there are none.
        end_offset: after the last; -1: there are none.
    """

    batches: int = 0
    records: int = 0
    bytes: int = 0
    first_offset: int = -1
    end_offset: int = -1


class Losses(NamedTuple):
    """What a cut takes away from a partition.

    Attributes:
        rows: the state of its producers at the cut.
        promised_end: the log was acknowledged up to here at least.
        readable: what is intact after the damage.
        producers: by PID, those that lose something.
        snapshots: numbers of the snapshots that lie beyond the cut.
    """

    rows: PartitionRows
    promised_end: int
    readable: Readable
    producers: list[ProducerLoss]
    snapshots: list[int]


@dataclass(frozen=True, slots=True)
class Context:
    """What the state of producers is read with.

    Attributes:
        files: the file system.
        names: the producer ids of policy epoch.
        bound: names by the PIDs that they are bound to.
        snapshots: all that are intact, newest first.
        now_ms: the time, in ms since 1970.
    """

    files: Files
    names: ProducerNames
    bound: dict[int, str]
    snapshots: list[Snapshot]
    now_ms: int


def find_losses(context: Context, topic: Topic, number: int, damage: Damage) -> Losses:
    """Find out what a cut at the damage takes away.

    Raises:
        LogError: what is before the damage cannot be read.
        OSError: the same.
    """
    if damage.view is None:
        raise LogError(f"{damage.path}: there is no place to cut")
    name = TopicPartition(topic.name, number)
    cut = damage.view.end_offset
    of_it = [each for each in context.snapshots if _is_of(each, name, topic)]
    beyond = [each for each in of_it if each.manifest.offset_vector[name].next_offset > cut]
    before = next((each for each in of_it if each not in beyond), None)
    known = _state_at(context, topic, name, damage.view, before)
    found: dict[int, ProducerLoss] = {}

    def loss(pid: int) -> ProducerLoss:
        if pid not in found:
            called = context.names.name(pid) or context.bound.get(pid, "")
            found[pid] = ProducerLoss(pid, called, known.producer(pid))
        return found[pid]

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
        place = snapshot.manifest.offset_vector[name]
        promised = max(promised, place.next_offset)
        state = ProducerTable(name, topic, context.names, 0)
        state.restore(snapshot.producers[name], place.next_offset, place.hole_ms)
        for pid, row in state.described_producers():
            kept = known.producer(pid)
            if kept is None or (kept.generation, kept.high) < (row.generation, row.high):
                loss(pid).saw(row.generation, row.high)
    promised = max(promised, readable.end_offset)
    numbers = [each.manifest.number for each in beyond]
    losses = [found[pid] for pid in sorted(found)]
    return Losses(known.rows(), promised, readable, losses, numbers)


def _is_of(snapshot: Snapshot, name: TopicPartition, topic: Topic) -> bool:
    place = snapshot.manifest.offset_vector.get(name)
    return place is not None and place.topic_id == topic.topic_id


def _state_at(
    context: Context, topic: Topic, name: TopicPartition, view: LogView, before: Snapshot | None
) -> ProducerTable:
    """The state of producers at the end of the intact part, as a start folds it."""
    known = ProducerTable(name, topic, context.names, 0)
    rows = None
    if before is not None:
        place = before.manifest.offset_vector[name]
        rows = PartitionRows(name, *place, before.producers[name])
    begin_at(known, view.kept_offset, rows, context.now_ms)
    if known.next_offset < view.end_offset:
        scanned = view.scan(known.next_offset)
        known.replay((logged(header, data) for _, header, data in scanned), context.now_ms)
    return known


def _after(files: Files, view: LogView) -> Iterator[ScannedBatch]:
    """The intact batches beyond the end of a view."""
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
    """Which producer sent a batch, and its sequences; None: no producer that is known by an id."""
    try:
        read: LoggedBatch = logged(batch.header, batch.data)
    except LogError:
        return None  # it is counted; its producer is unknown
    found = identity_of(read, names)
    if found is None:
        return None
    pid, (generation, first, last, *_) = found
    return pid, Sequences(generation, first, last)


def _extend(ranges: list[Sequences], more: Sequences) -> None:
    last = ranges[-1] if ranges else None
    if last is not None and (last.generation, last.last + 1) == (more.generation, more.first):
        ranges[-1] = last._replace(last=more.last)
    elif len(ranges) < _RANGES_MAX:
        ranges.append(more)


def parts_of(folder: Path, view: LogView) -> list[Path]:
    """The files of a partition that a cut changes, its indexes aside."""
    files = view.segments[-1].files
    cut = view.segments[-1].base_offset
    logs = [each.path(LOG_SUFFIX) for each in segments_of(files, folder) if each.base_offset >= cut]
    beside = (folder / name for name in (MARK_NAME, LOG_START_NAME))
    return [*logs, *(path for path in beside if files.exists(path))]
