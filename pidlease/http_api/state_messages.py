"""The messages by which an active server follows the producers' states of another one."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from pidlease.storage.state_updates import NAMES_MAX

STATES_PATH: Final = "/v1/servers/states"
STATE_OFFSETS_PATH: Final = "/v1/servers/states/offsets"

_Name = tuple[Annotated[str, Field(max_length=249)], Annotated[int, Field(ge=0, lt=2**31)]]
_Names = Annotated[list[_Name], Field(max_length=NAMES_MAX)]


class PullRequest(BaseModel):
    """A request for what has changed. Servers of later versions may add fields.

    Attributes:
        feed: and all others: the fields of `FeedRequest`.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    feed: str = Field(pattern="^[0-9a-f]{32}$")
    number: int = Field(ge=0)
    noted: int = Field(ge=-1)
    add: _Names = []
    drop: _Names = []
    ends: bool = False


class OffsetsRequest(BaseModel):
    """A question: up to which offset does a server know the producers of partitions?"""

    model_config = ConfigDict(extra="ignore", frozen=True)

    partitions: _Names


class OffsetsAnswer(BaseModel):
    """The offsets, in the order of the question; -1: the producers are not known."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    offsets: list[int]
