"""A snapshot's two tables: packed states to columns and back, thousands of rows at a time.

Packed states of one size have one layout, so joined they are a table that numpy reads and makes in
one step. Each step takes few rows all the same: while it holds the interpreter, producers wait.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, chain, pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute  # used by casts, and loaded then: not in the middle of a snapshot

from pidlease.core.packed import NARROW, WIDE, Layout, Packed, layout_of
from pidlease.core.pid import POLICY_SHIFT
from pidlease.core.producer_names import ProducerNames, is_stand_in
from pidlease.core.rules import EPOCH, KAFKA, Rules, rules_of
from pidlease.core.state import BATCHES_KEPT, UNKNOWN_CRC
from pidlease.core.topic_partition import TopicPartition
from pidlease.storage.snapshot_rows import (
    LeaseRow,
    LeaseRows,
    PartitionOffset,
    PartitionRows,
    SnapshotError,
)

#: Rows made at once: the event loop waits a few hundred microseconds for them.
ROWS_AT_ONCE: Final = 2_000
#: Rows of a row group in the file.
GROUP_ROWS: Final = 50_000

_BATCH: Final = pa.struct(
    [("first", pa.int64()), ("last", pa.int64()), ("offset", pa.int64()), ("crc", pa.uint32())]
)
PRODUCERS_SCHEMA: Final = pa.schema(
    [
        pa.field("pid", pa.int64()),
        pa.field("producer_id", pa.string()),
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


#: The PID in rows of producers that have a producer id instead (policy epoch).
_NO_PID: Final = -1

_DTYPES: Final = {pa.int64(): "<i8", pa.int32(): "<i4", pa.uint32(): "<u4"}
_BATCH_FIELDS: Final = tuple((field.name, field.type) for field in _BATCH)


def _kind(layout: Layout, count: int) -> np.dtype:
    """Return numpy's type for packed states with this many batches."""
    codes = {"q": "<i8", "i": "<i4", "h": "<i2", "I": "<u4"}
    head = [codes[code] for code in layout.head.format[1:]]
    batch = [codes[code] for code in layout.batch.format[1:]]
    batches = list(zip(("first", "last", "offset", "crc"), batch, strict=True))
    names = ("arrival_ms", "generation", "lowest")
    return np.dtype([*zip(names, head, strict=True), ("batches", batches, (count,))])


#: By the size of a packed state, which gives its layout and its number of batches.
_KINDS: Final = {
    layout.head.size + count * layout.batch.size: _kind(layout, count)
    for layout in (NARROW, WIDE)
    for count in range(1, BATCHES_KEPT + 1)
}


def _column(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Make a column of numbers, without nulls.

    It is made of a buffer: given an array, pyarrow would load pandas to test whether the array is
    one of pandas', which takes as long as a whole snapshot.
    """
    numbers = np.ascontiguousarray(values, _DTYPES[kind])
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _strings(values: list[str]) -> pa.Array:
    """Make a column of strings, without nulls and without loading pandas."""
    encoded = [value.encode() for value in values]
    ends = np.array([0, *accumulate(map(len, encoded))], np.int32)
    content = pa.py_buffer(b"".join(encoded))
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), content)


def _numbers(column: pa.Array) -> np.ndarray:
    """Return the values of a column of numbers without nulls."""
    if not len(column):
        return np.empty(0, _DTYPES[column.type])
    values = np.frombuffer(column.buffers()[1], _DTYPES[column.type])
    return values[column.offset : column.offset + len(column)]


class _SameSize:
    """Producers with packed states of one size, so of one layout and number of batches."""

    def __init__(self, size: int) -> None:
        self.kind = _KINDS[size]
        self.pids: list[int] = []
        self.ids: dict[int, str] = {}
        self.states: list[Packed] = []
        self.runs: list[tuple[TopicPartition, int]] = []

    def add(self, partition: TopicPartition, pids: list[int], states: list[Packed]) -> None:
        self.pids += pids
        self.states += states
        self.runs.append((partition, len(pids)))

    def batch(self) -> pa.RecordBatch:
        rows = np.frombuffer(b"".join(self.states), self.kind)
        kept = rows["batches"]
        counts = [count for _, count in self.runs]
        names = _strings([partition.topic for partition, _ in self.runs])
        numbers = np.array([partition.partition for partition, _ in self.runs], np.int32)
        which = _column(np.repeat(np.arange(len(counts)), counts), pa.int32())
        topics = pa.DictionaryArray.from_arrays(which, names)
        ends = np.arange(0, kept.size + 1, kept.shape[1], dtype=np.int32)
        # The newest batch is the first in a packed state, and the last in the table.
        structs = pa.StructArray.from_arrays(
            [_column(kept[name][:, ::-1].ravel(), kind) for name, kind in _BATCH_FIELDS],
            fields=list(_BATCH),
        )
        pids, ids = self._producers()
        return pa.RecordBatch.from_arrays(
            [
                pids,
                ids,
                topics.cast(pa.string()),
                _column(np.repeat(numbers, counts), pa.int32()),
                _column(rows["generation"], pa.int64()),
                _column(kept["last"][:, 0], pa.int64()),
                _column(rows["lowest"], pa.int64()),
                pa.ListArray.from_arrays(_column(ends, pa.int32()), structs),
                _column(rows["arrival_ms"], pa.int64()),
            ],
            schema=PRODUCERS_SCHEMA,
        )

    def _producers(self) -> tuple[pa.Array, pa.Array]:
        """Return the columns of PIDs and of producer ids; each row has one of the two."""
        pids = np.array(self.pids, np.int64)
        if not self.ids:
            return _column(pids, pa.int64()), _strings([""] * len(pids))
        pids[pids >> POLICY_SHIFT == EPOCH.policy] = _NO_PID
        return _column(pids, pa.int64()), _strings([self.ids.get(pid, "") for pid in self.pids])


def producer_batches(
    partitions: Iterable[PartitionRows],
    offsets: dict[TopicPartition, PartitionOffset],
    names: ProducerNames,
) -> Iterator[pa.RecordBatch]:
    """Make the rows of producers.parquet, in chunks: a million rows never are in memory twice.

    Parameters:
        partitions: taken one by one, when the former one's rows are made.
        offsets: gets each partition's entry in the offset vector.
        names: the producer ids of policy epoch. Producers with a dropped id are left out: their
            state has ended meanwhile.
    """
    groups: dict[int, _SameSize] = {}
    for partition, topic_id, next_offset, hole_ms, known in partitions:
        offsets[partition] = PartitionOffset(topic_id, next_offset, hole_ms)
        ids = _producer_ids(known, names)
        producers = _identified(known, ids)
        sizes = set(map(len, producers.values()))
        for size in sizes:
            pids, states = list(producers), list(producers.values())
            if len(sizes) > 1:
                pids = [pid for pid, state in producers.items() if len(state) == size]
                states = [state for state in states if len(state) == size]
            for start in range(0, len(pids), ROWS_AT_ONCE):
                group = groups.setdefault(size, _SameSize(size))
                end = start + ROWS_AT_ONCE
                group.add(partition, pids[start:end], states[start:end])
                if ids:
                    group.ids |= {pid: ids[pid] for pid in pids[start:end] if pid in ids}
                if len(group.pids) >= ROWS_AT_ONCE:
                    yield groups.pop(size).batch()
    for group in groups.values():
        yield group.batch()


def _producer_ids(producers: Iterable[int], names: ProducerNames) -> dict[int, str]:
    """Return the producer ids of a partition by their stand-in PIDs, without dropped ones."""
    if not len(names):
        return {}
    found = {pid: names.name(pid) for pid in producers if is_stand_in(pid)}
    return {pid: name for pid, name in found.items() if name}


def _identified(producers: Mapping[int, Packed], ids: Mapping[int, str]) -> Mapping[int, Packed]:
    """Leave out producers with an id that was dropped after the partition's rows were taken."""
    if not any(is_stand_in(pid) and pid not in ids for pid in producers):
        return producers
    return {pid: state for pid, state in producers.items() if not is_stand_in(pid) or pid in ids}


def lease_batches(leases: Iterable[LeaseRow]) -> Iterator[pa.RecordBatch]:
    """Make the rows of leases.parquet, in chunks and in their order."""
    rows = leases if isinstance(leases, LeaseRows) else LeaseRows(leases)
    columns = [np.frombuffer(column, np.int64) for column in rows.columns if len(column)]
    for start in range(0, len(rows), GROUP_ROWS):
        end = start + GROUP_ROWS
        parts = [_column(column[start:end], pa.int64()) for column in columns]
        yield pa.RecordBatch.from_arrays(parts, schema=LEASES_SCHEMA)


def read_producers(
    tables: Iterable[pa.Table],
    partitions: Iterable[TopicPartition],
    names: ProducerNames,
    *,
    crcs_are_comparable: bool = True,
) -> dict[TopicPartition, dict[int, Packed]]:
    """Read the rows of producers.parquet, by partition.

    Parameters:
        tables: the file's content, in parts.
        partitions: those of the offset vector; each gets an entry, possibly an empty one.
        names: gets the producer ids of policy epoch.
        crcs_are_comparable: False: an older server computed the CRCs of the writer's batches
            differently, so they are left out.

    Raises:
        SnapshotError: a row's partition is not in the offset vector, or its state is impossible.
    """
    found: dict[TopicPartition, dict[int, Packed]] = {partition: {} for partition in partitions}
    for rows in chain.from_iterable(table.to_batches(ROWS_AT_ONCE) for table in tables):
        if not len(rows):
            continue
        column = dict(zip(rows.schema.names, rows.columns, strict=True))
        if any(each.null_count for each in rows.columns):
            raise SnapshotError("a row without a value where one is needed")
        pids = _read_pids(column, names)
        states = _pack_rows(pids, column, crcs_are_comparable=crcs_are_comparable)
        topics = column["topic"].dictionary_encode()
        numbers = _numbers(column["partition"])
        which = _numbers(topics.indices).astype(np.int64) << 32 | numbers
        begins = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), len(pids)]
        for begin, end in pairwise(begins):
            topic = topics.dictionary[int(which[begin] >> 32)].as_py()
            partition = TopicPartition(topic, int(numbers[begin]))
            if partition not in found:
                raise SnapshotError(f"rows of {partition}, which is not in the offset vector")
            found[partition].update(zip(pids[begin:end].tolist(), states[begin:end], strict=True))
    return found


def _read_pids(column: dict[str, pa.Array], names: ProducerNames) -> np.ndarray:
    """Return the rows' PIDs, with stand-in PIDs for producer ids."""
    pids = _numbers(column["pid"]).copy()
    for row in np.flatnonzero(pids == _NO_PID).tolist():
        name = column["producer_id"][row].as_py()
        if not name:
            raise SnapshotError("a row with neither a PID nor a producer id")
        pids[row] = names.take(name)
    return pids


def _pack_rows(
    pids: np.ndarray, column: dict[str, pa.Array], *, crcs_are_comparable: bool
) -> list[Packed]:
    """Pack rows: in one step all that have one layout and one number of batches."""
    lists = column["batches"]
    ends = _numbers(lists.offsets)
    begins, counts = ends[:-1], np.diff(ends)
    policies = pids >> 48
    states: list[Packed] = [b""] * len(pids)
    for policy in np.unique(policies).tolist():
        rules = rules_of(policy << 48 | 1)
        if rules is None:
            raise SnapshotError(f"PID {pids[policies == policy][0]} belongs to no policy")
        for count in np.unique(counts[policies == policy]).tolist():
            if not 1 <= count <= BATCHES_KEPT:
                raise SnapshotError(f"a producer with {count} batches")
            rows = np.flatnonzero((policies == policy) & (counts == count))
            keeps_crcs = crcs_are_comparable or rules is KAFKA
            packed = _pack_alike(rules, count, rows, begins[rows], column, keeps_crcs=keeps_crcs)
            for row, state in zip(rows.tolist(), packed, strict=True):
                states[row] = state
    return states


def _pack_alike(
    rules: Rules,
    count: int,
    rows: np.ndarray,
    begins: np.ndarray,
    column: dict[str, pa.Array],
    *,
    keeps_crcs: bool,
) -> list[Packed]:
    layout = layout_of(rules)
    size = layout.head.size + count * layout.batch.size
    packed = np.empty(len(rows), _KINDS[size])
    newest_first = begins[:, None] + np.arange(count - 1, -1, -1)
    values = column["batches"].values
    for name, _ in _BATCH_FIELDS:
        _fill(packed["batches"][name], _numbers(values.field(name))[newest_first], name)
    if not keeps_crcs:
        packed["batches"]["crc"] = UNKNOWN_CRC
    for name in ("generation", "lowest", "arrival_ms"):
        _fill(packed[name], _numbers(column[name])[rows], name)
    if (packed["batches"]["last"][:, 0] != _numbers(column["high"])[rows]).any():
        raise SnapshotError("the highest sequence number is not the end of the last batch")
    content = packed.tobytes()
    return [content[at : at + size] for at in range(0, len(content), size)]


def _fill(target: np.ndarray, values: np.ndarray, name: str) -> None:
    """Copy numbers into a narrower type; reject those that do not fit."""
    limits = np.iinfo(target.dtype)
    if values.min() < limits.min or values.max() > limits.max:
        raise SnapshotError(f"{name} is outside {limits.min}..{limits.max}")
    target[...] = values


def read_leases(tables: Iterable[pa.Table]) -> LeaseRows:
    """Read the rows of leases.parquet; its content comes in parts.

    Raises:
        SnapshotError: a row has no value where one is needed.
    """
    rows = LeaseRows()
    for table in tables:
        if any(column.null_count for column in table.columns):
            raise SnapshotError("a lease without a value where one is needed")
        for column, values in zip(rows.columns, table.columns, strict=True):
            for chunk in values.chunks:
                column.frombytes(_numbers(chunk).tobytes())
    return rows
