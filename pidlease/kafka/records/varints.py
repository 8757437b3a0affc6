"""Varints as they stand in Kafka's records: zigzag, as in Protocol Buffers."""

from pidlease.core.buffer import Buffer
from pidlease.kafka.codec.primitives import write_uvarint

_SHIFT_MAX = 63


class CutOffError(ValueError):
    """The bytes end before what they say."""


class Reader:
    """Reads varints and bytes, one after the other.

    Parameters:
        data: where they stand.

    Attributes:
        at: where the next one begins.
    """

    __slots__ = ("_data", "at")

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self.at = 0

    def varint(self) -> int:
        """The next number.

        Raises:
            CutOffError: it ends before its last byte.
            ValueError: it is longer than any.
        """
        shift = value = 0
        while True:
            if shift > _SHIFT_MAX:
                raise ValueError("a number of more than ten bytes")
            if self.at >= len(self._data):
                raise CutOffError("cut off in a number")
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def skip(self, count: int) -> None:
        """Pass over bytes.

        Raises:
            CutOffError: there are not so many.
        """
        self.at += count
        if self.at > len(self._data):
            raise CutOffError(f"{self.at - len(self._data)} bytes are missing")

    def take(self, count: int) -> bytes:
        """The next bytes.

        Raises:
            CutOffError: there are not so many.
            ValueError: it is a negative number of them.
        """
        if count < 0:
            raise ValueError(f"{count} bytes")
        begin = self.at
        self.skip(count)
        return bytes(self._data[begin : self.at])


def encode_varint(value: int) -> bytes:
    """A number as a varint."""
    return write_uvarint((value << 1) ^ (value >> _SHIFT_MAX))
