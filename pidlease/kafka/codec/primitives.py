"""Reads and writes Kafka's primitive types, for what is coded by hand: headers, Produce, Fetch.

Source: the protocol guide's "Protocol Primitive Types" and KIP-482 (flexible versions).
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
FLOAT64: Final = struct.Struct(">d")
_HEADER: Final = struct.Struct(">hhih")


#: The most elements in all arrays of a request together, because each takes time and memory to
#: read. A client that names every partition of a large cluster stays below this.
ELEMENTS_MAX: Final = 50_000
#: The most tagged fields of a struct; Kafka defines some few. One of two bytes takes as long as an
#: element.
_TAGS_MAX: Final = 100


class MalformedError(Exception):
    """The bytes are not a message of the version that they name."""


class RequestHeader(NamedTuple):
    """The header of a request; `body` is the position after it."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: int


def read_request_header(frame: bytearray) -> RequestHeader:
    """Read header v1 (the flexible v2 differs only in the tags after it; `Reader.tags` skips them).

    Raises:
        MalformedError: the frame ends too early.
    """
    try:
        api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
    except struct.error:
        raise MalformedError(f"{len(frame)} bytes are no request header") from None
    at = _HEADER.size
    if length < 0:
        return RequestHeader(api_key, version, correlation_id, "", at)
    if at + length > len(frame):
        raise MalformedError("the client id is longer than the request")
    client_id = frame[at : at + length].decode(errors="replace")
    return RequestHeader(api_key, version, correlation_id, client_id, at + length)


class Reader:
    """Reads one value after the other, and checks every length against the bytes that are left.

    Parameters:
        frame: the message.
        at: the position of the first value.
        flexible: whether strings, arrays and bytes have compact lengths, and structs have tags.
        elements_max: the most elements of all arrays together.
    """

    __slots__ = ("_elements_left", "_elements_max", "at", "flexible", "frame")

    def __init__(
        self, frame: bytearray, at: int, *, flexible: bool, elements_max: int = ELEMENTS_MAX
    ) -> None:
        self.frame = frame
        self.at = at
        self.flexible = flexible
        self._elements_max = self._elements_left = elements_max

    def int16(self) -> int:
        """Read a signed 16-bit number."""
        return int(self.fields(INT16)[0])

    def int32(self) -> int:
        """Read a signed 32-bit number."""
        return int(self.fields(INT32)[0])

    def fields(self, kind: struct.Struct) -> tuple[int, ...]:
        """Read values of fixed sizes."""
        try:
            values = kind.unpack_from(self.frame, self.at)
        except struct.error:
            raise MalformedError("the message ends too early") from None
        self.at += kind.size
        return values

    def rows(self, kind: struct.Struct) -> Iterator[tuple[int, ...]]:
        """Read an array of structs of a fixed size."""
        count = self.array()
        end = self.at + count * kind.size
        if end > len(self.frame):
            raise MalformedError("the message ends too early")
        found = kind.iter_unpack(memoryview(self.frame)[self.at : end])
        self.at = end
        return found

    def uvarint(self) -> int:
        """Read an unsigned varint: seven bits a byte, five bytes at most."""
        value = shift = 0
        while shift < 35:
            if self.at >= len(self.frame):
                raise MalformedError("the message ends too early")
            byte = self.frame[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise MalformedError("a length of more than 32 bits")

    def _length(self, fixed: struct.Struct) -> int:
        length = self.uvarint() - 1 if self.flexible else int(self.fields(fixed)[0])
        if length < -1 or self.at + length > len(self.frame):
            raise MalformedError(f"a length of {length} where the message has less")
        return length

    def string(self) -> str | None:
        """Read a string, or null."""
        length = self._length(INT16)
        if length < 0:
            return None
        data = self.frame[self.at : self.at + length]
        self.at += length
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise MalformedError("a string that is not UTF-8") from None

    def data(self) -> memoryview | None:
        """Read bytes, or null. Returns a view of the message, not a copy."""
        length = self._length(INT32)
        if length < 0:
            return None
        view = memoryview(self.frame)[self.at : self.at + length]
        self.at += length
        return view

    def take(self, size: int) -> bytes:
        """Read a number of bytes without a length prefix."""
        end = self.at + size
        if end > len(self.frame):
            raise MalformedError("the message ends too early")
        data = bytes(self.frame[self.at : end])
        self.at = end
        return data

    def nullable_array(self) -> int:
        """Read the number of elements that follow; -1 for a null array.

        The number is at most that of the bytes left: each element takes at least a byte.
        """
        count = self._length(INT32)
        self._elements_left -= count
        if self._elements_left < 0:
            most = self._elements_max
            raise MalformedError(f"more than {most} topics, partitions or the like")
        return count

    def array(self) -> int:
        """Read the number of elements that follow; 0 for a null array."""
        return max(self.nullable_array(), 0)

    def tag_count(self) -> int:
        """Read the number of tagged fields that follow. They count as elements of arrays do."""
        count = self.uvarint()
        self._elements_left -= count
        if count > _TAGS_MAX or self._elements_left < 0:
            raise MalformedError(f"{count} tagged fields")
        return count

    def tags(self) -> None:
        """Skip the tagged fields, because none is used; versions without tags have none."""
        if not self.flexible:
            return
        for _ in range(self.tag_count()):
            self.uvarint()
            size = self.uvarint()
            if self.at + size > len(self.frame):
                raise MalformedError("a tagged field is longer than the message")
            self.at += size

    def end(self) -> None:
        """Check that no bytes are left."""
        if self.at != len(self.frame):
            raise MalformedError(f"{len(self.frame) - self.at} bytes too many")


def compact_length(length: int) -> bytes:
    """Encode a length of a flexible version; -1 for null."""
    return write_uvarint(length + 1)


def write_uvarint(value: int) -> bytes:
    """Encode an unsigned varint: seven bits a byte."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_string(text: str | None, *, flexible: bool) -> bytes:
    """Encode a string, or null."""
    if text is None:
        return compact_length(-1) if flexible else INT16.pack(-1)
    data = text.encode()
    return (compact_length(len(data)) if flexible else INT16.pack(len(data))) + data


def write_array(length: int, *, flexible: bool) -> bytes:
    """Encode the number of elements, which precedes an array."""
    return compact_length(length) if flexible else INT32.pack(length)
