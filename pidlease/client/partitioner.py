"""Chooses the partition of a record, as Kafka's Java client does.

With a key: by its murmur2 hash (BuiltInPartitioner.partitionForKey). Without a key: one partition
until it has got a batch's worth of bytes, then another one at random (KIP-480, KIP-794).
"""

import random
import struct
from collections.abc import Sequence
from typing import Final

_MASK: Final = 0xFFFFFFFF
_M: Final = 0x5BD1E995


class Partitioner:
    """Chooses partitions of one topic.

    Parameters:
        partitions: all of the topic, in order; used for keys.
        available: those that have a leader; used for records without a key.
        sticky_bytes: after so many bytes another partition is chosen.
    """

    __slots__ = ("_available", "_current", "_left", "_sticky_bytes", "partitions")

    def __init__(
        self, partitions: Sequence[int], available: Sequence[int], sticky_bytes: int
    ) -> None:
        self.partitions: Final = partitions
        self._available: Final = available or partitions
        self._sticky_bytes: Final = sticky_bytes
        self._current = -1
        self._left = 0

    def of(self, key: bytes | None, size: int) -> int:
        """Return the partition of a record.

        Parameters:
            size: of its value, in bytes.
        """
        if key is not None:
            partitions = self.partitions
            return partitions[(murmur2(key) & 0x7FFFFFFF) % len(partitions)]
        if self._left <= 0:
            self._left = self._sticky_bytes
            self._current = random.choice(self._available)  # noqa: S311 - no secret
        self._left -= size
        return self._current


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return a key's partition, as Kafka's clients choose it."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(key: bytes) -> int:
    """Return the 32-bit MurmurHash2 with Kafka's seed (Utils.murmur2), not negative.

    It reads four bytes at once, and takes half the time of aiokafka's.
    """
    size = len(key)
    hashed = 0x9747B28C ^ size
    whole = size & ~3
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        mixed = word * _M & _MASK
        mixed = (mixed ^ mixed >> 24) * _M & _MASK
        hashed = hashed * _M & _MASK ^ mixed
    if size != whole:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15
