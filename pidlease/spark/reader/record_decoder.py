"""Many records decoded at once, by columns.

A record has the layout of Kafka's DefaultRecord: length, attributes, timestamp delta, offset delta,
key, value, headers; numbers are varints. A loop finds where each record begins; everything else is
done for all records at once. Each length is checked against its record.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

#: Zeros after the last record, so that a varint at its end ends.
PADDING: Final = bytes(16)
#: The length of a null key or value.
NULL: Final = -1

_VARINT_BYTES_MAX: Final = 10


class DecodingError(ValueError):
    """The bytes are no records."""


class Field(NamedTuple):
    """Keys or values: where each begins, and its length or NULL."""

    at: Ints
    size: Ints


class RecordColumns(NamedTuple):
    """Records, by columns.

    Attributes:
        timestamps: in ms after the base timestamp of the batch.
        offsets: after the base offset of the batch.
        headers: the number of headers.
        headers_at: where the headers begin.
    """

    timestamps: Ints
    offsets: Ints
    keys: Field
    values: Field
    headers: Ints
    headers_at: Ints


class Headers(NamedTuple):
    """Headers of many records, ordered by record.

    Attributes:
        record: the index of the record that each belongs to.
        keys: none is null.
    """

    record: Ints
    keys: Field
    values: Field


def boundaries(data: bytes, at: int, end: int, count: int) -> list[int]:
    """Find where each record begins.

    Parameters:
        at: where the first record begins.
        end: where the last record ends.
        count: the number of records.

    Raises:
        DecodingError: the records do not end there.
    """
    begins: list[int] = []
    add = begins.append
    try:
        for _ in range(count):
            add(at)
            size = data[at]
            at += 1
            if size >= 0x80:
                byte = data[at]
                at += 1
                size = size & 0x7F | (byte & 0x7F) << 7
                if byte >= 0x80:
                    size, at = _longer(data, size, at)
            at += size >> 1  # `decode` refuses a negative length
    except IndexError:
        raise DecodingError("the records go beyond their batch") from None
    if at != end:
        raise DecodingError(f"the records end {at - end:+} bytes from the end of their batch")
    return begins


def _longer(data: bytes, size: int, at: int) -> tuple[int, int]:
    """Decode the rest of a length of more than two bytes; return it, and the position after it."""
    for shift in (14, 21, 28):
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, at
    raise DecodingError("a record's length has more than five bytes")


def decode(data: Bytes, begins: Ints, ends: Ints) -> RecordColumns:
    """Decode records.

    Parameters:
        data: the bytes, with PADDING after the last record.
        begins: where each record begins.
        ends: where each record ends.

    Raises:
        DecodingError: the bytes are no records.
    """
    at = begins.copy()
    if (_varints(data, at, ends) != ends - at).any():
        raise DecodingError("a record has another length than it says")
    at += 1  # attributes, all unused
    timestamps = _varints(data, at, ends)
    offsets = _varints(data, at, ends)
    keys = _field(data, at, ends)
    values = _field(data, at, ends)
    headers = _varints(data, at, ends)
    # A header is two bytes at least.
    if ((headers < 0) | (headers > (ends - at) // 2) | ((headers == 0) & (at != ends))).any():
        raise DecodingError("the headers of a record do not fill it")
    return RecordColumns(timestamps, offsets, keys, values, headers, at)


def decode_headers(data: Bytes, columns: RecordColumns, ends: Ints) -> Headers:
    """Decode the headers of records.

    Parameters:
        data: the argument of `decode`.
        columns: the result of `decode`.
        ends: where each record ends.

    Raises:
        DecodingError: the bytes are no headers, or do not fill their records.
    """
    left, at = columns.headers.copy(), columns.headers_at.copy()
    records = np.flatnonzero(left)
    parts: list[tuple[Ints, Field, Field]] = []
    while len(records):  # the next header of each record that has one
        where, limit = at[records], ends[records]
        keys = _field(data, where, limit)
        values = _field(data, where, limit)
        if (keys.size == NULL).any():
            raise DecodingError("a header without a key")
        parts.append((records, keys, values))
        at[records] = where
        left[records] -= 1
        records = records[left[records] > 0]
    if ((columns.headers > 0) & (at != ends)).any():
        raise DecodingError("the headers of a record do not fill it")
    none = Field(np.empty(0, np.int64), np.empty(0, np.int64))
    parts = parts or [(none.at, none, none)]
    record = np.concatenate([part[0] for part in parts])
    order = np.argsort(record, kind="stable")
    return Headers(record[order], _in_order(parts, 1, order), _in_order(parts, 2, order))


def _in_order(parts: list[Any], index: int, order: Ints) -> Field:
    at = np.concatenate([part[index].at for part in parts])
    size = np.concatenate([part[index].size for part in parts])
    return Field(at[order], size[order])


def _field(data: Bytes, at: Ints, ends: Ints) -> Field:
    """Decode keys or values; move `at` past them."""
    size = _varints(data, at, ends)
    if ((size < NULL) | (size > ends - at)).any():
        raise DecodingError("a key or value that leaves its record")
    begin = at.copy()
    at += np.maximum(size, 0)
    return Field(begin, size)


def _varints(data: Bytes, at: Ints, ends: Ints) -> Ints:
    """Decode the varints at some positions; move `at` past them."""
    if (at >= ends).any():
        raise DecodingError("a record that ends before its fields do")
    byte = data[at]
    at += 1
    values = (byte & 0x7F).astype(np.uint64)
    (longer,) = np.nonzero(byte & 0x80)
    for index in range(1, _VARINT_BYTES_MAX):
        if not len(longer):
            break
        byte = data[at[longer]]
        at[longer] += 1
        values[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
        longer = longer[byte >= 0x80]
    if len(longer):
        raise DecodingError("a number of more than ten bytes")
    if (at > ends).any():
        raise DecodingError("a number that leaves its record")
    sign = -(values & np.uint64(1)).astype(np.int64)
    return (values >> np.uint64(1)).astype(np.int64) ^ sign
