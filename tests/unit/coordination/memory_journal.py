"""A journal in memory, for tests: several servers read and put the same rows."""

import json
from collections.abc import Callable, Iterable

from pidlease.coordination.journal.journal import (
    NEXT_NUMBER,
    Fields,
    Journal,
    JournalConflictError,
    JournalError,
    Row,
)


class MemoryJournal(Journal):
    """What one server sees of the rows.

    Attributes:
        fails: the next put fails: "before" or "after" it was done; empty: it does not.
        replaced: whether another server puts the rows now.
        meanwhile: called before the next put, as what another server does just then.
    """

    def __init__(self, other: "MemoryJournal | None" = None, session: str = "s") -> None:
        self.session = session
        self.ended = ""
        #: Of all servers.
        self.rows: dict[tuple[str, str], Fields] = {} if other is None else other.rows
        #: What this server has read.
        self.read: dict[tuple[str, str], Fields] = {}
        self.puts = 0
        self.fails = ""
        self.replaced = False
        self.meanwhile: Callable[[], object] | None = None
        self._watchers: list[tuple[str, Callable[[], None]]] = []

    def refresh(self) -> None:
        self.check()
        before, self.read = self.read, dict(self.rows)
        for kind, changed in self._watchers:
            if [each for each in before.items() if each[0][0] == kind] != [
                each for each in self.read.items() if each[0][0] == kind
            ]:
                changed()

    def get(self, kind: str, id_: str) -> Fields | None:
        return self.read.get((kind, id_))

    def all(self, kind: str) -> dict[str, Fields]:
        return {id_: fields for (each, id_), fields in self.read.items() if each == kind}

    def above(self, kind: str, number: int) -> list[tuple[int, Fields]]:
        return [(int(id_), each) for id_, each in self.all(kind).items() if int(id_) > number]

    def put(self, rows: Iterable[Row], expected: Iterable[Row] = ()) -> None:
        self.check()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise JournalError("no response")
        for kind, id_, fields in expected:
            if self.rows.get((kind, id_)) != fields:
                raise JournalConflictError(f"{kind}/{id_}")
        self.puts += 1
        for kind, id_, fields in rows:
            number = (
                max((int(each) for one, each in self.rows if one == kind), default=0) + 1
                if id_ == NEXT_NUMBER
                else id_
            )
            if fields is None:
                del self.rows[kind, str(number)]
            else:
                self.rows[kind, str(number)] = json.loads(json.dumps(fields))
        if fails:
            raise JournalError("no response")
        self.read = dict(self.rows)

    def watch(self, kind: str, changed: Callable[[], None]) -> None:
        self._watchers.append((kind, changed))

    def check(self) -> None:
        if self.replaced:
            raise JournalError("another server serves this cluster")
