"""Snapshots: the fold over the log, with the offset vector at which it was taken.

A snapshot is a folder ``snapshot-NNNNNNNNNNNN`` with producers.parquet, leases.parquet and
manifest.json; Spark and pandas read it as it is. It is written aside, fsynced and renamed, so
it is there as a whole or not at all; what it says is checked when it is read.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
    """One partition's part: the first offset that is not applied, and who wrote before it."""

    partition: TopicPartition
    topic_id: str
    next_offset: int
    producers: Mapping[int, ProducerState]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a snapshot without reading its rows.

    Attributes:
        number: counts up from one snapshot to the next.
        created_ms: when it was taken, in ms since 1970.
        offsets: the offset vector: partition -> (topic id, first offset not applied).
        rows: how many rows each file has.
        checksums: (bytes, CRC-32C) of each file.
    """

    number: int
    created_ms: int
    offsets: dict[TopicPartition, tuple[str, int]]
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
        offsets: dict[TopicPartition, tuple[str, int]] = {}
        sums: dict[str, tuple[int, int]] = {}
        rows: dict[str, int] = {}
        rows[_PRODUCERS], sums[_PRODUCERS] = self._write_table(
            aside / _PRODUCERS, _PRODUCERS_SCHEMA, _producer_batches(partitions, offsets)
        )
        rows[_LEASES], sums[_LEASES] = self._write_table(
            aside / _LEASES, _LEASES_SCHEMA, _lease_batches(leases)
        )
        manifest = Manifest(number, created_ms, offsets, rows, sums)
        self._write_file(aside / _MANIFEST, _encode_manifest(manifest))
        self._files.fsync_folder(aside)
        self._files.rename(aside, self._folder / _name(number))
        self._files.fsync_folder(self._folder)
        for old in self.numbers()[self._keep :]:
            self.remove(old)
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
            LeaseRow(*row)
            for row in zip(*(leases.column(i).to_pylist() for i in range(3)), strict=True)
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


def _producer_batches(
    partitions: Iterable[PartitionRows], offsets: dict[TopicPartition, tuple[str, int]]
) -> Iterator[pa.RecordBatch]:
    """Rows in chunks, so that a million of them never stand in memory twice."""
    rows: list[dict[str, object]] = []
    for (topic, partition), topic_id, next_offset, producers in partitions:
        offsets[TopicPartition(topic, partition)] = (topic_id, next_offset)
        for pid, state in producers.items():
            rows.append(
                {
                    "pid": pid,
                    "topic": topic,
                    "partition": partition,
                    "generation": state.generation,
                    "high": state.high,
                    "lowest": state.lowest,
                    "batches": [batch._asdict() for batch in state.batches],
                    "arrival_ms": state.arrival_ms,
                }
            )
            if len(rows) >= _ROWS_AT_ONCE:
                yield pa.RecordBatch.from_pylist(rows, schema=_PRODUCERS_SCHEMA)
                rows = []
    yield pa.RecordBatch.from_pylist(rows, schema=_PRODUCERS_SCHEMA)


def _lease_batches(leases: Iterable[LeaseRow]) -> Iterator[pa.RecordBatch]:
    rows = [lease._asdict() for lease in leases]
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        yield pa.RecordBatch.from_pylist(part, schema=_LEASES_SCHEMA)


def _producers(
    table: pa.Table, manifest: Manifest
) -> dict[TopicPartition, dict[int, ProducerState]]:
    found: dict[TopicPartition, dict[int, ProducerState]] = {
        partition: {} for partition in manifest.offsets
    }
    columns = [table.column(name).to_pylist() for name in _PRODUCERS_SCHEMA.names]
    for pid, topic, number, generation, high, lowest, batches, arrival_ms in zip(
        *columns, strict=True
    ):
        kept = tuple(Appended(b["first"], b["last"], b["offset"], b["crc"]) for b in batches)
        partition = TopicPartition(topic, number)
        if partition not in found:
            raise SnapshotError(f"rows of {partition}, which is not in the offset vector")
        found[partition][pid] = ProducerState(generation, high, lowest, kept, arrival_ms)
    return found


def _encode_manifest(manifest: Manifest) -> bytes:
    topics: dict[str, dict[str, Any]] = {}
    for (topic, partition), (topic_id, offset) in manifest.offsets.items():
        entry = topics.setdefault(topic, {"topic_id": topic_id, "next_offsets": {}})
        entry["next_offsets"][str(partition)] = offset
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
    offsets = {
        TopicPartition(topic, int(partition)): (entry["topic_id"], offset)
        for topic, entry in body["topics"].items()
        for partition, offset in entry["next_offsets"].items()
    }
    sums = {name: (size, crc) for name, (size, crc) in body["checksums"].items()}
    return Manifest(body["number"], body["created_ms"], offsets, body["rows"], sums)
