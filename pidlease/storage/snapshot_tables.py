"""A snapshot's two tables: packed states to columns and back, thousands of rows at a time.

Packed states of one size have one layout, so joined they are a table. A byte of a field is at the
same place of each row, so one slice with a step copies it for all rows. Each step takes few rows
all the same: while it holds the interpreter, producers wait.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, compress, islice, pairwise, product, repeat
from operator import ne
from typing import Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from pidlease.core.packed import NARROW, WIDE, Layout, Packed, layout_of
from pidlease.core.pid import POLICY_SHIFT
from pidlease.core.producer_names import ProducerNames, is_stand_in
from pidlease.core.rules import EPOCH, Rules, rules_of
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

#: By the letters of `struct` and `array`, which here are the same.
_TYPES: Final = {"q": pa.int64(), "i": pa.int32(), "h": pa.int16(), "I": pa.uint32()}
_LETTERS: Final = {kind: letter for letter, kind in _TYPES.items()}
_HEAD_FIELDS: Final = ("arrival_ms", "generation", "lowest")
_BATCH_FIELDS: Final = tuple((field.name, field.type) for field in _BATCH)


class _Field(NamedTuple):
    """A field of packed states.

    Attributes:
        kind: its type in the packed state.
        width: bytes of a value.
        places: where its values are in a state; of batches the oldest is the first.
    """

    kind: pa.DataType
    width: int
    places: tuple[int, ...]

    def column(self, rows: bytes, size: int) -> pa.Array:
        """Return the field's values in packed states of one size, joined, row by row."""
        step = self.width * len(self.places)
        count = len(rows) // size
        found = bytearray(count * step)
        for target, source in self._bytes():
            found[target::step] = rows[source::size]
        length = count * len(self.places)
        return pa.Array.from_buffers(self.kind, length, [None, pa.py_buffer(found)])

    def pack(self, rows: bytearray, size: int, values: pa.Array) -> None:
        """Write the field's values into packed states of one size."""
        content = bytes(_content(values))
        step = self.width * len(self.places)
        for source, target in self._bytes():
            rows[target::size] = content[source::step]

    def _bytes(self) -> Iterator[tuple[int, int]]:
        """Yield where each byte of a row is among its values, and in its packed state."""
        for number, place in enumerate(self.places):
            for byte in range(self.width):
                yield number * self.width + byte, place + byte


class _PackedFields(NamedTuple):
    """The fields of packed states with one layout and one number of batches.

    Attributes:
        size: of a state.
        kept: the number of batches.
        head: the fields of a state, by name.
        batches: the fields of its batches, by name.
    """

    size: int
    kept: int
    head: Mapping[str, _Field]
    batches: Mapping[str, _Field]

    @classmethod
    def of(cls, layout: Layout, count: int) -> Self:
        """Return the fields of states with this many batches."""
        begins = [layout.head.size + number * layout.batch.size for number in range(count)]
        return cls(
            layout.head.size + count * layout.batch.size,
            count,
            _fields(layout.head.format, _HEAD_FIELDS, [0]),
            # The newest batch is the first in a packed state, and the last in the table.
            _fields(layout.batch.format, [name for name, _ in _BATCH_FIELDS], begins[::-1]),
        )


def _fields(letters: str, names: Iterable[str], begins: Sequence[int]) -> dict[str, _Field]:
    """Return the fields of a struct that is at these places of a state, by name."""
    found, offset = {}, 0
    for name, letter in zip(names, letters.removeprefix("<"), strict=True):
        kind = _TYPES[letter]
        width = kind.bit_width // 8
        found[name] = _Field(kind, width, tuple(begin + offset for begin in begins))
        offset += width
    return found


#: By the size of a packed state, which gives its layout and its number of batches.
_PACKED: Final = {
    fields.size: fields
    for layout in (NARROW, WIDE)
    for fields in (_PackedFields.of(layout, count) for count in range(1, BATCHES_KEPT + 1))
}


def _column(values: "array[int]") -> pa.Array:
    """Make a column of numbers, without nulls.

    It is made of a buffer: given another sequence, pyarrow would load pandas to test whether it is
    one of pandas', which takes as long as a whole snapshot.
    """
    buffers = [None, pa.py_buffer(values)]
    return pa.Array.from_buffers(_TYPES[values.typecode], len(values), buffers)


def _repeated(values: Iterable[int], counts: Iterable[int]) -> pa.Array:
    """Make a column of int32 that has each value so many times."""
    return _column(array("i", chain.from_iterable(map(repeat, values, counts))))


def _strings(values: list[str]) -> pa.Array:
    """Make a column of strings, without nulls and without loading pandas."""
    encoded = [value.encode() for value in values]
    ends = array("i", [0, *accumulate(map(len, encoded))])
    content = pa.py_buffer(b"".join(encoded))
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), content)


def _content(column: pa.Array) -> memoryview:
    """Return the bytes of a column of numbers without nulls."""
    if not len(column):
        return memoryview(b"")
    width = column.type.bit_width // 8
    begin = column.offset * width
    return memoryview(column.buffers()[1]).cast("B")[begin : begin + len(column) * width]


def _numbers(column: pa.Array) -> "array[int]":
    """Return the values of a column of numbers without nulls."""
    found = array(_LETTERS[column.type])
    found.frombytes(_content(column))
    return found


class _SameSize:
    """Producers with packed states of one size, so of one layout and number of batches."""

    def __init__(self, size: int) -> None:
        self.fields = _PACKED[size]
        self.pids: list[int] = []
        self.ids: dict[int, str] = {}
        self.states: list[Packed] = []
        self.runs: list[tuple[TopicPartition, int]] = []

    def add(self, partition: TopicPartition, pids: list[int], states: list[Packed]) -> None:
        self.pids += pids
        self.states += states
        self.runs.append((partition, len(pids)))

    def batch(self) -> pa.RecordBatch:
        rows = b"".join(self.states)
        size, kept, head, batches = self.fields
        counts = [count for _, count in self.runs]
        names = _strings([partition.topic for partition, _ in self.runs])
        topics = pa.DictionaryArray.from_arrays(_repeated(range(len(counts)), counts), names)
        head_columns = {
            name: field.column(rows, size).cast(pa.int64()) for name, field in head.items()
        }
        batch_columns = [
            batches[name].column(rows, size).cast(kind) for name, kind in _BATCH_FIELDS
        ]
        last = batches["last"]
        ends = _column(array("i", range(0, len(self.states) * kept + 1, kept)))
        structs = pa.StructArray.from_arrays(batch_columns, fields=list(_BATCH))
        pids, ids = self._producers()
        return pa.RecordBatch.from_arrays(
            [
                pids,
                ids,
                topics.cast(pa.string()),
                _repeated((partition.partition for partition, _ in self.runs), counts),
                head_columns["generation"],
                last._replace(places=last.places[-1:]).column(rows, size).cast(pa.int64()),
                head_columns["lowest"],
                pa.ListArray.from_arrays(ends, structs),
                head_columns["arrival_ms"],
            ],
            schema=PRODUCERS_SCHEMA,
        )

    def _producers(self) -> tuple[pa.Array, pa.Array]:
        """Return the columns of PIDs and of producer ids; each row has one of the two."""
        if not self.ids:
            return _column(array("q", self.pids)), _strings([""] * len(self.pids))
        pids = [_NO_PID if pid >> POLICY_SHIFT == EPOCH.policy else pid for pid in self.pids]
        return _column(array("q", pids)), _strings([self.ids.get(pid, "") for pid in self.pids])


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
    for each in partitions:
        partition, known = each.partition, each.producers
        offsets[partition] = each.entry
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
    for start in range(0, len(rows), GROUP_ROWS):
        parts = [_column(column[start : start + GROUP_ROWS]) for column in rows.columns]
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
        crcs_are_comparable: False: an older server computed the CRCs differently, so they are left
            out.

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
        which, numbers = _numbers(topics.indices), _numbers(column["partition"])
        places = list(zip(which, numbers, strict=True))
        changes = compress(range(1, len(places)), map(ne, places, islice(places, 1, None)))
        for begin, end in pairwise([0, *changes, len(pids)]):
            topic = topics.dictionary[which[begin]].as_py()
            partition = TopicPartition(topic, numbers[begin])
            if partition not in found:
                raise SnapshotError(f"rows of {partition}, which is not in the offset vector")
            found[partition].update(zip(pids[begin:end], states[begin:end], strict=True))
    return found


def _read_pids(column: dict[str, pa.Array], names: ProducerNames) -> "array[int]":
    """Return the rows' PIDs, with stand-in PIDs for producer ids."""
    pids = _numbers(column["pid"])
    if _NO_PID not in pids:
        return pids
    for row, pid in enumerate(pids):
        if pid != _NO_PID:
            continue
        name = column["producer_id"][row].as_py()
        if not name:
            raise SnapshotError("a row with neither a PID nor a producer id")
        pids[row] = names.take(name)
    return pids


def _pack_rows(
    pids: "array[int]", column: dict[str, pa.Array], *, crcs_are_comparable: bool
) -> list[Packed]:
    """Pack rows: in one step all that have one layout and one number of batches."""
    counts = _numbers(pc.list_value_length(column["batches"]))
    policies = array("h", [pid >> POLICY_SHIFT for pid in pids])
    kinds = list(product(sorted(set(policies)), sorted(set(counts))))
    states: list[Packed] = [b""] * len(pids)
    for policy, count in kinds:
        alike, rows = column, array("i")
        if len(kinds) > 1:
            of_kind = zip(policies, counts, strict=True)
            rows.extend(row for row, kind in enumerate(of_kind) if kind == (policy, count))
            if not rows:
                continue
            alike = {name: values.take(_column(rows)) for name, values in column.items()}
        rules = rules_of(policy << POLICY_SHIFT | 1)
        if rules is None:
            raise SnapshotError(f"PID {pids[policies.index(policy)]} belongs to no policy")
        if not 1 <= count <= BATCHES_KEPT:
            raise SnapshotError(f"a producer with {count} batches")
        packed = _pack_alike(rules, count, alike, keeps_crcs=crcs_are_comparable)
        if len(kinds) == 1:
            return packed
        for row, state in zip(rows, packed, strict=True):
            states[row] = state
    return states


def _pack_alike(
    rules: Rules, count: int, column: dict[str, pa.Array], *, keeps_crcs: bool
) -> list[Packed]:
    layout = layout_of(rules)
    size, _, head, batch_fields = _PACKED[layout.head.size + count * layout.batch.size]
    batches = column["batches"].flatten()
    values = {name: batches.field(name) for name, _ in _BATCH_FIELDS}
    if _numbers(values["last"])[count - 1 :: count] != _numbers(column["high"]):
        raise SnapshotError("the highest sequence number is not the end of the last batch")
    if not keeps_crcs:
        values["crc"] = _column(array("I", [UNKNOWN_CRC]) * len(batches))
    packed = bytearray(len(column["high"]) * size)
    for name, field in batch_fields.items():
        field.pack(packed, size, _narrowed(values[name], field.kind, name))
    for name, field in head.items():
        field.pack(packed, size, _narrowed(column[name], field.kind, name))
    content = bytes(packed)
    return [content[at : at + size] for at in range(0, len(content), size)]


def _narrowed(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Return numbers in a narrower type; reject those that do not fit."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        raise SnapshotError(f"{name} is outside the numbers of {kind}: {error}") from error


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
                column.frombytes(_content(chunk))
    return rows
