"""The messages of the HTTP listener about active servers that share a Kafka cluster."""

from pydantic import ConfigDict, Field

from pidlease.http_api.lease_messages import Message


class ServerChange(Message):
    """A change of an active server."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"draining": True}]})

    draining: bool = Field(
        description="true: it hands its slots over and gets none; false: it gets slots again"
    )


class ServerSlots(Message):
    """An active server after a change."""

    node_id: int = Field(description="its id as a broker")
    server: str = Field(description="its name")
    draining: bool = Field(description="whether it gets no slots")
    slots: int = Field(description="how many of the 1,024 slots it owns now")


class Rebalanced(Message):
    """The outcome of a rebalance."""

    moved: int = Field(description="how many slots have another owner now")
