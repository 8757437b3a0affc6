"""Snapshots: the fold over the log, with the offset vector at which it was taken.

A snapshot is a folder ``snapshot-NNNNNNNNNNNN`` with producers.parquet, leases.parquet and
manifest.json; Spark and pandas read it as it is. It is written aside, fsynced and renamed, so
it is there as a whole or not at all; what it says is checked when it is read.
"""

import array
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from pidlease.core.state import Appended, ProducerState
from pidlease.storage.files import (
    Buffer,
    Files,
    OpenFile,
    aside_path,
    make_durable_folder,
    read_file,
    remove_tree,
    sweep_asides,
)

FORMAT_VERSION: Final = 1

_PREFIX: Final = "snapshot-"
_MANIFEST: Final = "manifest.json"
_PRODUCERS: Final = "producers.parquet"
_LEASES: Final = "leases.parquet"
_ROWS_AT_ONCE: Final = 20_000

_BATCH: Final = pa.struct(
    [("first", pa.int64()), ("last", pa.int64()), ("offset", pa.int64()), ("crc", pa.uint32())]
)
_PRODUCERS_SCHEMA: Final = pa.schema(
    [
        pa.field("pid", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("generation", pa.int64()),
        pa.field("high", pa.int64()),
        pa.field("lowest", pa.int64()),
        pa.field("batches", pa.list_(_BATCH)),
        pa.field("arrival_ms", pa.int64()),
    ]
)
_LEASES_SCHEMA: Final = pa.schema(
    [
        pa.field("pid", pa.int64()),
        pa.field("granted_ms", pa.int64()),
        pa.field("first_ms", pa.int64()),
    ]
)


class SnapshotError(Exception):
    """A snapshot that cannot be used: damaged, incomplete, or of a newer format."""


class TopicPartition(NamedTuple):
    """A partition's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class LeaseRow(NamedTuple):
    """A lease: its PID, when it was granted, and its first message (ms; -1: none yet)."""

    pid: int
    granted_ms: int
    first_ms: int


class PartitionRows(NamedTuple):
    """One partition's part of a snapshot.

    Attributes:
        partition: its name.
        topic_id: of the topic, to tell it from a later one of the same name.
        next_offset: its place in the offset vector: the first offset that is not applied.
        hole_ms: when it was found that earlier history is missing; -1 where it is all there.
            Of a PID from an older block nothing is known here even if it is young.
        producers: the states.
    """

    partition: TopicPartition
    topic_id: str
    next_offset: int
    hole_ms: int
    producers: Mapping[int, ProducerState]


class Place(NamedTuple):
    """See `PartitionRows`."""

    topic_id: str
    next_offset: int
    hole_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a snapshot without reading its rows.

    Attributes:
        number: counts up from one snapshot to the next.
        created_ms: when it was taken, in ms since 1970.
        places: for each partition its place in the offset vector, and what goes with it.
        rows: how many rows each file has.
        checksums: (bytes, CRC-32C) of each file.
    """

    number: int
    created_ms: int
    places: dict[TopicPartition, Place]
    rows: dict[str, int]
    checksums: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that was read and found intact."""

    manifest: Manifest
    producers: dict[TopicPartition, dict[int, ProducerState]]
    leases: list[LeaseRow]


class SnapshotStore:
    """The snapshots in a folder. All methods block.

    Parameters:
        files: the file system.
        folder: where they are.
        keep: how many to keep; more than one, so that a damaged one has one before it.
    """

    def __init__(self, files: Files, folder: Path, keep: int = 2) -> None:
        self._files = files
        self._folder = folder
        self._keep = keep
        make_durable_folder(files, folder)
        sweep_asides(files, folder)
        # Retention trusts what is here: the name of the last one may not be on the disk yet.
        files.fsync_folder(folder)

    def numbers(self) -> list[int]:
        """The snapshots that are there, newest first."""
        names = self._files.list(self._folder)
        numbers = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
        return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)

    def write(
        self, created_ms: int, partitions: Iterable[PartitionRows], leases: Iterable[LeaseRow]
    ) -> Manifest:
        """Write a snapshot, and remove the ones that are older than those to keep.

        Parameters:
            created_ms: the time, in ms since 1970.
            partitions: each partition's rows with its place in the offset vector.
            leases: the leases, in the order of the ring.

        Raises:
            OSError: it is not on the disk; those before it are untouched.
        """
        number = max(self.numbers(), default=0) + 1
        aside = aside_path(self._folder)
        self._files.make_folder(aside)
        try:
            manifest = self._write_aside(aside, number, created_ms, (partitions, leases))
            self._files.rename(aside, self._folder / _name(number))
        except OSError:
            with suppress(OSError):  # a full disk, perhaps: do not leave it fuller
                remove_tree(self._files, aside)
            raise
        self._files.fsync_folder(self._folder)
        for old in self.numbers()[self._keep :]:
            self.remove(old)
        return manifest

    def _write_aside(
        self,
        aside: Path,
        number: int,
        created_ms: int,
        content: tuple[Iterable[PartitionRows], Iterable[LeaseRow]],
    ) -> Manifest:
        partitions, leases = content
        places: dict[TopicPartition, Place] = {}
        sums: dict[str, tuple[int, int]] = {}
        rows: dict[str, int] = {}
        rows[_PRODUCERS], sums[_PRODUCERS] = self._write_table(
            aside / _PRODUCERS, _PRODUCERS_SCHEMA, _producer_batches(partitions, places)
        )
        rows[_LEASES], sums[_LEASES] = self._write_table(
            aside / _LEASES, _LEASES_SCHEMA, _lease_batches(leases)
        )
        manifest = Manifest(number, created_ms, places, rows, sums)
        self._write_file(aside / _MANIFEST, _encode_manifest(manifest))
        self._files.fsync_folder(aside)
        return manifest

    def remove(self, number: int) -> None:
        """Remove a snapshot: first its manifest, without which the rest means nothing."""
        folder = self._folder / _name(number)
        if self._files.exists(folder / _MANIFEST):
            self._files.remove(folder / _MANIFEST)
        remove_tree(self._files, folder)

    def manifest(self, number: int) -> Manifest:
        """What a snapshot says of itself.

        Raises:
            SnapshotError: it cannot be used.
        """
        path = self._folder / _name(number) / _MANIFEST
        try:
            return _decode_manifest(read_file(self._files, path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SnapshotError(f"{path}: {error}") from error

    def load(self, number: int) -> Snapshot:
        """Read a snapshot, and check every file of it.

        Raises:
            SnapshotError: it cannot be used.
        """
        manifest = self.manifest(number)
        folder = self._folder / _name(number)
        producers = self._read_table(folder / _PRODUCERS, _PRODUCERS_SCHEMA, manifest)
        leases = self._read_table(folder / _LEASES, _LEASES_SCHEMA, manifest)
        rows = [
            row
            for batch in leases.to_batches()
            for row in map(LeaseRow, *(_integers(column) for column in batch.columns))
        ]
        return Snapshot(manifest, _producers(producers, manifest), rows)

    def _write_table(
        self, path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> tuple[int, tuple[int, int]]:
        file = self._files.open(path, create=True)
        try:
            sink = _Sink(file)
            rows = 0
            with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
            file.fsync()
        finally:
            file.close()
        return rows, (sink.position, sink.checksum)

    def _write_file(self, path: Path, content: bytes) -> None:
        file = self._files.open(path, create=True)
        try:
            file.write_at([content], 0)
            file.fsync()
        finally:
            file.close()

    def _read_table(self, path: Path, schema: pa.Schema, manifest: Manifest) -> pa.Table:
        try:
            content = read_file(self._files, path)
        except OSError as error:
            raise SnapshotError(f"{path}: {error}") from error
        if (len(content), crc32c(content)) != manifest.checksums.get(path.name):
            raise SnapshotError(f"{path} is damaged: length or checksum is not the manifest's")
        try:
            table = pq.read_table(pa.BufferReader(content), schema=schema)
        except pa.ArrowException as error:
            raise SnapshotError(f"{path}: {error}") from error
        if table.num_rows != manifest.rows[path.name]:
            raise SnapshotError(f"{path}: {table.num_rows} rows are not the manifest's")
        return table


class _Sink:
    """What pyarrow writes to: a file of the port, with a checksum on the way."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self.position = 0
        self.checksum = 0
        self.closed = False

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        self._file.write_at([view], self.position)
        self.checksum = crc32c(view, self.checksum)
        self.position += len(view)
        return len(view)

    def tell(self) -> int:
        return self.position

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True


def _name(number: int) -> str:
    return f"{_PREFIX}{number:012d}"


class _ProducerColumns:
    """Rows of producers.parquet, gathered by column: Arrow takes lists many times faster."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.topics: list[str] = []
        self.partitions: list[int] = []
        self.states: list[ProducerState] = []

    def add(self, partition: TopicPartition, pid: int, state: ProducerState) -> None:
        self.pids.append(pid)
        self.topics.append(partition.topic)
        self.partitions.append(partition.partition)
        self.states.append(state)

    def batch(self) -> pa.RecordBatch:
        ends = accumulate((len(state.batches) for state in self.states), initial=0)
        kept = list(chain.from_iterable(state.batches for state in self.states))
        columns = list(zip(*kept, strict=True)) or [(), (), (), ()]
        structs = pa.StructArray.from_arrays(
            [pa.array(values, field.type) for values, field in zip(columns, _BATCH, strict=True)],
            fields=list(_BATCH),
        )
        states = list(zip(*self.states, strict=True)) or [(), (), (), (), ()]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(self.pids, pa.int64()),
                pa.array(self.topics, pa.string()),
                pa.array(self.partitions, pa.int32()),
                pa.array(states[0], pa.int64()),
                pa.array(states[1], pa.int64()),
                pa.array(states[2], pa.int64()),
                pa.ListArray.from_arrays(pa.array(list(ends), pa.int32()), structs),
                pa.array(states[4], pa.int64()),
            ],
            schema=_PRODUCERS_SCHEMA,
        )


def _producer_batches(
    partitions: Iterable[PartitionRows], places: dict[TopicPartition, Place]
) -> Iterator[pa.RecordBatch]:
    """Rows in chunks, so that a million of them never stand in memory twice."""
    columns = _ProducerColumns()
    for partition, topic_id, next_offset, hole_ms, producers in partitions:
        places[partition] = Place(topic_id, next_offset, hole_ms)
        for pid, state in producers.items():
            columns.add(partition, pid, state)
            if len(columns.pids) >= _ROWS_AT_ONCE:
                yield columns.batch()
                columns = _ProducerColumns()
    yield columns.batch()


def _lease_batches(leases: Iterable[LeaseRow]) -> Iterator[pa.RecordBatch]:
    rows = list(leases)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        columns = zip(*rows[start : start + _ROWS_AT_ONCE], strict=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, pa.int64()) for column in columns], schema=_LEASES_SCHEMA
        )


def _integers(column: pa.Array) -> list[int]:
    """The values of an integer column without nulls, straight from its buffer."""
    values = array.array({pa.int64(): "q", pa.int32(): "i", pa.uint32(): "I"}[column.type])
    if len(column):
        start = column.offset * values.itemsize
        end = start + len(column) * values.itemsize
        values.frombytes(memoryview(column.buffers()[1])[start:end])
    return values.tolist()


def _producers(
    table: pa.Table, manifest: Manifest
) -> dict[TopicPartition, dict[int, ProducerState]]:
    found: dict[TopicPartition, dict[int, ProducerState]] = {
        partition: {} for partition in manifest.places
    }
    for rows in table.to_batches():
        column = dict(zip(rows.schema.names, rows.columns, strict=True))
        lists = column["batches"]
        ends = _integers(lists.offsets)
        kept = list(map(Appended, *(_integers(part) for part in lists.values.flatten())))
        states = zip(
            _integers(column["generation"]),
            _integers(column["high"]),
            _integers(column["lowest"]),
            (tuple(kept[start:end]) for start, end in pairwise(ends)),
            _integers(column["arrival_ms"]),
            strict=True,
        )
        names = zip(column["topic"].to_pylist(), _integers(column["partition"]), strict=True)
        for name, pid, state in zip(names, _integers(column["pid"]), states, strict=True):
            partition = TopicPartition(*name)
            if partition not in found:
                raise SnapshotError(f"rows of {partition}, which is not in the offset vector")
            found[partition][pid] = ProducerState._make(state)
    return found


def _encode_manifest(manifest: Manifest) -> bytes:
    topics: dict[str, dict[str, Any]] = {}
    for (topic, partition), (topic_id, offset, hole_ms) in manifest.places.items():
        entry = topics.setdefault(topic, {"topic_id": topic_id, "partitions": {}})
        entry["partitions"][str(partition)] = {"next_offset": offset, "hole_ms": hole_ms}
    body = json.dumps(
        {
            "format": FORMAT_VERSION,
            "number": manifest.number,
            "created_ms": manifest.created_ms,
            "topics": topics,
            "rows": manifest.rows,
            "checksums": manifest.checksums,
        },
        sort_keys=True,
    )
    return json.dumps({"crc32c": crc32c(body.encode()), "manifest": body}).encode()


def _decode_manifest(content: bytes) -> Manifest:
    outer = json.loads(content)
    if crc32c(outer["manifest"].encode()) != outer["crc32c"]:
        raise ValueError("the manifest's own checksum does not fit")
    body = json.loads(outer["manifest"])
    if body["format"] > FORMAT_VERSION:
        raise ValueError(f"format {body['format']} is newer than {FORMAT_VERSION}")
    places = {
        TopicPartition(topic, int(number)): Place(
            entry["topic_id"], part["next_offset"], part["hole_ms"]
        )
        for topic, entry in body["topics"].items()
        for number, part in entry["partitions"].items()
    }
    sums = {name: (size, crc) for name, (size, crc) in body["checksums"].items()}
    return Manifest(body["number"], body["created_ms"], places, body["rows"], sums)
