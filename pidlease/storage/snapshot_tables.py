"""A snapshot's two tables: rows to Arrow and back, by column and without copies in between.

Arrow takes and gives buffers of numbers many times faster than lists of objects, and never asks
whether they are of some other library's type.
"""

import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from pidlease.core.state import Appended, ProducerState

#: Rows that stand in memory as columns at once.
ROWS_AT_ONCE: Final = 20_000

_BATCH: Final = pa.struct(
    [("first", pa.int64()), ("last", pa.int64()), ("offset", pa.int64()), ("crc", pa.uint32())]
)
PRODUCERS_SCHEMA: Final = pa.schema(
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
LEASES_SCHEMA: Final = pa.schema(
    [
        pa.field("pid", pa.int64()),
        pa.field("granted_ms", pa.int64()),
        pa.field("first_ms", pa.int64()),
    ]
)


_CODES: Final = {pa.int64(): "q", pa.int32(): "i", pa.uint32(): "I"}


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
            [_column(values, field.type) for values, field in zip(columns, _BATCH, strict=True)],
            fields=list(_BATCH),
        )
        states = list(zip(*self.states, strict=True)) or [(), (), (), (), ()]
        return pa.RecordBatch.from_arrays(
            [
                _column(self.pids, pa.int64()),
                _strings(self.topics),
                _column(self.partitions, pa.int32()),
                _column(states[0], pa.int64()),
                _column(states[1], pa.int64()),
                _column(states[2], pa.int64()),
                pa.ListArray.from_arrays(_column(ends, pa.int32()), structs),
                _column(states[4], pa.int64()),
            ],
            schema=PRODUCERS_SCHEMA,
        )


def producer_batches(
    partitions: Iterable[PartitionRows], places: dict[TopicPartition, Place]
) -> Iterator[pa.RecordBatch]:
    """Rows in chunks, so that a million of them never stand in memory twice."""
    columns = _ProducerColumns()
    for partition, topic_id, next_offset, hole_ms, producers in partitions:
        places[partition] = Place(topic_id, next_offset, hole_ms)
        for pid, state in producers.items():
            columns.add(partition, pid, state)
            if len(columns.pids) >= ROWS_AT_ONCE:
                yield columns.batch()
                columns = _ProducerColumns()
    yield columns.batch()


def lease_batches(leases: Iterable[LeaseRow]) -> Iterator[pa.RecordBatch]:
    """The leases in chunks, in their order."""
    rows = list(leases)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        columns = zip(*rows[start : start + ROWS_AT_ONCE], strict=True)
        yield pa.RecordBatch.from_arrays(
            [_column(column, pa.int64()) for column in columns], schema=LEASES_SCHEMA
        )


def _column(values: Iterable[int], kind: pa.DataType) -> pa.Array:
    """Integers as a column without nulls."""
    numbers = array.array(_CODES[kind], values)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _strings(values: list[str]) -> pa.Array:
    """Strings as a column without nulls."""
    encoded = [value.encode() for value in values]
    ends = array.array("i", accumulate(map(len, encoded), initial=0))
    return pa.StringArray.from_buffers(
        len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))
    )


def _integers(column: pa.Array) -> list[int]:
    """The values of an integer column without nulls, straight from its buffer."""
    values = array.array(_CODES[column.type])
    if len(column):
        start = column.offset * values.itemsize
        end = start + len(column) * values.itemsize
        values.frombytes(memoryview(column.buffers()[1])[start:end])
    return values.tolist()


def read_producers(
    table: pa.Table, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, dict[int, ProducerState]]:
    """The rows of producers.parquet, by partition.

    Parameters:
        table: the file.
        partitions: those of the offset vector; each gets an entry, if an empty one.

    Raises:
        SnapshotError: a row names another partition.
    """
    found: dict[TopicPartition, dict[int, ProducerState]] = {
        partition: {} for partition in partitions
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


def read_leases(table: pa.Table) -> list[LeaseRow]:
    """The rows of leases.parquet."""
    return [
        row
        for batch in table.to_batches()
        for row in map(LeaseRow, *(_integers(column) for column in batch.columns))
    ]
