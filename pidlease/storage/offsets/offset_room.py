"""Limits the number and size of committed offsets, pending records included."""

from collections import Counter
from typing import Final

from pidlease.storage.offsets.journal_records import Mark, OffsetsFullError, Record
from pidlease.storage.offsets.offset_table import OffsetTable

#: The average bytes per offset when the number of offsets is at its limit.
_ENTRY_BYTES_MAX: Final = 512


class OffsetRoom:
    """Counts stored and pending offsets.

    Parameters:
        table: the stored offsets.
        entries_max: offsets of all groups together; the limit of their bytes follows from it.
    """

    def __init__(self, table: OffsetTable, entries_max: int) -> None:
        self.entries_max = entries_max
        self._table = table
        #: Pending records of each group, and the entries and bytes that they may add in all.
        self._pending: Counter[str] = Counter()
        self._entries = 0
        self._bytes = 0

    def is_busy(self, group: str) -> bool:
        """Return whether records of a group are pending."""
        return group in self._pending

    def take(self, record: Record) -> tuple[int, int]:
        """Reserve room for a record.

        Returns:
            The entries and bytes reserved; pass them to `give_back` when the record has been
            stored or has failed.

        Raises:
            OffsetsFullError: there is no room.
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
        self._pending[_group_of(record)] += 1
        return new, size

    def give_back(self, record: Record, taken: tuple[int, int]) -> None:
        """Release the room that `take` reserved for a record."""
        group = _group_of(record)
        self._pending[group] -= 1
        if not self._pending[group]:
            del self._pending[group]
        self._entries -= taken[0]
        self._bytes -= taken[1]


def _group_of(record: Record) -> str:
    return "" if isinstance(record, Mark) else record.group
