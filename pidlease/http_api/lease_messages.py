"""The messages of the HTTP door, for the door and for clients."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from pidlease.core.lease import NO_PID

#: Leases that one request may ask for.
LEASES_MAX: Final = 1000
_INT32_MAX: Final = 2**31 - 1
#: Numbers survive JSON up to here.
_JSON_MAX: Final = 2**53 - 1

Policy = Literal["strict", "monotonic"]
Topic = Annotated[str, Field(min_length=1, max_length=249, description="the topic's name")]
Partition = Annotated[int, Field(ge=0, le=_INT32_MAX, description="the partition's number")]


class Message(BaseModel):
    """Field by field as it is said; anything else is refused by name."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LeaseRequest(Message):
    """Asks for a PID to write to a partition with; with a PID or a name, where that goes on."""

    topic: Topic
    partition: Partition
    pid: Annotated[
        int, Field(ge=NO_PID, le=_JSON_MAX, description="-1: a new one; or one that was leased")
    ] = NO_PID
    generation: Annotated[
        int,
        Field(ge=-1, description="with name, pid and renew: renew only what was granted so"),
    ] = -1
    name: Annotated[
        str | None,
        Field(min_length=1, max_length=256, description="the producer's: what it is known by"),
    ] = None
    assign_name: Annotated[bool, Field(description="give it a name")] = False
    policy: Annotated[Policy, Field(description="what a new PID is judged by")] = "strict"
    renew: Annotated[
        bool, Field(description="a new PID for the name: the lease of its last one is about to end")
    ] = False


class LeaseAnswer(Message):
    """A lease on one partition.

    Attributes:
        error: what went wrong; empty: nothing. The rest is then -1.
        status: the HTTP status that says the same.
    """

    topic: str
    partition: int
    error: str = ""
    status: int = 200
    pid: int = NO_PID
    generation: Annotated[int, Field(description="the one to use")] = -1
    sequence_number: Annotated[int, Field(description="of the first record to be sent")] = -1
    expire_ms: Annotated[int, Field(description="when the lease ends, in ms since 1970")] = -1
    resume_at: Annotated[int, Field(description="where the name's own numbering goes on")] = -1
    name: Annotated[str, Field(description="that the PID is bound to")] = ""


class LeaseBatchRequest(Message):
    """Several leases at once; each is granted, or refused, for itself."""

    leases: list[LeaseRequest] = Field(min_length=1, max_length=LEASES_MAX)


class LeaseBatchAnswer(Message):
    """An answer for each lease, in the order of the request."""

    leases: list[LeaseAnswer]


class ErrorAnswer(Message):
    """Why a request was refused."""

    error: str = Field(description="what was wrong, and what to do")
    field: Annotated[str | None, Field(description="which part of the request it is about")] = None


class ProducerRow(Message):
    """What is known of a producer on a partition."""

    pid: Annotated[int, Field(description="-1: it has a producer id of its own, the name")]
    name: Annotated[str, Field(description="that the PID is bound to, or the producer id")]
    policy: str
    topic: str
    partition: int
    generation: int
    sequence_number: int = Field(description="of the last record that is in the log")
    last_offset: int = Field(description="where the last batch begins")
    last_write_ms: int = Field(description="when it came, in ms since 1970")
    expire_ms: int = Field(description="when its lease ends, in ms since 1970; -1: not known")


class StoppedPartition(Message):
    """A partition with acknowledged records that cannot be read."""

    topic: str
    partition: int
    reason: str


class ProducersAnswer(Message):
    """Producers, in the order of topics, partitions and PIDs."""

    producers: list[ProducerRow]
    more: bool = Field(description="whether there are more than were asked for")
    stopped: list[StoppedPartition] = Field(
        default_factory=list,
        description="partitions that are left out: what is known of their producers is not all",
    )
