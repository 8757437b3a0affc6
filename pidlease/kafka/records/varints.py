"""Reads varints in Kafka's records, which are zigzag encoded, as in Protocol Buffers."""

from pidlease.core.buffer import Buffer
from pidlease.kafka.codec.primitives import write_uvarint

_SHIFT_MAX = 63


class CutOffError(ValueError):
    """The bytes end too early."""


class VarintReader:
    """Reads varints and bytes, one after the other.

    Attributes:
        at: the position of the next byte.
    """

    __slots__ = ("_data", "at")

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self.at = 0

    def varint(self) -> int:
        """Read a number.

        Raises:
            CutOffError: the bytes end before the number does.
            ValueError: the number has more than ten bytes.
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
        """Skip bytes.

        Raises:
            CutOffError: there are not as many.
        """
        self.at += count
        if self.at > len(self._data):
            raise CutOffError(f"{self.at - len(self._data)} bytes are missing")

    def take(self, count: int) -> bytes:
        """Read bytes.

        Raises:
            CutOffError: there are not as many.
            ValueError: `count` is negative.
        """
        if count < 0:
            raise ValueError(f"{count} bytes")
        begin = self.at
        self.skip(count)
        return bytes(self._data[begin : self.at])


def encode_varint(value: int) -> bytes:
    """Encode a number."""
    return write_uvarint((value << 1) ^ (value >> _SHIFT_MAX))
