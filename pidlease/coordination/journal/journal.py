"""The journal's interface.

A row is a JSON object with a kind and an id. One server writes the journal at a time. It checks
what a put expects against all rows, so a row needs no version: its content is its version.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol

Fields = dict[str, Any]

#: As the id of a row that is put: the number after the highest one of its kind.
NEXT_NUMBER: Final = "+"
#: The field of a row that is removed when the session of its server has ended.
SESSION: Final = "session"
#: The kind of the row about the server that writes the journal; its id is empty.
OWNER: Final = "owner"
#: The most rows, and about so many bytes, of one put of many rows.
_PUT_ROWS: Final = 500
_PUT_BYTES: Final = 500_000
#: Of a row, besides its id and its fields.
_ROW_BYTES: Final = 50


class JournalError(Exception):
    """Rows cannot be read or put now; those of a put may be there or not. Try again."""


class JournalConflictError(Exception):
    """A row is not as the put expected it. Read it again.

    Nothing was put. Or an earlier attempt of the same put has changed the row, and its outcome was
    unknown.
    """


class NotRegistrarError(Exception):
    """Another one of several active servers writes the journal; this one has put nothing."""


class Row(NamedTuple):
    """A row, or its absence.

    Attributes:
        kind: what it is about.
        id: distinguishes it from others of its kind.
        fields: None: there is no row; if it is put: remove it.
    """

    kind: str
    id: str
    fields: Fields | None


def portions(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Divide rows into puts of a bounded size: the rows of a put are one batch in Kafka."""
    some: list[Row] = []
    size = 0
    for row in rows:
        more = _ROW_BYTES + len(json.dumps(row.fields)) + len(row.id.encode())
        if some and (size + more > _PUT_BYTES or len(some) >= _PUT_ROWS):
            yield some
            some, size = [], 0
        some.append(row)
        size += more
    if some:
        yield some


class Journal(Protocol):
    """Rows by kind and id. The methods that raise errors block, and run in threads.

    Attributes:
        session: this process, as of the field `SESSION`.
        ended: why this process can read and put no rows any more; empty: it can.
    """

    session: str
    ended: str

    def refresh(self) -> None:
        """Read what was put before this call; `get`, `all` and `above` return what was read last.

        Raises:
            JournalError: it cannot be read now, or another server has replaced this one.
        """

    def get(self, kind: str, id_: str) -> Fields | None:
        """Return a row; None: there is none."""

    def all(self, kind: str) -> dict[str, Fields]:
        """Return all rows of a kind, by id, in the order in which they were put first."""

    def above(self, kind: str, number: int) -> list[tuple[int, Fields]]:
        """Return the rows of a kind with ids that are numbers above one, in their order."""

    def put(self, rows: Iterable[Row], expected: Iterable[Row] = ()) -> None:
        """Replace or remove rows: all of them or none, durably before this returns.

        Parameters:
            expected: what must be there before.

        Raises:
            JournalConflictError: something else is there.
            JournalError: they may have been put or not.
        """

    def watch(self, kind: str, changed: Callable[[], None]) -> None:
        """Call a function, in any thread, when a row of a kind has changed; it must not wait."""
