"""The ids that count as groups: of those stored, with members, or about to be stored."""

import asyncio
from collections import Counter
from collections.abc import Container

from pidlease.storage.offsets.offset_table import OffsetTable


class KnownGroups:
    """Counts groups without a pass over all of them.

    Parameters:
        active: the ids of groups with members; call `recount` after a change of it.

    Attributes:
        unstored: ids that count as groups and are not stored.
    """

    def __init__(self, table: OffsetTable, active: Container[str]) -> None:
        self.unstored: set[str] = set()
        self._table = table
        self._active = active
        #: The number of pending commits, by group id.
        self._pending: Counter[str] = Counter()
        table.on_group = self.recount

    def __len__(self) -> int:
        return len(self._table.groups) + len(self.unstored)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._table.groups or group_id in self.unstored

    def ids(self) -> list[str]:
        """Return the ids of all groups."""
        return [*self._table.groups, *self.unstored]

    def expect(self, group_id: str, stored: "asyncio.Future[None]") -> None:
        """Count the group as existing while its commit is pending."""
        self._pending[group_id] += 1
        self.recount(group_id)

        def ended(_: "asyncio.Future[None]") -> None:
            self._pending[group_id] -= 1
            if not self._pending[group_id]:
                del self._pending[group_id]
            self.recount(group_id)

        stored.add_done_callback(ended)

    def recount(self, group_id: str) -> None:
        """Decide again whether an id counts as an unstored group."""
        here = group_id in self._active or group_id in self._pending
        if here and group_id not in self._table.groups:
            self.unstored.add(group_id)
        else:
            self.unstored.discard(group_id)
