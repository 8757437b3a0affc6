"""Which ids count as groups: those that are stored, have members, or are about to be stored."""

import asyncio
from collections import Counter
from collections.abc import Container

from pidlease.storage.offsets.offset_table import OffsetTable


class KnownGroups:
    """Counts them, however many they are, without looking at all of them.

    Parameters:
        table: what is stored.
        active: ids of the groups that have members, or will; `recount` follows a change.

    Attributes:
        unstored: ids that count, and are not stored.
    """

    def __init__(self, table: OffsetTable, active: Container[str]) -> None:
        self.unstored: set[str] = set()
        self._table = table
        self._active = active
        #: Of how many commits of an id it is not known yet whether they are stored.
        self._coming: Counter[str] = Counter()
        table.on_group = self.recount

    def __len__(self) -> int:
        return len(self._table.groups) + len(self.unstored)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._table.groups or group_id in self.unstored

    def ids(self) -> list[str]:
        """All of them."""
        return [*self._table.groups, *self.unstored]

    def expect(self, group_id: str, stored: "asyncio.Future[None]") -> None:
        """A commit begins: from now on there is such a group, if it does not fail."""
        self._coming[group_id] += 1
        self.recount(group_id)

        def ended(_: "asyncio.Future[None]") -> None:
            self._coming[group_id] -= 1
            if not self._coming[group_id]:
                del self._coming[group_id]
            self.recount(group_id)

        stored.add_done_callback(ended)

    def recount(self, group_id: str) -> None:
        """Something has changed of what makes an id count as that of a group."""
        here = group_id in self._active or group_id in self._coming
        if here and group_id not in self._table.groups:
            self.unstored.add(group_id)
        else:
            self.unstored.discard(group_id)
