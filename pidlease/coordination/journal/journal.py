"""The journal's interface.

A row is a JSON object with a kind and an id. One server writes the journal at a time, so a row has
no version: what this server has read or put is what is there.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

Fields = dict[str, Any]


class JournalError(Exception):
    """Rows cannot be read or put now; those of a put may be there or not. Try again."""


class Row(NamedTuple):
    """A row, or its removal.

    Attributes:
        kind: what it is about.
        id: distinguishes it from others of its kind.
        fields: None: remove the row.
    """

    kind: str
    id: str
    fields: Fields | None


class Journal(Protocol):
    """Rows by kind and id. All methods block and run in threads."""

    def get(self, kind: str, id_: str) -> Fields | None:
        """Return a row; None: there is none.

        Raises:
            JournalError: it is unknown now.
        """

    def all(self, kind: str) -> dict[str, Fields]:
        """Return all rows of a kind, by id.

        Raises:
            JournalError: they are unknown now.
        """

    def put(self, rows: Iterable[Row]) -> None:
        """Replace or remove rows: all of them or none, durably before this returns.

        Raises:
            JournalError: they may have been put or not.
        """

    def check(self) -> None:
        """Check that this server has been the one that writes, up to this call.

        Raises:
            JournalError: another one is, or this is unknown now.
        """
