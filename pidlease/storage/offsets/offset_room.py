"""The limits of committed offsets, with those that are being written to the disk."""

from collections import Counter
from typing import Final

from pidlease.storage.offsets.journal_records import Mark, OffsetsFullError, Record
from pidlease.storage.offsets.offset_table import OffsetTable

#: What an offset may take on average where there are as many as there may be.
_ENTRY_BYTES_MAX: Final = 512


class OffsetRoom:
    """Counts what is stored, and what is about to be.

    Parameters:
        table: what is stored.
        entries_max: offsets of all groups together; the bytes that they may take follow from it.
    """

    def __init__(self, table: OffsetTable, entries_max: int) -> None:
        self.entries_max = entries_max
        self._table = table
        #: How many records of each group are pending, and what they may add in all.
        self._under_way: Counter[str] = Counter()
        self._entries = 0
        self._bytes = 0

    def is_busy(self, group: str) -> bool:
        """Return whether records of a group are pending."""
        return group in self._under_way

    def take(self, record: Record) -> tuple[int, int]:
        """Make room for a record.

        Returns:
            Entries and bytes that it may bring; to be given back when it is in the table, or not.

        Raises:
            OffsetsFullError: there is no room for it.
        """
        new, size = self._table.growth(record)
        if new and self._table.entries + self._entries + new > self.entries_max:
            raise OffsetsFullError(f"at most {self.entries_max} offsets of all groups together")
        size_max = self.entries_max * _ENTRY_BYTES_MAX
        if size > 0 and self._table.size_bytes + self._bytes + size > size_max:
            raise OffsetsFullError(f"at most {size_max} bytes of offsets of all groups together")
        size = max(size, 0)
        self._entries += new
        self._bytes += size
        self._under_way[_group_of(record)] += 1
        return new, size

    def give_back(self, record: Record, taken: tuple[int, int]) -> None:
        """A record came to its end: `taken` is what `take` said."""
        group = _group_of(record)
        self._under_way[group] -= 1
        if not self._under_way[group]:
            del self._under_way[group]
        self._entries -= taken[0]
        self._bytes -= taken[1]


def _group_of(record: Record) -> str:
    return "" if isinstance(record, Mark) else record.group
