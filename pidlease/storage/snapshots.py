"""Snapshots of the producers' states, with the offset vector up to which the log is applied.

A snapshot is a folder ``snapshot-NNNNNNNNNNNN`` with producers.parquet, leases.parquet and
manifest.json, which Spark and pandas can read too. It is written aside, fsynced and renamed, so it
exists completely or not at all. Each read checks it.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from crc32c import crc32c

from pidlease.core.packed import Packed
from pidlease.core.producer_names import ProducerNames
from pidlease.core.topic_partition import TopicPartition
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.files import (
    Files,
    aside_path,
    make_durable_folder,
    read_file,
    remove_tree,
    sweep_asides,
)
from pidlease.storage.snapshot_rows import (
    LeaseRow,
    LeaseRows,
    PartitionOffset,
    PartitionRows,
    SnapshotError,
)

__all__ = [
    "LeaseRow",
    "LeaseRows",
    "Manifest",
    "PartitionOffset",
    "PartitionRows",
    "Snapshot",
    "SnapshotError",
    "SnapshotStore",
    "TopicPartition",
]

#: 2: producers have a producer_id.
FORMAT_VERSION: Final = 2
#: How the CRCs of batches were computed; 3: `record_batch.comparable_crc` has their form.
_CRC_RULE: Final = 3
_PREFIX: Final = "snapshot-"
_MANIFEST: Final = "manifest.json"
_PRODUCERS: Final = "producers.parquet"
_LEASES: Final = "leases.parquet"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A snapshot's metadata.

    Attributes:
        number: grows from one snapshot to the next.
        created_ms: when it was taken, in ms since 1970.
        offset_vector: for each partition, up to which offset the log is applied.
        rows: file name -> number of rows.
        checksums: file name -> (bytes, CRC-32C).
        crc_rule: how the CRCs of batches were computed.
    """

    number: int
    created_ms: int
    offset_vector: dict[TopicPartition, PartitionOffset]
    rows: dict[str, int]
    checksums: dict[str, tuple[int, int]]
    crc_rule: int = _CRC_RULE

    def next_offset(self, name: TopicPartition, topic_id: str) -> int:
        """Return up to which offset a partition's log is applied; 0: the snapshot lacks it."""
        entry = self.offset_vector.get(name)
        return entry.next_offset if entry is not None and entry.topic_id == topic_id else 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that was read and is intact."""

    manifest: Manifest
    producers: dict[TopicPartition, dict[int, Packed]]
    leases: LeaseRows


class SnapshotStore:
    """The snapshots in a folder. All methods block.

    Parameters:
        keep: how many snapshots to keep; more than one, in case the newest is damaged.
        names: the producer ids of policy epoch, to write and to read.
    """

    def __init__(
        self, files: Files, folder: Path, keep: int = 2, names: ProducerNames | None = None
    ) -> None:
        self.names: Final = ProducerNames() if names is None else names
        self._files = files
        self._folder = folder
        self.keep: Final = keep
        make_durable_folder(files, folder)
        sweep_asides(files, folder)
        # Retention relies on these snapshots, but a crash may have come before the last fsync.
        files.fsync_folder(folder)

    def numbers(self) -> list[int]:
        """Return the existing snapshots' numbers, newest first."""
        names = self._files.list(self._folder)
        numbers = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
        return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)

    def write(
        self, created_ms: int, partitions: Iterable[PartitionRows], leases: Iterable[LeaseRow]
    ) -> Manifest:
        """Write a snapshot, and remove the oldest ones beyond `keep`.

        Parameters:
            created_ms: the time, in ms since 1970.
            partitions: the partitions' rows.
            leases: the leases, in the order of the lease table.

        Raises:
            OSError: the snapshot is not durable; the older ones are untouched.
        """
        number = max(self.numbers(), default=0) + 1
        aside = aside_path(self._folder)
        self._files.make_folder(aside)
        try:
            manifest = self._write_aside(aside, number, created_ms, (partitions, leases))
            self._files.rename(aside, self._folder / _name(number))
        except OSError:
            with suppress(OSError):  # the disk may be full: do not leave garbage there
                remove_tree(self._files, aside)
            raise
        try:
            self._files.fsync_folder(self._folder)
        except OSError:
            # Nothing may trust it: retention would remove what only this snapshot covers.
            with suppress(OSError):
                self.remove(number)
            raise
        for old in self.numbers()[self.keep :]:
            try:
                self.remove(old)
            except OSError as error:  # the new snapshot is valid all the same
                LINES.write(_log, "error", "an old snapshot cannot be removed", kind_of(error),
                            number=old, error=str(error))  # fmt: skip
        return manifest

    def _write_aside(
        self,
        aside: Path,
        number: int,
        created_ms: int,
        content: tuple[Iterable[PartitionRows], Iterable[LeaseRow]],
    ) -> Manifest:
        # Here, because it imports pyarrow: 50 MB that a server without a snapshot does not need.
        from pidlease.storage import snapshot_files, snapshot_tables  # noqa: PLC0415

        partitions, leases = content
        offsets: dict[TopicPartition, PartitionOffset] = {}
        sums: dict[str, tuple[int, int]] = {}
        rows: dict[str, int] = {}
        producers = snapshot_tables.producer_batches(partitions, offsets, self.names)
        rows[_PRODUCERS], sums[_PRODUCERS] = snapshot_files.write_table(
            self._files, aside / _PRODUCERS, snapshot_tables.PRODUCERS_SCHEMA, producers
        )
        rows[_LEASES], sums[_LEASES] = snapshot_files.write_table(
            self._files, aside / _LEASES, snapshot_tables.LEASES_SCHEMA,
            snapshot_tables.lease_batches(leases),
        )  # fmt: skip
        manifest = Manifest(number, created_ms, offsets, rows, sums)
        self._write_file(aside / _MANIFEST, _encode_manifest(manifest))
        self._files.fsync_folder(aside)
        return manifest

    def remove(self, number: int) -> None:
        """Remove a snapshot: its manifest first, durably, because without it the rest is ignored.

        One that the log ends before must not come back when the log has grown.
        """
        folder = self._folder / _name(number)
        if self._files.exists(folder / _MANIFEST):
            self._files.remove(folder / _MANIFEST)
            self._files.fsync_folder(folder)
        remove_tree(self._files, folder)

    def manifest(self, number: int) -> Manifest:
        """Read a snapshot's metadata.

        Raises:
            SnapshotError: the manifest is missing or damaged.
        """
        path = self._folder / _name(number) / _MANIFEST
        try:
            return _decode_manifest(read_file(self._files, path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SnapshotError(f"{path}: {error}") from error

    def manifests(self) -> list[Manifest]:
        """Read the valid manifests, newest first; log the others."""
        manifests = []
        for number in self.numbers():
            try:
                manifests.append(self.manifest(number))
            except SnapshotError as error:
                LINES.write(_log, "error", "snapshot skipped", number,
                            number=number, reason=str(error))  # fmt: skip
        return manifests

    def load(self, number: int) -> Snapshot:
        """Read a snapshot, and verify all its files.

        Raises:
            SnapshotError: it cannot be used.
        """
        # Here, because it imports pyarrow: 50 MB that a server without a snapshot does not need.
        from pidlease.storage import snapshot_files, snapshot_tables  # noqa: PLC0415

        manifest = self.manifest(number)
        folder = self._folder / _name(number)
        tables = [
            snapshot_files.decode_table(
                self._content(folder / name, manifest), folder / name, schema, manifest.rows[name]
            )
            for name, schema in (
                (_PRODUCERS, snapshot_tables.PRODUCERS_SCHEMA),
                (_LEASES, snapshot_tables.LEASES_SCHEMA),
            )
        ]
        producers, leases = tables
        states = snapshot_tables.read_producers(
            producers, manifest.offset_vector, self.names,
            crcs_are_comparable=manifest.crc_rule == _CRC_RULE,
        )  # fmt: skip
        return Snapshot(manifest, states, snapshot_tables.read_leases(leases))

    def _content(self, path: Path, manifest: Manifest) -> bytes:
        """Read a file, and verify its checksum.

        Raises:
            SnapshotError: it cannot be read, or is damaged.
        """
        try:
            content = read_file(self._files, path)
        except OSError as error:
            raise SnapshotError(f"{path}: {error}") from error
        if (len(content), crc32c(content)) != manifest.checksums.get(path.name):
            raise SnapshotError(f"{path} is damaged: length or checksum is not the manifest's")
        return content

    def _write_file(self, path: Path, content: bytes) -> None:
        file = self._files.open(path, create=True)
        try:
            file.write_at([content], 0)
            file.fsync()
        finally:
            file.close()


def _name(number: int) -> str:
    return f"{_PREFIX}{number:012d}"


def _encode_manifest(manifest: Manifest) -> bytes:
    topics: dict[str, dict[str, Any]] = {}
    for (topic, partition), offset in manifest.offset_vector.items():
        fields = offset._asdict()
        entry = topics.setdefault(topic, {"topic_id": fields.pop("topic_id"), "partitions": {}})
        entry["partitions"][str(partition)] = fields
    body = json.dumps(
        {
            "format": FORMAT_VERSION,
            "crc_rule": manifest.crc_rule,
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
        TopicPartition(topic, int(number)): PartitionOffset(entry["topic_id"], **part)
        for topic, entry in body["topics"].items()
        for number, part in entry["partitions"].items()
    }
    sums = {name: (size, crc) for name, (size, crc) in body["checksums"].items()}
    rule = body.get("crc_rule", 1)
    return Manifest(body["number"], body["created_ms"], offsets, body["rows"], sums, rule)
