"""The request of an active server to the one that writes the journal: put rows."""

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from pidlease.coordination.journal.journal import Fields, Row

#: The path of the request on the HTTP port.
PUT_PATH: Final = "/v1/servers/rows"


class PutRequest(BaseModel):
    """A put, or without rows a sign of life.

    Attributes:
        run: the process that is asked. It is a number that only readers of the journal know.
        session: of the server that asks.
        rows: what to put.
        expected: what must be there before.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str = Field(pattern="^[0-9a-f]{32}$")
    session: str = Field(max_length=64)
    rows: list[tuple[str, str, Fields | None]] = []
    expected: list[tuple[str, str, Fields | None]] = []

    def rows_to_put(self) -> Sequence[Row]:
        """Return `rows`."""
        return [Row(*each) for each in self.rows]

    def rows_expected(self) -> Sequence[Row]:
        """Return `expected`."""
        return [Row(*each) for each in self.expected]
