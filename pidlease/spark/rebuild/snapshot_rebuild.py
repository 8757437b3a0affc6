"""Makes a snapshot from a log: the states after all its sends, and the offset vector."""

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

#: The most tasks that read segments.
_TASKS_MAX: Final = 10_000
#: The most damaged places in an error.
_NAMED_MAX: Final = 5

#: Called with the current step, for people.
ReportStep = Callable[[str], None]


class PlacedPartition(NamedTuple):
    """A partition, with its entry in the offset vector."""

    name: TopicPartition
    entry: PartitionOffset


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The snapshot that was written.

    Attributes:
        leases: the number of PIDs with a lease in it.
    """

    manifest: Manifest
    leases: int


def rebuild(
    sends: DataFrame,
    partitions: Sequence[PlacedPartition],
    store: SnapshotStore,
    folder: Path,
    now_ms: int,
    report: ReportStep = lambda _: None,
) -> Rebuilt:
    """Write a snapshot of the state that a server has after it has replayed a whole log.

    Parameters:
        sends: all sends of the log, from the first segments up to the offset vector.
        partitions: in the order in which a server opens them.
        folder: for temporary files; all of Spark's workers must see it.
        now_ms: time of arrival for all sends, and the beginning of all leases, in ms since 1970.
        report: called with the current step.

    Raises:
        RebuildError: the log is damaged. A server would stop there; a snapshot would hide it.
        OSError: the snapshot was not written; earlier ones are untouched.
    """
    scratch = Path(tempfile.mkdtemp(prefix=".aside-states-", dir=folder))
    try:
        report("folding the log")
        states = fold_sends(sends, now_ms).sortWithinPartitions("topic", "partition")
        states.write.mode("overwrite").parquet(str(scratch / "states"))
        folded = ds.dataset(scratch / "states", format="parquet")
        _check_intact(folded)
        report("writing the snapshot")
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
            " audit` and `pidlease verify` show all damage"
        )


def _rows(
    folded: ds.Dataset,
    partitions: Sequence[PlacedPartition],
    names: ProducerNames,
    leases: "_ReplayLeases",
) -> Iterator[PartitionRows]:
    """Return the rows of each partition, ordered by first send, as after a replay."""
    for name, entry in partitions:
        mine = (ds.field("topic") == name.topic) & (ds.field("partition") == name.partition)
        table = folded.to_table(filter=mine).sort_by("first_offset")
        pids = _pids(table, names)
        leases.take(pids)
        states: list[bytes] = table.column("state").to_pylist()
        yield entry.rows(name, dict(zip(pids, states, strict=True)))


def _pids(table: pa.Table, names: ProducerNames) -> list[int]:
    ids = table.column("producer_id").to_pylist()
    pids = table.column("pid").to_pylist()
    return [names.take(name) if name else pid for pid, name in zip(pids, ids, strict=True)]


class _ReplayLeases:
    """The leases that a replay grants: one for each PID's number, in the order of the log.

    Parameters:
        rows: the leases are appended to it.
        now_ms: when they begin.
    """

    def __init__(self, rows: LeaseRows, now_ms: int) -> None:
        self._rows: Final = rows
        self._now_ms: Final = now_ms
        self._numbers: set[int] = set()

    def take(self, pids: list[int]) -> None:
        """Add the producers of a partition; the lease of a producer id has no row."""
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
    report: ReportStep = lambda _: None,
) -> Rebuilt:
    """Write a snapshot of a data directory: into it, or elsewhere.

    Parameters:
        spark: the session; its workers must see the directory under the same path.
        output: a folder for the snapshot; a server may use the directory meanwhile. None: the
            snapshot goes into the directory, and no server may use it.
        now_ms, report: as in `rebuild`.

    Raises:
        RebuildError: the directory is in use, damaged, or no data directory.
        OSError: the snapshot was not written.
    """
    try:
        directory = LogDirectory(str(data_dir), durable=output is not None)
        with _locked(data_dir, output):
            placed, parts = _plan(directory, data_dir, now_ms)
            if output is None:
                _flush(parts)
            folder = output or data_dir / "snapshots"
            store = SnapshotStore(RealFiles(), folder)
            return rebuild(read_parts(spark, parts), placed, store, folder, now_ms, report)
    except (ReadError, DataFolderError) as error:
        raise RebuildError(str(error)) from error


@contextmanager
def _locked(data_dir: Path, output: Path | None) -> Iterator[None]:
    """Lock the directory if the snapshot goes into it."""
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
    """Return the partitions in the order of a server, and the segments to read."""
    placed: list[PlacedPartition] = []
    parts: list[SegmentPart] = []
    for topic in TopicStore(ReadOnlyFiles(RealFiles()), data_dir / "topics").load():
        for number in range(topic.partitions):
            bases = directory.segments(topic.name, number)
            kept, end = min(bases, default=0), directory.offset_range(topic.name, number).end
            next_offset = max(end, kept)
            entry = PartitionOffset(
                topic.topic_id, next_offset, _history_lost_ms(topic, kept, now_ms),
                end_offset=next_offset, removed_end=kept,
            )  # fmt: skip
            placed.append(PlacedPartition(TopicPartition(topic.name, number), entry))
            # All segments on disk, as in a replay, even before the log start offset.
            ends = [*bases[1:], end]
            parts += [
                SegmentPart(str(data_dir), topic.name, number, (base,), base, until)
                for base, until in zip(bases, ends, strict=True)
                if base < until
            ]
    return placed, parts


def _history_lost_ms(topic: Topic, kept: int, now_ms: int) -> int:
    """Return when earlier history was found missing, as `engine.recovery` determines it."""
    return now_ms if kept > 0 else topic.made_again_ms


def _flush(parts: list[SegmentPart]) -> None:
    """Fsync the last segments: the offset vector must not be ahead of the disk."""
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
    """Return the sends of segments, each read by its own task."""
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
