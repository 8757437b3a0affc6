"""Rows made into record batches."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pidlease.client.settings import Codec
from pidlease.copier.copied_batch import CopiedBatch, RecordWriter
from pidlease.spark.errors import SinkError
from pidlease.spark.sink.query_columns import Columns
from pidlease.spark.sink.task.row_numbers import Rows

#: What a record takes beside its bytes, about.
_RECORD_BYTES: Final = 16
_HEADER_BYTES: Final = 8
_MS: Final = pa.timestamp("ms", "UTC")


class Encoder:
    """Makes batches of rows.

    Parameters:
        columns: which columns are what.
        codec: what batches are compressed by; None: nothing.
        batch_bytes: how many bytes one has before that; a larger row goes alone.
    """

    def __init__(self, columns: Columns, codec: Codec | None, batch_bytes: int) -> None:
        self._columns: Final = columns
        self._codec: Final = None if codec == "none" else codec
        self._batch_bytes: Final = batch_bytes

    def batches(self, rows: Rows) -> Iterator[CopiedBatch]:
        """Batches in the order of the rows; where they are parted depends on the rows alone."""
        content = _Content(rows, self._columns)
        ends = np.cumsum(content.sizes)
        begin = 0
        while begin < len(ends):
            before = int(ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(ends, before + self._batch_bytes, side="right"))
            end = max(end, begin + 1)
            yield self._batch(content, rows.numbers, begin, end)
            begin = end

    def _batch(self, content: "_Content", numbers: np.ndarray, begin: int, end: int) -> CopiedBatch:
        writer = RecordWriter()
        keys, values, headers, times = content.part(begin, end)
        for place in range(end - begin):
            writer.add(times[place], keys[place], values[place], headers[place])
        ids: Sequence[int] = numbers[begin:end].tolist()
        records = writer.records()
        return CopiedBatch(records, ids, self._codec, len(records.payload), time.monotonic())


class _Content:
    """What stands in the columns that are written."""

    def __init__(self, rows: Rows, columns: Columns) -> None:
        batch = rows.batch if rows.picks is None else rows.batch.take(pa.array(rows.picks))
        self._count: Final = batch.num_rows
        self._keys: Final = _binary(batch, columns.key)
        self._values: Final = _binary(batch, columns.value)
        self._headers: Final = batch.column(columns.headers) if columns.headers else None
        self._times: Final = batch.column(columns.timestamp) if columns.timestamp else None
        self.sizes: Final = self._sizes()

    def _sizes(self) -> np.ndarray:
        sizes = np.full(self._count, _RECORD_BYTES, np.int64)
        for column in (self._keys, self._values):
            if column is not None:
                sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        if self._headers is not None:
            sizes += _header_sizes(self._headers)
        return sizes

    def part(self, begin: int, end: int) -> tuple[list[Any], list[Any], list[Any], list[int]]:
        """Keys, values, headers and times of some rows."""
        count = end - begin
        nothing: list[Any] = [None] * count
        keys = nothing if self._keys is None else self._keys[begin:end].to_pylist()
        values = nothing if self._values is None else self._values[begin:end].to_pylist()
        headers: list[Any] = [()] * count
        if self._headers is not None:
            found = self._headers[begin:end].to_pylist()
            headers = [[(h["key"], h["value"]) for h in each or ()] for each in found]
            if any(key is None for each in headers for key, _ in each):
                raise SinkError("a header without a key")
        return keys, values, headers, self._part_times(begin, end)

    def _part_times(self, begin: int, end: int) -> list[int]:
        now = int(time.time() * 1000)
        if self._times is None:
            return [now] * (end - begin)
        times = self._times[begin:end].cast(_MS, safe=False).cast(pa.int64()).to_pylist()
        return [now if each is None else each for each in times]


def _header_sizes(column: pa.ListArray) -> np.ndarray:
    """How many bytes each row's headers take, about."""
    inner = column.flatten()
    sizes = np.full(len(inner), _HEADER_BYTES, np.int64)
    for place in range(inner.type.num_fields):
        lengths = pc.fill_null(pc.binary_length(inner.field(place)), 0)
        sizes += lengths.to_numpy(zero_copy_only=False)
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = np.concatenate(([0], np.cumsum(sizes)))[np.cumsum(counts)]
    found: np.ndarray = np.diff(ends, prepend=0)
    return found


def _binary(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    if not name:
        return None
    column = batch.column(name)
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())
