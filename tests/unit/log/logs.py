"""Opening an embedded log on a simulated disk, and saying what is in it."""

import errno
from pathlib import Path
from typing import cast

import pytest

from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.log.ports import NewBatch
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.log.segments.log_view import ReadPositions
from pidlease.storage.files import Files
from pidlease.storage.io_pool import IoPool
from tests.sim.batches import StoredRecord, read_records, simple
from tests.sim.files import SimFile
from tests.sim.gate import os_error

FOLDER = Path("/data/logs/t-0")

SMALL = LogConfig(segment_bytes=1000, retention_ms=-1)


def config(
    segment_bytes: int = 1 << 20,
    *,
    retention_ms: int = -1,
    retention_bytes: int = -1,
    fsync: FsyncPolicy = FsyncPolicy.BATCH,
) -> LogConfig:
    return LogConfig(segment_bytes, retention_ms, retention_bytes, fsync)


def open_log(
    files: Files,
    settings: LogConfig = SMALL,
    *,
    recovery_offset: int = 0,
    clean: bool = False,
    folder: Path = FOLDER,
) -> EmbeddedPartitionLog:
    """The log, of which only the blocking half can be used."""
    log = EmbeddedPartitionLog(files, folder, settings, cast("IoPool", None))
    log.open(recovery_offset, clean=clean)
    return log


def bad_sector(patch: pytest.MonkeyPatch, path: Path, position: int) -> list[int]:
    """Let all reads of a byte fail, as of a bad sector; the sizes of those that did."""
    read_at, failed = SimFile.read_at, list[int]()

    def read(self: SimFile, size: int, at: int) -> bytes:
        if self._path == path and at <= position < at + size:
            failed.append(size)
            raise os_error(errno.EIO, path)
        return read_at(self, size, at)

    patch.setattr(SimFile, "read_at", read)
    return failed


def read_all(log: EmbeddedPartitionLog, max_bytes: int = 1 << 20) -> list[StoredRecord]:
    """All records by the consumers' way, from the start of the log to its end."""
    found: list[StoredRecord] = []
    offset, positions = log.start_offset, ReadPositions()
    while offset < log.end_offset:
        records = read_records(log.view.read(offset, max_bytes, positions).data)
        assert records, f"nothing at {offset}, the end is {log.end_offset}"
        assert records[0].offset <= offset <= records[-1].offset < log.end_offset
        found.extend(record for record in records if record.offset >= offset)
        offset = records[-1].offset + 1
    return found


def offsets(log: EmbeddedPartitionLog) -> list[int]:
    return [record.offset for record in read_all(log)]


def segments(files: Files, folder: Path = FOLDER) -> list[Path]:
    """The .log files, oldest first."""
    return [folder / name for name in files.list(folder) if name.endswith(".log")]


def fill(
    log: EmbeddedPartitionLog, count: int, *, first: int = 0, size: int = 20
) -> list[NewBatch]:
    """Append so many batches of one record each, one by one."""
    batches = [simple(first + index, size=size) for index in range(count)]
    for batch in batches:
        log.append_blocking([batch])
    return batches
