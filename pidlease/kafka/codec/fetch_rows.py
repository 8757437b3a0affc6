"""Answers to Fetch, taken apart by partition and joined: records are not looked at.

Source: FetchResponse.json of Kafka 4.1, versions 4 to 11.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pidlease.kafka.codec.primitives import INT16, INT32, write_array, write_string
from pidlease.kafka.errors import UpstreamNonsenseError

#: Partition, error, high watermark, last stable offset; from version 5 on the first offset.
_ROW_V4: Final = struct.Struct(">ihqq")
_ROW_V5: Final = struct.Struct(">ihqqq")
_ABORTED_BYTES: Final = 16
_NO_ABORTED: Final = INT32.pack(-1)
_NO_REPLICA: Final = INT32.pack(-1)
_NOTHING: Final = INT32.pack(0)

Place = tuple[str, int]


class FetchRow(NamedTuple):
    """A partition's part of an answer.

    Attributes:
        code: Kafka's error code.
        size: bytes of records.
        data: all of it, as it came.
        marks: high watermark, last stable offset, and first offset.
    """

    code: int
    size: int
    data: memoryview
    marks: tuple[int, int, int]


def read_rows(version: int, frame: bytes | bytearray) -> tuple[int, dict[Place, FetchRow]]:
    """An answer, from the correlation id on: its error code, and its partitions.

    Raises:
        UpstreamNonsenseError: it is none.
    """
    try:
        return _read(version, frame)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise UpstreamNonsenseError(f"an answer to Fetch that is none: {error}") from error


def _read(version: int, frame: bytes | bytearray) -> tuple[int, dict[Place, FetchRow]]:
    view = memoryview(frame)
    at, code = 8, 0
    if version >= 7:
        (code,) = INT16.unpack_from(frame, at)
        at += 6
    (topics,) = INT32.unpack_from(frame, at)
    at += 4
    rows: dict[Place, FetchRow] = {}
    for _ in range(topics):
        (length,) = INT16.unpack_from(frame, at)
        name = bytes(view[at + 2 : at + 2 + length]).decode()
        at += 2 + length
        (partitions,) = INT32.unpack_from(frame, at)
        at += 4
        for _ in range(partitions):
            begin, number = at, INT32.unpack_from(frame, at)[0]
            row, at = _read_row(version, view, begin)
            rows[name, number] = row
    if at != len(frame):
        raise IndexError(f"{len(frame) - at} bytes too many")
    return code, rows


def _read_row(version: int, view: memoryview, begin: int) -> tuple[FetchRow, int]:
    layout = _ROW_V5 if version >= 5 else _ROW_V4
    _, code, *marks = layout.unpack_from(view, begin)
    at = begin + layout.size
    (aborted,) = INT32.unpack_from(view, at)
    at += 4 + max(aborted, 0) * _ABORTED_BYTES + (4 if version >= 11 else 0)
    (size,) = INT32.unpack_from(view, at)
    size = max(size, 0)
    at += 4 + size
    if at > len(view):
        raise IndexError("records that are longer than the answer")
    first = marks[2] if version >= 5 else -1
    return FetchRow(code, size, view[begin:at], (marks[0], marks[1], first)), at


def empty_row(version: int, number: int, code: int, marks: tuple[int, int, int]) -> bytes:
    """A partition's part without records."""
    if version >= 5:
        head = _ROW_V5.pack(number, code, *marks)
    else:
        head = _ROW_V4.pack(number, code, *marks[:2])
    return head + _NO_ABORTED + (_NO_REPLICA if version >= 11 else b"") + _NOTHING


def write_answer(
    version: int, correlation_id: int, topics: Mapping[str, Iterable[bytes | memoryview]]
) -> list[bytes]:
    """The answer, from the response header on, in parts.

    Parameters:
        version: of the request.
        correlation_id: of the request.
        topics: the parts of their partitions.
    """
    parts: list[bytes] = [INT32.pack(correlation_id), b"\0\0\0\0"]
    if version >= 7:
        parts.append(b"\0\0\0\0\0\0")  # no error, no session
    parts.append(write_array(len(topics), flexible=False))
    for name, rows in topics.items():
        listed = list(rows)
        parts += (write_string(name, flexible=False), write_array(len(listed), flexible=False))
        parts += listed  # type: ignore[arg-type]  # a transport takes views as well
    return parts
