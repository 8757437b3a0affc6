"""The Parquet files of a snapshot: producers.parquet and leases.parquet, written and read.

Only this module and `snapshot_tables` import pyarrow. `snapshots` imports them when the first
snapshot is written or read, because it takes 50 MB, which an idle server does not need.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from pidlease.core.buffer import Buffer
from pidlease.storage.files import Files, OpenFile
from pidlease.storage.snapshot_rows import SnapshotError
from pidlease.storage.snapshot_tables import GROUP_ROWS, PRODUCERS_SCHEMA

#: Bytes written between two fsyncs.
_FSYNC_BYTES: Final = 4 << 20


def write_table(
    files: Files, path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> tuple[int, tuple[int, int]]:
    """Write a file, and fsync it.

    Returns:
        Its number of rows, its bytes and their CRC-32C.

    Raises:
        OSError: it is not durable.
    """
    file = files.open(path, create=True)
    try:
        sink = _Sink(file)
        rows = 0
        with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema) as writer:
            for group in _row_groups(batches):
                writer.write_table(group)
                rows += group.num_rows
        file.fsync()
    finally:
        file.close()
    return rows, (sink.position, sink.checksum)


def decode_table(content: bytes, path: Path, schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    """Decode a file, a part at a time: a million rows never are in memory as a whole table.

    Parameters:
        path: of the file, for messages.
        rows: the number of rows that the manifest has.

    Raises:
        SnapshotError: it cannot be used.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        if file.metadata.num_rows != rows:
            raise SnapshotError(f"{path}: {file.metadata.num_rows} rows are not the manifest's")
        # A table without rows, too: the columns of an empty file are checked.
        groups = range(file.num_row_groups)
        tables = (file.read_row_group(each) for each in groups) if groups else [file.read()]
        for table in tables:
            if schema is PRODUCERS_SCHEMA and "producer_id" not in table.schema.names:
                table = _from_format_1(table)  # noqa: PLW2901 - the same rows
            if not table.schema.equals(schema):
                raise SnapshotError(f"{path}: its columns are not those of a snapshot")
            yield table
    except (pa.ArrowException, OSError) as error:
        raise SnapshotError(f"{path}: {error}") from error


def _from_format_1(table: pa.Table) -> pa.Table:
    """Add the column of producer ids, which format 1 did not have."""
    no_ids = pa.array([""] * table.num_rows, pa.string())
    index = PRODUCERS_SCHEMA.get_field_index("producer_id")
    return table.add_column(index, "producer_id", no_ids)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= GROUP_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


class _Sink:
    """A file as pyarrow writes to it; computes the content's length and CRC-32C."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self.position = 0
        self.checksum = 0
        self._fsynced = 0
        self.closed = False

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        self._file.write_at([view], self.position)
        self.checksum = crc32c(view, self.checksum)
        self.position += len(view)
        if self.position - self._fsynced >= _FSYNC_BYTES:
            # A hundred megabytes fsynced at the end would delay the logs' own fsyncs.
            self._file.fsync()
            self._fsynced = self.position
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
        """Do nothing: `write` does not buffer."""

    def close(self) -> None:
        self.closed = True
