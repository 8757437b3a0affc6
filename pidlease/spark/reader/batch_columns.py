"""Many batches converted to Arrow columns at once."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pidlease.kafka.records.identity_header import HEADER_KEY
from pidlease.kafka.records.record_batch import BatchHeader
from pidlease.spark.reader.log_parts import Part
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
_IDENTITY: Final = (("pid", pa.int64()), ("generation", pa.int64()), ("sequence", pa.int64()))
#: Limits of an Arrow batch; a larger record gets its own.
_ROWS: Final = 1 << 15
_ROWS_BYTES: Final = 8 << 20
#: The most bytes of an Arrow binary column.
_ARROW_MAX: Final = 2**31 - 1
_SEQUENCE_MASK: Final = 0x7FFFFFFF
#: Timestamps beyond this become null: Spark counts microseconds in 64 bits.
_MS_MAX: Final = (2**63 - 1) // 1000


def schema(*, headers: bool) -> pa.Schema:
    """Return the Arrow schema, with or without the headers."""
    return pa.schema([*_FRONT, *(_HEADERS if headers else ()), *_IDENTITY])


class SendIdentity(NamedTuple):
    """The PID, generation and sequence numbers of a send.

    Attributes:
        offset: of its first record.
        pid: None: no leased PID.
        first_sequence: the sequence number at `offset`; None: unknown.
        wraps: whether sequence numbers continue at 0 after 2^31 - 1.
    """

    offset: int
    pid: int | None
    generation: int | None
    first_sequence: int | None
    wraps: bool = False


class UnpackedBatch(NamedTuple):
    """A decompressed batch.

    Attributes:
        content: its records.
        begins: where in `content` each record begins.
        identities: of its sends, in order.
        identified: whether its records have headers `pidlease`, which are not the user's.
    """

    header: BatchHeader
    content: bytes
    begins: list[int]
    identities: list[SendIdentity]
    identified: bool


def unpacked_batch(
    header: BatchHeader, content: bytes, identities: list[SendIdentity], *, identified: bool
) -> UnpackedBatch:
    """Return a batch with the boundaries of its records.

    Raises:
        DecodingError: the records do not fill the batch.
    """
    begins = boundaries(content, 0, len(content), header.records)
    return UnpackedBatch(header, content, begins, identities, identified)


class DecodedBatches:
    """Batches that are decoded together.

    Parameters:
        part: records outside of it are left out.
        batches: in order.
        headers: whether to decode the headers.

    Raises:
        DecodingError: a record cannot be decoded.
    """

    def __init__(self, part: Part, batches: Sequence[UnpackedBatch], *, headers: bool) -> None:
        self._part: Final = part
        self._schema: Final = schema(headers=headers)
        self._data: Final = b"".join([*(each.content for each in batches), PADDING])
        self._bytes: Final[Bytes] = np.frombuffer(self._data, np.uint8)
        self._begins, self._ends = _boundaries(batches)
        self._columns: Final = decode(self._bytes, self._begins, self._ends)
        self._batch: Final = np.repeat(
            np.arange(len(batches)), [len(each.begins) for each in batches]
        )
        self._headers: Final = [each.header for each in batches]
        self._offsets: Final = self._absolute()
        self._identities: Final = _SendColumns(batches, self._offsets)
        self._user: Headers | None = None
        if headers:
            identified = np.array([each.identified for each in batches], np.bool_)
            all_headers = decode_headers(self._bytes, self._columns, self._ends)
            self._user = _user_headers(self._bytes, all_headers, identified[self._batch])

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Return the records of the part as columns, in batches of a limited size."""
        at = int(np.searchsorted(self._offsets, self._part.start))
        end = int(np.searchsorted(self._offsets, self._part.end))
        while at < end:
            room = self._begins[at] + _ROWS_BYTES
            fitting = int(np.searchsorted(self._ends, room, side="right"))
            until = min(max(fitting, at + 1), at + _ROWS, end)
            yield self._some(slice(at, until))
            at = until

    def _absolute(self) -> Ints:
        """Return the offset of each record.

        Raises:
            DecodingError: the offsets do not fit their batches, or do not rise.
        """
        base = self._each([each.base_offset for each in self._headers])
        last = self._each([each.last_offset_delta for each in self._headers])
        deltas = self._columns.offsets
        offsets: Ints = base + deltas
        if ((deltas < 0) | (deltas > last)).any() or (np.diff(offsets) <= 0).any():
            raise DecodingError("the offsets of its records do not fit the batch")
        return offsets

    def _each(self, of_batches: list[int]) -> Ints:
        """Repeat a value of each batch for its records."""
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
        columns += self._identities.columns(rows)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _binary(self, field: Field, rows: slice) -> pa.Array:
        return binaries(self._data, Field(field.at[rows], field.size[rows]))

    def _times(self, rows: slice) -> tuple[pa.Array, pa.Array]:
        """Return the timestamps, and whether they are log append times."""
        headers, batch = self._headers, self._batch[rows]
        own = np.array([each.is_log_append_time for each in headers], np.bool_)[batch]
        base = np.array([each.base_timestamp for each in headers], np.int64)[batch]
        newest = np.array([each.max_timestamp for each in headers], np.int64)[batch]
        times = np.where(own, newest, base + self._columns.timestamps[rows])
        none = (times > _MS_MAX) | (times < -_MS_MAX)
        micros = pa.array(np.where(none, 0, times) * 1000, mask=none)
        return micros.cast(pa.timestamp("us", "UTC")), pa.array(own.astype(np.int32))

    def _header_lists(self, user: Headers, rows: slice) -> pa.Array:
        first, until = np.searchsorted(user.record, [rows.start, rows.stop])
        some = slice(int(first), int(until))
        keys = binaries(self._data, Field(user.keys.at[some], user.keys.size[some]))
        values = binaries(self._data, Field(user.values.at[some], user.values.size[some]))
        pairs = pa.StructArray.from_arrays([_text(keys), values], fields=list(_HEADER))
        edges = np.searchsorted(user.record[some], np.arange(rows.start, rows.stop + 1))
        # As in Spark's Kafka source: null if a record has no headers.
        none = np.append(edges[1:] == edges[:-1], False)
        return pa.ListArray.from_arrays(
            pa.array(edges.astype(np.int32), mask=none), pairs, type=_HEADERS[0][1]
        )


class _SendColumns:
    """The columns that identify the send of each record."""

    def __init__(self, batches: Sequence[UnpackedBatch], offsets: Ints) -> None:
        sends = [send for each in batches for send in each.identities]
        begins = np.array([send.offset for send in sends], np.int64)
        self._send: Final = np.searchsorted(begins, offsets, side="right") - 1
        self._distance: Final = offsets - begins[self._send]
        self._sends: Final = sends

    def columns(self, rows: slice) -> list[pa.Array]:
        """Return PID, generation and sequence number."""
        send, sends = self._send[rows], self._sends
        wraps = np.array([each.wraps for each in sends], np.bool_)[send]
        first, unknown = _nullable([each.first_sequence for each in sends])
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
    """Return numbers with 0 for None, and which are None."""
    none = np.array([value is None for value in values], np.bool_)
    return np.array([value or 0 for value in values], np.int64), none


def _boundaries(batches: Sequence[UnpackedBatch]) -> tuple[Ints, Ints]:
    """Return where each record begins and ends in the joined batches."""
    begins, at = [], 0
    for each in batches:
        begins.append(np.array(each.begins, np.int64) + at)
        at += len(each.content)
    joined = np.concatenate(begins)
    return joined, np.append(joined[1:], at)


def _user_headers(data: Bytes, headers: Headers, identified: npt.NDArray[np.bool_]) -> Headers:
    """Return the headers without the headers `pidlease`.

    Parameters:
        headers: all headers.
        identified: for each record, whether its headers `pidlease` are not the user's.
    """
    (alike,) = np.nonzero((headers.keys.size == len(HEADER_KEY)) & identified[headers.record])
    names = data[headers.keys.at[alike][:, None] + np.arange(len(HEADER_KEY))]
    ours = alike[(names == np.frombuffer(HEADER_KEY, np.uint8)).all(axis=1)]
    kept = np.ones(len(headers.record), np.bool_)
    kept[ours] = False
    keys, values = headers.keys, headers.values
    return Headers(headers.record[kept], Field(keys.at[kept], keys.size[kept]),
                   Field(values.at[kept], values.size[kept]))  # fmt: skip


def binaries(data: bytes, field: Field) -> pa.Array:
    """Return keys or values as an Arrow array.

    Arrow gets the bytes as an array of the values and of the gaps between them, and takes every
    second element.

    Parameters:
        field: where the values are, rising.

    Raises:
        DecodingError: the values are too long for Arrow.
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
    """Return keys of headers as text; invalid UTF-8 is replaced, as in Java."""
    text = pa.Array.from_buffers(pa.string(), len(keys), keys.buffers(), offset=keys.offset)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
    return text
