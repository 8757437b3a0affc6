"""Finds values in batches of one record, as appends over HTTP make them, at a third of the cost.

A record of given size with a tail of given size has only one beginning: so the beginning is not
decoded, but compared. A batch that is different in any way is left to the decoder of all batches.
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from crc32c import crc32c

from pidlease.engine.stream_gate import STREAM_HEADER
from pidlease.kafka.records.identity_header import HEADER_KEY
from pidlease.kafka.records.record_batch import CRC_FROM, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC
from pidlease.kafka.records.varints import VarintReader, encode_varint

#: What a value counts beside its bytes: a page of empty values has an end.
VALUE_BYTES: Final = 16
#: Of a batch's header: base offset, length, magic, CRC, attributes, last offset delta, records.
_FIELDS: Final = struct.Struct(">qi4xbIhi30xi")
#: The attribute bits of compressed batches and of control batches.
_NOT_PLAIN: Final = 0x27
#: Attributes, differences of time and offset, and the length of the key: there is none.
_FRONT: Final = b"\x00\x00\x00\x01"


def _key(name: bytes) -> bytes:
    """Return a header's key, with its length."""
    return encode_varint(len(name)) + name


#: The tail of a record is its headers: their number, then each. Streams' header has no value, but
#: for a close; it is the last one.
_STREAM: Final = _key(STREAM_HEADER.encode()) + encode_varint(0)
_NO_HEADER: Final = encode_varint(0)
_ONLY_STREAM: Final = encode_varint(1)
_IDENTITY_FIRST: Final = encode_varint(2) + _key(HEADER_KEY)
_ONLY_STREAM_BYTES: Final = len(_ONLY_STREAM + _STREAM)


class _Frame(NamedTuple):
    """What surrounds a value.

    Attributes:
        front: the bytes before it.
        headers: how its tail begins.
        last: how its tail ends.
    """

    front: bytes
    headers: bytes
    last: bytes


def _length_in(size: int) -> bytes | None:
    """Return the length of what has a size together with its length; None: nothing has."""
    for bytes_of_length in range(1, 6):
        length = encode_varint(max(size - bytes_of_length, 0))
        if len(length) == bytes_of_length <= size:
            return length
    return None


@lru_cache(maxsize=1 << 14)
def _frame(record_bytes: int, tail_bytes: int) -> _Frame | None:
    """Return what surrounds the value of a record; None: it is none that appends over HTTP make.

    Parameters:
        record_bytes: the size of the record, with its length.
    """
    if tail_bytes == len(_NO_HEADER):
        headers, last = _NO_HEADER, b""
    elif tail_bytes == _ONLY_STREAM_BYTES:
        headers, last = _ONLY_STREAM, _STREAM
    else:
        identity = _length_in(tail_bytes - len(_IDENTITY_FIRST) - len(_STREAM))
        if identity is None:
            return None
        headers, last = _IDENTITY_FIRST + identity, _STREAM
    record = _length_in(record_bytes)
    if record is None:
        return None
    value = _length_in(record_bytes - len(record) - len(_FRONT) - tail_bytes)
    return None if value is None else _Frame(record + _FRONT + value, headers, last)


def _tail_bytes(data: bytes, start: int, stop: int) -> int:
    """Return the size of a record's tail; 0: the record is not as appends over HTTP make it.

    Parameters:
        start: of the record.
        stop: the position after it.
    """
    reader = VarintReader(memoryview(data)[start:stop])
    try:
        reader.varint()
        reader.skip(len(_FRONT))
        value = reader.varint()
        reader.skip(max(value, 0))
    except ValueError:
        return 0
    return stop - start - reader.at


class Leading(NamedTuple):
    """The values at the beginning of some batches.

    Attributes:
        values: them.
        batches: how many batches have them: each is of one record.
        position: of the first batch that was not read.
        offset: the offset after the last value.
        bytes_left: how many bytes of values may follow.
    """

    values: list[bytes]
    batches: int
    position: int
    offset: int
    bytes_left: int


def leading_values(data: bytes, offset: int, end: int, bytes_max: int, *, is_json: bool) -> Leading:
    """Return values as `read_of` does, up to the first batch that must be decoded.

    Parameters:
        is_json: whether values that were not appended over HTTP must be converted.
    """
    values: list[bytes] = []
    view, size, at, batches, tail_bytes = memoryview(data), len(data), 0, 0, _ONLY_STREAM_BYTES
    least = len(_NO_HEADER) + 1 if is_json else len(_NO_HEADER)
    while at + HEADER_BYTES <= size:
        base, length, magic, crc, attributes, delta, records = _FIELDS.unpack_from(data, at)
        start, stop = at + HEADER_BYTES, at + length + LENGTH_PREFIX_BYTES
        if (
            stop > size or base >= end or bytes_max <= 0
            or records != 1 or delta or magic != MAGIC or attributes & _NOT_PLAIN
        ):  # fmt: skip
            break
        frame = _frame(stop - start, tail_bytes)
        if frame is None or not data.startswith(frame.front, start):
            tail_bytes = _tail_bytes(data, start, stop)
            frame = _frame(stop - start, tail_bytes)
            if frame is None or not data.startswith(frame.front, start):
                break
        front, headers, last = frame
        tail = stop - tail_bytes
        if (
            tail_bytes < least
            or not data.startswith(headers, tail)
            or not data.endswith(last, tail, stop)
            or crc32c(view[at + CRC_FROM : stop]) != crc
        ):
            break
        if base >= offset:
            value = data[start + len(front) : tail]
            values.append(value)
            bytes_max -= len(value) + VALUE_BYTES
            offset = base + 1
        at = stop
        batches += 1
    return Leading(values, batches, at, offset, bytes_max)
