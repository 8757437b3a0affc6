"""The request of an active server to the one that writes the journal: put rows."""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from pidlease.coordination.journal.journal import Row

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
    rows: list[Row] = []
    expected: list[Row] = []
