"""A snapshot made from a log: the fold of all its sends, and the offset vector."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from pidlease.core.pid import number_of
from pidlease.core.producer_names import ProducerNames, is_stand_in
from pidlease.core.topic_partition import TopicPartition
from pidlease.log.segments.data_directory import lock_folder
from pidlease.log.segments.segment import LOG_SUFFIX, SegmentFiles
from pidlease.spark.errors import ReadError, RebuildError
from pidlease.spark.reader.log_directory import LogDirectory, folder_of, segment_batches
from pidlease.spark.reader.log_parts import SegmentPart
from pidlease.spark.reader.send_rows import sends as read_sends
from pidlease.spark.rebuild.log_fold import fold_sends
from pidlease.spark.source.settings import schema_of
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import RealFiles
from pidlease.storage.snapshots import (
    LeaseRows,
    Manifest,
    PartitionOffset,
    PartitionRows,
    SnapshotStore,
)
from pidlease.storage.topics.topic_store import Topic, TopicStore
from pidlease.verify.read_only_files import ReadOnlyFiles

#: Tasks that segments are read in, at most.
_TASKS_MAX: Final = 10_000
#: Damaged places that are named when nothing is rebuilt for them.
_NAMED_MAX: Final = 5

Told = Callable[[str], None]


class PlacedPartition(NamedTuple):
    """A partition, and its place in the offset vector."""

    name: TopicPartition
    place: PartitionOffset


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was written.

    Attributes:
        manifest: of the snapshot.
        leases: how many PIDs have a lease in it.
    """

    manifest: Manifest
    leases: int


def rebuild(
    sends: DataFrame,
    partitions: Sequence[PlacedPartition],
    store: SnapshotStore,
    folder: Path,
    now_ms: int,
    told: Told = lambda _: None,
) -> Rebuilt:
    """Write a snapshot of what a server would know after it has replayed a whole log.

    Parameters:
        sends: all sends of the log up to the places, from its first segments on.
        partitions: in the order in which a server opens them.
        store: where the snapshot goes.
        folder: where the states wait until they are written; all of Spark's workers see it.
        now_ms: when all of it counts as arrived, and the leases as begun, in ms since 1970.
        told: called with what is being done, for a person.

    Raises:
        RebuildError: something in the log is damaged. A server would stop there; a snapshot would
            say that all is well behind.
        OSError: the snapshot is not on the disk; those before it are untouched.
    """
    scratch = Path(tempfile.mkdtemp(prefix=".aside-states-", dir=folder))
    try:
        told("folding the log")
        states = fold_sends(sends, now_ms).sortWithinPartitions("topic", "partition")
        states.write.mode("overwrite").parquet(str(scratch / "states"))
        folded = ds.dataset(scratch / "states", format="parquet")
        _check_intact(folded)
        told("writing the snapshot")
        leases = LeaseRows()
        rows = _rows(folded, partitions, store.names, _ReplayLeases(leases, now_ms))
        manifest = store.write(now_ms, rows, leases)
        return Rebuilt(manifest, len(leases))
    finally:
        shutil.rmtree(scratch)


def _check_intact(folded: ds.Dataset) -> None:
    damaged = folded.to_table(
        columns=["topic", "partition", "first_offset", "damage"],
        filter=ds.field("damage").is_valid(),
    ).slice(0, _NAMED_MAX)
    places = [
        f"{row['topic']}-{row['partition']} at offset {row['first_offset']} ({row['damage']})"
        for row in damaged.to_pylist()
    ]
    if places:
        raise RebuildError(
            f"the log is damaged: {'; '.join(places)}. A snapshot would hide it; `pidlease spark"
            " audit` and `pidlease verify` tell all of it"
        )


def _rows(
    folded: ds.Dataset,
    partitions: Sequence[PlacedPartition],
    names: ProducerNames,
    leases: "_ReplayLeases",
) -> Iterator[PartitionRows]:
    """A partition at a time, each producer where its first send stands, as a replay has them."""
    for name, place in partitions:
        mine = (ds.field("topic") == name.topic) & (ds.field("partition") == name.partition)
        table = folded.to_table(filter=mine).sort_by("first_offset")
        pids = _pids(table, names)
        leases.take(pids)
        yield PartitionRows(name, *place, dict(zip(pids, _states(table), strict=True)))


def _pids(table: pa.Table, names: ProducerNames) -> list[int]:
    ids = table.column("producer_id").to_pylist()
    pids = table.column("pid").to_pylist()
    return [names.take(name) if name else pid for pid, name in zip(pids, ids, strict=True)]


def _states(table: pa.Table) -> list[bytes]:
    states: list[bytes] = table.column("state").to_pylist()
    return states


class _ReplayLeases:
    """The leases that a replay gives: one to each number, in the order in which they are met.

    Parameters:
        rows: gets them.
        now_ms: when they begin.
    """

    def __init__(self, rows: LeaseRows, now_ms: int) -> None:
        self._rows: Final = rows
        self._now_ms: Final = now_ms
        self._numbers: set[int] = set()

    def take(self, pids: list[int]) -> None:
        """The next partition's producers. Those with a producer id have a lease without a row."""
        for pid in pids:
            number = number_of(pid)
            if number not in self._numbers:
                self._numbers.add(number)
                if not is_stand_in(pid):
                    self._rows.append(pid, -1, self._now_ms)


# ---------------------------------------------------------------------- a data directory


def rebuild_directory(
    spark: SparkSession,
    data_dir: Path,
    output: Path | None,
    now_ms: int,
    told: Told = lambda _: None,
) -> Rebuilt:
    """Write a snapshot of a data directory: into it, or elsewhere.

    Parameters:
        spark: the session; its workers see the directory under the same path.
        data_dir: the directory.
        output: a folder for the snapshot, where a server may be at work in the directory; None: it
            goes into the directory, which nobody may use meanwhile.
        now_ms: see `rebuild`.
        told: see `rebuild`.

    Raises:
        RebuildError: it is in use, damaged, or no data directory.
        OSError: the snapshot is not on the disk.
    """
    try:
        directory = LogDirectory(str(data_dir), durable=output is not None)
        with _to_be_written(data_dir, output):
            placed, parts = _plan(directory, data_dir, now_ms)
            if output is None:
                _flush(parts)
            folder = output or data_dir / "snapshots"
            store = SnapshotStore(RealFiles(), folder)
            return rebuild(read_parts(spark, parts), placed, store, folder, now_ms, told)
    except (ReadError, DataFolderError) as error:
        raise RebuildError(str(error)) from error


@contextmanager
def _to_be_written(data_dir: Path, output: Path | None) -> Iterator[None]:
    """Keep all others out where the snapshot goes into the directory."""
    if output is not None:
        yield
        return
    lock = lock_folder(RealFiles(), data_dir)
    try:
        yield
    finally:
        lock.release()


def _plan(
    directory: LogDirectory, data_dir: Path, now_ms: int
) -> tuple[list[PlacedPartition], list[SegmentPart]]:
    """The partitions, as a server opens them, and the segments to be read."""
    placed: list[PlacedPartition] = []
    parts: list[SegmentPart] = []
    for topic in TopicStore(ReadOnlyFiles(RealFiles()), data_dir / "topics").load():
        for number in range(topic.partitions):
            bases = directory.segments(topic.name, number)
            kept, end = min(bases, default=0), directory.offset_range(topic.name, number).end
            place = PartitionOffset(topic.topic_id, max(end, kept), _hole_ms(topic, kept, now_ms))
            placed.append(PlacedPartition(TopicPartition(topic.name, number), place))
            # From what is on the disk, deleted by order or not: so does a replay.
            ends = [*bases[1:], end]
            parts += [
                SegmentPart(str(data_dir), topic.name, number, (base,), base, behind)
                for base, behind in zip(bases, ends, strict=True)
                if base < behind
            ]
    return placed, parts


def _hole_ms(topic: Topic, kept: int, now_ms: int) -> int:
    """When it was found that earlier history is missing; see `engine.recovery`."""
    return now_ms if kept > 0 else topic.made_again_ms


def _flush(parts: list[SegmentPart]) -> None:
    """The offset vector may not run ahead of the disk; all but last segments were fsynced."""
    last = {(part.topic, part.partition): part for part in parts}
    for part in last.values():
        folder = folder_of(part.data_dir, part.topic, part.partition)
        segment = SegmentFiles(RealFiles(), folder, part.segments[-1])
        file = RealFiles().open(segment.path(LOG_SUFFIX))
        try:
            file.fsync()
        finally:
            file.close()


def read_parts(spark: SparkSession, parts: list[SegmentPart]) -> DataFrame:
    """The sends of segments, each read by a task of its own."""
    rows = [(p.data_dir, p.topic, p.partition, p.segments[0], p.start, p.end) for p in parts]
    kinds = "data_dir string, topic string, partition int, segment long, start long, end long"
    table = spark.createDataFrame(rows, kinds)

    def read(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in given:
            for data_dir, topic, partition, segment, start, end in zip(
                *(column.to_pylist() for column in each.columns), strict=True
            ):
                part = SegmentPart(data_dir, topic, partition, (segment,), start, end)
                yield from read_sends(part, segment_batches(part))

    tasks = min(max(len(rows), 1), _TASKS_MAX)
    return table.repartition(tasks).mapInArrow(read, schema_of({"rows": "sends"}))
