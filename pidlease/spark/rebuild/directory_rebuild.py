"""The rebuild of a data directory, offline: what is read, up to where, and where it is written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pidlease.log.segments.data_directory import lock_folder
from pidlease.log.segments.segment import LOG_SUFFIX, SegmentFiles
from pidlease.spark.reader.errors import ReadError
from pidlease.spark.reader.log_directory import LogDirectory
from pidlease.spark.reader.read_parts import SegmentPart
from pidlease.spark.reader.segment_batches import batches, folder_of
from pidlease.spark.reader.send_rows import sends
from pidlease.spark.rebuild.errors import RebuildError
from pidlease.spark.rebuild.snapshot_rebuild import PlacedPartition, Rebuilt, Told, rebuild
from pidlease.spark.source.source_columns import schema_of
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import RealFiles
from pidlease.storage.snapshots import PartitionOffset, SnapshotStore, TopicPartition
from pidlease.storage.topics.topic_store import Topic, TopicStore
from pidlease.verify.read_only_files import ReadOnlyFiles

#: Tasks that segments are read in, at most.
_TASKS_MAX: Final = 10_000


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
            kept, end = min(bases, default=0), directory.span(topic.name, number).end
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
                yield from sends(part, batches(part))

    tasks = min(max(len(rows), 1), _TASKS_MAX)
    return table.repartition(tasks).mapInArrow(read, schema_of({"rows": "sends"}))
