"""Bindings of names in a journal: a row for each name."""

from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from pidlease.coordination.fence_log import Fence
from pidlease.coordination.journal.journal import (
    Fields,
    Journal,
    JournalConflictError,
    JournalError,
    Row,
)
from pidlease.coordination.journal.journal_fences import JournalFences
from pidlease.coordination.name_bindings import (
    Binding,
    BindingChange,
    BindingConflictError,
    NameBindings,
    NamesError,
    StoredBinding,
    decide_changes,
)

_KIND: Final = "name"
#: How often a change is tried while other servers change the same names.
_ATTEMPTS_MAX: Final = 20


class JournalNames(NameBindings):
    """Bindings in a journal.

    Parameters:
        fences: gets each new binding as well, for other active servers; None: there are none.
    """

    def __init__(self, journal: Journal, fences: JournalFences | None = None) -> None:
        self._journal: Final = journal
        self._fences: Final = fences

    @override
    def all(self) -> dict[str, Binding]:
        self._refresh()
        return {name: Binding.of(row) for name, row in self._journal.all(_KIND).items()}

    @override
    def get_many(self, names: Sequence[str]) -> list[StoredBinding]:
        self._refresh()
        return [StoredBinding(_bound(self._journal.get(_KIND, name))) for name in names]

    @override
    def change_many(
        self, changes: Sequence[BindingChange]
    ) -> list[BindingConflictError | NamesError | None]:
        for _ in range(_ATTEMPTS_MAX):
            # Once for each name: another thread may read on meanwhile.
            before = {each.name: self._journal.get(_KIND, each.name) for each in changes}
            outcomes, after = decide_changes(changes, lambda name: _bound(before[name]))  # noqa: B023 - called at once
            try:
                self._put(after, [Row(_KIND, name, before[name]) for name in after])
            except JournalConflictError:
                self._refresh()
                continue
            return outcomes
        raise NamesError("names: other servers were always faster")

    def _refresh(self) -> None:
        try:
            self._journal.refresh()
        except JournalError as error:
            raise NamesError(f"names: {error}") from error

    def _put(self, after: dict[str, Binding | None], expected: Sequence[Row]) -> None:
        rows = [name_row(name, binding) for name, binding in after.items()]
        granted = [Fence(name, binding) for name, binding in after.items() if binding is not None]
        if self._fences is not None:
            rows += [self._fences.row(each) for each in granted]
        try:
            self._journal.put(rows, expected)
            if self._fences is not None:
                self._fences.note_appended(len(granted))
        except JournalError as error:
            raise NamesError(f"names are not stored: {error}") from error


def name_row(name: str, binding: Binding | None) -> Row:
    """Return the row of a name."""
    return Row(_KIND, name, None if binding is None else binding.fields())


def _bound(fields: Fields | None) -> Binding | None:
    return None if fields is None else Binding.of(fields)
