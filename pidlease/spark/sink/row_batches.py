"""A task's rows: their sequence numbers, the partition that each goes to, and their batches.

All rows of a task must be of one source partition and in its order; otherwise the task fails before
it sends any of the rows at fault.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pidlease.client.settings import Codec
from pidlease.copier.copied_batch import CopiedBatch, RecordWriter
from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import SinkError
from pidlease.spark.partition_offsets import OffsetRange
from pidlease.spark.sink.query_shape import QueryColumns

#: Overhead of a record and of a header, estimated.
_RECORD_BYTES: Final = 16
_HEADER_BYTES: Final = 8
_MS: Final = pa.timestamp("ms", "UTC")
_ONE_TASK: Final = (
    "; something between source and sink moves rows to other tasks, or changes their order, and"
    " then a retry cannot be distinguished from a new row"
)


class NumberedRows(NamedTuple):
    """Rows for one destination partition, in order.

    Attributes:
        numbers: sequence numbers, strictly rising.
        picks: indexes of the rows of `batch`; None: all of them.
    """

    destination: TopicPartition
    numbers: np.ndarray
    batch: pa.RecordBatch
    picks: np.ndarray | None


class RowNumbering:
    """Assigns sequence numbers to a task's rows.

    Parameters:
        rows_max: how many rows one source record may become.
        renamed: destination topics by source topic.
        ranges: the offsets of the micro-batch, as in `MicroBatch`.

    Attributes:
        source: the partition of the rows; None: there was no row yet.
    """

    def __init__(
        self,
        columns: QueryColumns,
        rows_max: int,
        renamed: dict[str, str],
        ranges: Mapping[TopicPartition, OffsetRange],
    ) -> None:
        self._columns: Final = columns
        self._rows_max: Final = rows_max
        self._renamed: Final = renamed
        self._ranges: Final = ranges
        self.source: TopicPartition | None = None
        self._offset = -1
        self._index = -1

    def rows(self, batch: pa.RecordBatch) -> Iterator[NumberedRows]:
        """Number the rows of a batch, and part them by destination partition.

        Raises:
            SinkError: they are not consecutive rows of one source partition.
        """
        if not batch.num_rows:
            return
        source = self._one_source(batch)
        numbers = self._numbers(source, batch)
        topic = self._renamed[source.topic]
        if not self._columns.partition:
            yield NumberedRows(TopicPartition(topic, source.partition), numbers, batch, None)
            return
        destinations = _integers(batch, self._columns.partition)
        for number in np.unique(destinations).tolist():
            picks = np.flatnonzero(destinations == number)
            yield NumberedRows(TopicPartition(topic, number), numbers[picks], batch, picks)

    def _one_source(self, batch: pa.RecordBatch) -> TopicPartition:
        topic, partition, _ = self._columns.source
        if batch.column(topic).null_count or batch.column(partition).null_count:
            raise SinkError(f"a row without {topic} or {partition}: its source is unknown")
        topics = pc.min_max(batch.column(topic)).as_py()
        numbers = pc.min_max(batch.column(partition)).as_py()
        sources = {TopicPartition(topics[end], numbers[end]) for end in ("min", "max")}
        if self.source is not None:
            sources.add(self.source)
        if len(sources) > 1:
            named = " and ".join(sorted(map(str, sources)))
            raise SinkError(f"a task has rows of {named} of the source{_ONE_TASK}")
        (source,) = sources
        if source not in self._ranges:
            raise SinkError(
                f"rows of {source} of the source, which the checkpoint does not contain"
                f"{_ONE_TASK}; or columns with the source's coordinates were changed"
            )
        self.source = source
        return source

    def _numbers(self, source: TopicPartition, batch: pa.RecordBatch) -> np.ndarray:
        name = self._columns.source[2]
        offsets = _integers(batch, name)
        steps = np.diff(offsets, prepend=self._offset)
        if (steps < 0).any():
            at = int(offsets[np.flatnonzero(steps < 0)[0]])
            raise SinkError(f"offset {at} of {source} comes after a later one{_ONE_TASK}")
        first, end = self._ranges[source]
        if offsets[0] < first or offsets[-1] >= end:
            raise SinkError(
                f"offsets {offsets[0]} to {offsets[-1]} of {source} are not within the micro-batch,"
                f" which has {max(first, 0)} to {end - 1}: column {name} was changed, or a table's"
                " source has grown meanwhile (give it option endingOffsets)"
            )
        indexes = _indexes(steps == 0, self._index)
        self._offset, self._index = int(offsets[-1]), int(indexes[-1])
        if (highest := int(indexes.max())) >= self._rows_max:
            raise SinkError(
                f"a record of {source} became {highest + 1} rows or more; give option"
                f" maxRowsPerRecord, the most that one may become (now {self._rows_max}). It"
                " determines the sequence numbers, so it needs a new checkpoint and a new topic"
            )
        numbers: np.ndarray = offsets * self._rows_max + indexes
        return numbers


def _indexes(same: np.ndarray, before: int) -> np.ndarray:
    """Return the index of each row among the rows of its record.

    Parameters:
        same: whether a row is of the same record as the preceding one.
        before: the index of the row before the first one.
    """
    index = np.arange(len(same))
    begins = np.where(same, -1 - before, index)  # the first run may have begun in another batch
    return index - np.maximum.accumulate(begins)


def _integers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """Return a column of integers.

    Raises:
        SinkError: a value is missing, or negative.
    """
    column = batch.column(name)
    if column.null_count:
        raise SinkError(f"a row without {name}")
    values: np.ndarray = column.cast(pa.int64()).to_numpy()
    if len(values) and values.min() < 0:
        raise SinkError(f"a row with {name} {values.min()}")
    return values


class RecordEncoder:
    """Encodes rows as record batches.

    Parameters:
        codec: the compression; None: none.
        batch_bytes: size of a batch before compression; a larger row gets its own batch.
    """

    def __init__(self, columns: QueryColumns, codec: Codec | None, batch_bytes: int) -> None:
        self._columns: Final = columns
        self._codec: Final = None if codec == "none" else codec
        self._batch_bytes: Final = batch_bytes

    def batches(self, rows: NumberedRows) -> Iterator[CopiedBatch]:
        """Encode rows in order; batch boundaries depend on the rows alone."""
        content = _WrittenColumns(rows, self._columns)
        ends = np.cumsum(content.sizes)
        begin = 0
        while begin < len(ends):
            before = int(ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(ends, before + self._batch_bytes, side="right"))
            end = max(end, begin + 1)
            yield self._batch(content, rows.numbers, begin, end)
            begin = end

    def _batch(
        self, content: "_WrittenColumns", numbers: np.ndarray, begin: int, end: int
    ) -> CopiedBatch:
        writer = RecordWriter()
        keys, values, headers, times = content.part(begin, end)
        for index in range(end - begin):
            writer.add(times[index], keys[index], values[index], headers[index])
        ids: Sequence[int] = numbers[begin:end].tolist()
        records = writer.records()
        return CopiedBatch(records, ids, self._codec, len(records.payload), time.monotonic())


class _WrittenColumns:
    """The columns that are written, of the rows for one destination."""

    def __init__(self, rows: NumberedRows, columns: QueryColumns) -> None:
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
        """Return keys, values, headers and timestamps of some rows."""
        count = end - begin
        nothing: list[Any] = [None] * count
        keys = nothing if self._keys is None else self._keys[begin:end].to_pylist()
        values = nothing if self._values is None else self._values[begin:end].to_pylist()
        headers: list[Any] = [()] * count
        if self._headers is not None:
            lists = self._headers[begin:end].to_pylist()
            headers = [[(h["key"], h["value"]) for h in each or ()] for each in lists]
            if any(key is None for each in headers for key, _ in each):
                raise SinkError("a row has a header without a key")
        return keys, values, headers, self._part_times(begin, end)

    def _part_times(self, begin: int, end: int) -> list[int]:
        now = int(time.time() * 1000)
        if self._times is None:
            return [now] * (end - begin)
        times = self._times[begin:end].cast(_MS, safe=False).cast(pa.int64()).to_pylist()
        return [now if each is None else each for each in times]


def _header_sizes(column: pa.ListArray) -> np.ndarray:
    """Estimate the bytes of each row's headers."""
    inner = column.flatten()
    sizes = np.full(len(inner), _HEADER_BYTES, np.int64)
    for index in range(inner.type.num_fields):
        lengths = pc.fill_null(pc.binary_length(inner.field(index)), 0)
        sizes += lengths.to_numpy(zero_copy_only=False)
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = np.concatenate(([0], np.cumsum(sizes)))[np.cumsum(counts)]
    of_rows: np.ndarray = np.diff(ends, prepend=0)
    return of_rows


def _binary(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    if not name:
        return None
    column = batch.column(name)
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())
