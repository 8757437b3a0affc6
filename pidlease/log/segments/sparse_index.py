"""Kafka's two sparse indexes of a segment: .index by offset, .timeindex by time.

An entry of .index is (last offset of a batch - base offset, position of the batch), 8 bytes. An
entry of .timeindex is (largest timestamp so far, last offset of its batch - base offset), 12
bytes. One of each is written for about every 4 KiB of log (Kafka's index.interval.bytes). The
indexes are caches: an entry is checked against the log whenever it is used, and indexes that do not
fit are rebuilt from the log.
"""

import struct
from typing import Final, NamedTuple

from pidlease.kafka.records.record_batch import BatchHeader
from pidlease.storage.files import OpenFile

INTERVAL_BYTES: Final = 4096

OFFSET_ENTRY: Final = struct.Struct(">ii")
TIME_ENTRY: Final = struct.Struct(">qi")

#: The timestamp of batches without timestamps.
NO_TIMESTAMP: Final = -1


class IndexEntries(NamedTuple):
    """The bytes to append to the two files."""

    offsets: bytes
    times: bytes


class Indexer:
    """Decides which batches get entries, as Kafka's LogSegment does.

    Parameters:
        base_offset: the segment's base offset.
    """

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._since_entry = 0
        self._last_time_entry = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset

    def resume(self, max_timestamp: int, at_offset: int) -> None:
        """Continue after existing entries, with the timestamp and the offset of the last one."""
        self.max_timestamp = max_timestamp
        self._last_time_entry = max_timestamp
        self._max_timestamp_offset = at_offset

    def add(self, header: BatchHeader, base_offset: int, position: int) -> IndexEntries | None:
        """Note an appended batch, and return the entries to write; None: none is due."""
        last = base_offset + header.last_offset_delta
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self._max_timestamp_offset = last
        due = self._since_entry > INTERVAL_BYTES
        if due:
            self._since_entry = 0
        self._since_entry += header.size
        if not due:
            return None
        return IndexEntries(OFFSET_ENTRY.pack(last - self._base, position), self.time_entry())

    def time_entry(self) -> bytes:
        """Return the entry of the largest timestamp so far; empty: it is written already."""
        if self.max_timestamp <= self._last_time_entry:
            return b""
        self._last_time_entry = self.max_timestamp
        return TIME_ENTRY.pack(self.max_timestamp, self._max_timestamp_offset - self._base)


def floor_entry(file: OpenFile, entry: struct.Struct, key: int) -> tuple[int, int] | None:
    """Return the last entry with a first field at or below `key`; None: there is none."""
    low, high = 0, file.size() // entry.size
    floor: tuple[int, int] | None = None
    while low < high:
        middle = (low + high) // 2
        first, second = entry.unpack(file.read_at(entry.size, middle * entry.size))
        if first <= key:
            floor = (first, second)
            low = middle + 1
        else:
            high = middle
    return floor


def last_entry(file: OpenFile, entry: struct.Struct) -> tuple[int, int] | None:
    """Return the last entry of an index; None: the index is empty."""
    count = file.size() // entry.size
    if not count:
        return None
    first, second = entry.unpack(file.read_at(entry.size, (count - 1) * entry.size))
    return first, second


def entries(file: OpenFile, entry: struct.Struct) -> list[tuple[int, int]]:
    """Return all complete entries of an index."""
    size = file.size() // entry.size * entry.size
    return [(first, second) for first, second in entry.iter_unpack(file.read_at(size, 0))]
