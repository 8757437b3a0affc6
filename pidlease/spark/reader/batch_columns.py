"""Batches made into columns, many at once."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pidlease.kafka.records.identity_header import HEADER_KEY
from pidlease.kafka.records.record_batch import BatchHeader
from pidlease.spark.reader.read_parts import Part
from pidlease.spark.reader.record_decoder import (
    NULL,
    PADDING,
    Bytes,
    DecodingError,
    Field,
    Headers,
    Ints,
    boundaries,
    decode,
    decode_headers,
)

_FRONT: Final = (
    ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()),
    ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")),
    ("timestampType", pa.int32()),
)  # fmt: skip
_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS: Final = (("headers", pa.list_(pa.field("element", _HEADER))),)
_NUMBERS: Final = (("pid", pa.int64()), ("generation", pa.int64()), ("sequence", pa.int64()))
#: What is given out at once at most, but for one record that has more by itself.
_ROWS: Final = 1 << 15
_ROWS_BYTES: Final = 8 << 20
#: The longest that Arrow's binary columns hold together.
_ARROW_MAX: Final = 2**31 - 1
_SEQUENCE_MASK: Final = 0x7FFFFFFF
#: Times beyond this are no times: Spark counts microseconds in 64 bits.
_MS_MAX: Final = (2**63 - 1) // 1000


def schema(*, headers: bool) -> pa.Schema:
    """The columns, as Arrow has them.

    Parameters:
        headers: whether the headers are among them.
    """
    return pa.schema([*_FRONT, *(_HEADERS if headers else ()), *_NUMBERS])


class Numbers(NamedTuple):
    """The numbers of a send.

    Attributes:
        offset: of its first record.
        pid: who sent it; None: nobody of ours.
        generation: its generation.
        first: the number of the record at that offset, from which the others count on; None: that
            is not known.
        wraps: whether numbers begin at 0 again behind 2^31 - 1.
    """

    offset: int
    pid: int | None
    generation: int | None
    first: int | None
    wraps: bool = False


class Unpacked(NamedTuple):
    """A batch that was unpacked.

    Attributes:
        header: its header.
        content: its records.
        begins: where in that each one begins.
        numbers: the numbers of its sends, in their order.
        identified: whether headers `pidlease` say who sent it; those are not the user's.
    """

    header: BatchHeader
    content: bytes
    begins: list[int]
    numbers: list[Numbers]
    identified: bool


def unpacked_batch(
    header: BatchHeader, content: bytes, numbers: list[Numbers], *, identified: bool
) -> Unpacked:
    """A batch that was unpacked.

    Raises:
        DecodingError: its records do not fill it.
    """
    begins = boundaries(content, 0, len(content), header.records)
    return Unpacked(header, content, begins, numbers, identified)


class Together:
    """Batches decoded together.

    Parameters:
        part: whose they are; records that do not belong to it are left out.
        batches: in their order.
        headers: whether the headers are wanted.

    Raises:
        DecodingError: some of them are none.
    """

    def __init__(self, part: Part, batches: Sequence[Unpacked], *, headers: bool) -> None:
        self._part: Final = part
        self._schema: Final = schema(headers=headers)
        self._data: Final = b"".join([*(each.content for each in batches), PADDING])
        self._bytes: Final[Bytes] = np.frombuffer(self._data, np.uint8)
        self._begins, self._ends = _places(batches)
        self._columns: Final = decode(self._bytes, self._begins, self._ends)
        self._batch: Final = np.repeat(
            np.arange(len(batches)), [len(each.begins) for each in batches]
        )
        self._headers: Final = [each.header for each in batches]
        self._offsets: Final = self._absolute()
        self._numbers: Final = _Numbering(batches, self._offsets)
        self._user: Headers | None = None
        if headers:
            identified = np.array([each.identified for each in batches], np.bool_)
            found = decode_headers(self._bytes, self._columns, self._ends)
            self._user = _users(self._bytes, found, identified[self._batch])

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The records of the part as columns, some at once."""
        at = int(np.searchsorted(self._offsets, self._part.start))
        end = int(np.searchsorted(self._offsets, self._part.end))
        while at < end:
            room = self._begins[at] + _ROWS_BYTES
            fitting = int(np.searchsorted(self._ends, room, side="right"))
            behind = min(max(fitting, at + 1), at + _ROWS, end)
            yield self._some(slice(at, behind))
            at = behind

    def _absolute(self) -> Ints:
        """The offset of each record.

        Raises:
            DecodingError: they do not fit their batches, or do not rise.
        """
        base = self._each([each.base_offset for each in self._headers])
        last = self._each([each.last_offset_delta for each in self._headers])
        deltas = self._columns.offsets
        offsets: Ints = base + deltas
        if ((deltas < 0) | (deltas > last)).any() or (np.diff(offsets) <= 0).any():
            raise DecodingError("offsets of records that do not fit their batch")
        return offsets

    def _each(self, of_batches: list[int]) -> Ints:
        """For each record what its batch has."""
        return np.array(of_batches, np.int64)[self._batch]

    def _some(self, rows: slice) -> pa.RecordBatch:
        count = rows.stop - rows.start
        columns = [
            self._binary(self._columns.keys, rows),
            self._binary(self._columns.values, rows),
            pa.repeat(pa.scalar(self._part.topic), count),
            pa.repeat(pa.scalar(self._part.partition, pa.int32()), count),
            pa.array(self._offsets[rows]),
            *self._times(rows),
        ]
        if self._user is not None:
            columns.append(self._header_lists(self._user, rows))
        columns += self._numbers.columns(rows)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _binary(self, field: Field, rows: slice) -> pa.Array:
        return binaries(self._data, Field(field.at[rows], field.size[rows]))

    def _times(self, rows: slice) -> tuple[pa.Array, pa.Array]:
        """The timestamps, and whether they are the log's own."""
        headers, batch = self._headers, self._batch[rows]
        own = np.array([each.is_log_append_time for each in headers], np.bool_)[batch]
        base = np.array([each.base_timestamp for each in headers], np.int64)[batch]
        newest = np.array([each.max_timestamp for each in headers], np.int64)[batch]
        times = np.where(own, newest, base + self._columns.timestamps[rows])
        none = (times > _MS_MAX) | (times < -_MS_MAX)
        micros = pa.array(np.where(none, 0, times) * 1000, mask=none)
        return micros.cast(pa.timestamp("us", "UTC")), pa.array(own.astype(np.int32))

    def _header_lists(self, user: Headers, rows: slice) -> pa.Array:
        first, behind = np.searchsorted(user.record, [rows.start, rows.stop])
        some = slice(int(first), int(behind))
        keys = binaries(self._data, Field(user.keys.at[some], user.keys.size[some]))
        values = binaries(self._data, Field(user.values.at[some], user.values.size[some]))
        pairs = pa.StructArray.from_arrays([_text(keys), values], fields=list(_HEADER))
        edges = np.searchsorted(user.record[some], np.arange(rows.start, rows.stop + 1))
        # As Spark's Kafka source has it: null where there is none.
        none = np.append(edges[1:] == edges[:-1], False)
        return pa.ListArray.from_arrays(
            pa.array(edges.astype(np.int32), mask=none), pairs, type=_HEADERS[0][1]
        )


class _Numbering:
    """Who sent each record, and under which number."""

    def __init__(self, batches: Sequence[Unpacked], offsets: Ints) -> None:
        sends = [send for each in batches for send in each.numbers]
        begins = np.array([send.offset for send in sends], np.int64)
        self._send: Final = np.searchsorted(begins, offsets, side="right") - 1
        self._distance: Final = offsets - begins[self._send]
        self._sends: Final = sends

    def columns(self, rows: slice) -> list[pa.Array]:
        """PID, generation and sequence."""
        send, sends = self._send[rows], self._sends
        wraps = np.array([each.wraps for each in sends], np.bool_)[send]
        first, unknown = _nullable([each.first for each in sends])
        sequence = first[send] + self._distance[rows]
        sequence = np.where(wraps, sequence & _SEQUENCE_MASK, sequence)
        pids, no_pid = _nullable([each.pid for each in sends])
        generations, none = _nullable([each.generation for each in sends])
        return [
            pa.array(pids[send], mask=no_pid[send]),
            pa.array(generations[send], mask=none[send]),
            pa.array(sequence, mask=unknown[send]),
        ]


def _nullable(values: list[int | None]) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Numbers, and which of them are none."""
    none = np.array([value is None for value in values], np.bool_)
    return np.array([value or 0 for value in values], np.int64), none


def _places(batches: Sequence[Unpacked]) -> tuple[Ints, Ints]:
    """Where each record begins in all the batches together, and where it ends."""
    begins, at = [], 0
    for each in batches:
        begins.append(np.array(each.begins, np.int64) + at)
        at += len(each.content)
    found = np.concatenate(begins)
    return found, np.append(found[1:], at)


def _users(data: Bytes, found: Headers, identified: npt.NDArray[np.bool_]) -> Headers:
    """The headers without those that say who sent a record.

    Parameters:
        data: the bytes.
        found: all headers.
        identified: for each record whether it may have such.
    """
    (alike,) = np.nonzero((found.keys.size == len(HEADER_KEY)) & identified[found.record])
    names = data[found.keys.at[alike][:, None] + np.arange(len(HEADER_KEY))]
    ours = alike[(names == np.frombuffer(HEADER_KEY, np.uint8)).all(axis=1)]
    kept = np.ones(len(found.record), np.bool_)
    kept[ours] = False
    keys, values = found.keys, found.values
    return Headers(found.record[kept], Field(keys.at[kept], keys.size[kept]),
                   Field(values.at[kept], values.size[kept]))  # fmt: skip


def binaries(data: bytes, field: Field) -> pa.Array:
    """Keys or values as Arrow has them.

    Arrow is shown the bytes as an array of both them and what lies between, and takes every second.

    Parameters:
        data: what they stand in.
        field: where; they rise.

    Raises:
        DecodingError: they are too long for Arrow.
    """
    count = len(field.at)
    if not count:
        return pa.array([], pa.binary())
    base = int(field.at[0])
    edges = np.empty(2 * count, np.int64)
    edges[0::2] = field.at - base
    edges[1::2] = edges[0::2] + np.maximum(field.size, 0)
    if edges[-1] > _ARROW_MAX:
        raise DecodingError(f"a key or value of {edges[-1]} bytes, which Arrow does not hold")
    content = pa.py_buffer(data).slice(base)
    buffers = [None, pa.py_buffer(edges.astype(np.int32)), content]
    both = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return both.take(pa.array(np.arange(0, 2 * count, 2), mask=field.size == NULL))


def _text(keys: pa.Array) -> pa.Array:
    """Keys of headers as text; as in Java, what is no UTF-8 is replaced."""
    text = pa.Array.from_buffers(pa.string(), len(keys), keys.buffers(), offset=keys.offset)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
    return text
