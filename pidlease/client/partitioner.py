"""Chooses the partition of a record, as Kafka's Java client does.

With a key: by its murmur2 hash (BuiltInPartitioner.partitionForKey). Without a key: one partition
until it has got a batch's worth of bytes, then another one at random (KIP-480, KIP-794).
"""

import random
from collections.abc import Sequence
from typing import Final

from pidlease.core.key_partition import partition_for_key


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
            return partitions[partition_for_key(key, len(partitions))]
        if self._left <= 0:
            self._left = self._sticky_bytes
            self._current = random.choice(self._available)  # noqa: S311 - no secret
        self._left -= size
        return self._current
