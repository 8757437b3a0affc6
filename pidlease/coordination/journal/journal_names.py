"""Bindings of names in a journal: a row for each name."""

import threading
from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from pidlease.coordination.journal.journal import Fields, Journal, JournalError, Row
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


class JournalNames(NameBindings):
    """Bindings in a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal: Final = journal
        self._lock = threading.Lock()

    @override
    def all(self) -> dict[str, Binding]:
        try:
            return {name: _binding(row) for name, row in self._journal.all(_KIND).items()}
        except JournalError as error:
            raise NamesError(f"names: {error}") from error

    @override
    def get_many(self, names: Sequence[str]) -> list[StoredBinding]:
        return [StoredBinding(self._bound(name)) for name in names]

    @override
    def change_many(
        self, changes: Sequence[BindingChange]
    ) -> list[BindingConflictError | NamesError | None]:
        with self._lock:
            outcomes, after = decide_changes(changes, self._bound)
            if after:
                self._put(after)
        return outcomes

    def _bound(self, name: str) -> Binding | None:
        try:
            row = self._journal.get(_KIND, name)
        except JournalError as error:
            raise NamesError(f"names: {error}") from error
        return None if row is None else _binding(row)

    def _put(self, bindings: dict[str, Binding | None]) -> None:
        try:
            self._journal.put(
                Row(_KIND, name, None if binding is None else binding._asdict())
                for name, binding in bindings.items()
            )
        except JournalError as error:
            raise NamesError(f"names are not stored: {error}") from error


def _binding(fields: Fields) -> Binding:
    return Binding(*(fields[name] for name in Binding._fields))
