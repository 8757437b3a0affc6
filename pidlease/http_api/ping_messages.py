"""The message that active servers exchange to see which of them answer."""

from typing import Final

from pydantic import BaseModel, ConfigDict

PING_PATH: Final = "/v1/servers/ping"


class PingAnswer(BaseModel):
    """The answer to a ping. Servers of later versions may add fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int
    silent: list[int]
    returning: list[int]
    abstains: bool
    topics: int
