"""Request and response bodies of the HTTP API for leases and producers, of servers and clients."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from pidlease.core.lease import NO_PID

#: The most leases in one request.
LEASES_MAX: Final = 1000
_INT32_MAX: Final = 2**31 - 1
#: The largest number that survives JSON.
_JSON_MAX: Final = 2**53 - 1

Policy = Literal["strict", "monotonic"]
Topic = Annotated[str, Field(min_length=1, max_length=249, description="the topic's name")]
Partition = Annotated[int, Field(ge=0, le=_INT32_MAX, description="the partition's number")]


class Message(BaseModel):
    """Strict types, and no other fields: an unknown field is refused by name."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, frozen=True)


class LeaseRequest(Message):
    """A request for a PID for a partition; with a PID or a name: where that continues."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"topic": "orders", "partition": 0, "name": "import-7"}]}
    )

    topic: Topic
    partition: Partition
    pid: Annotated[
        int, Field(ge=NO_PID, le=_JSON_MAX, description="-1: a new one; or a leased one")
    ] = NO_PID
    generation: Annotated[
        int,
        Field(ge=-1, description="with name, pid and renew: renew only this generation"),
    ] = -1
    name: Annotated[
        str | None,
        Field(min_length=1, max_length=256, description="the producer's name"),
    ] = None
    assign_name: Annotated[bool, Field(description="give it a name")] = False
    policy: Annotated[Policy, Field(description="the policy of a new PID")] = "strict"
    renew: Annotated[
        bool, Field(description="a new PID for the name: the lease of its PID is about to end")
    ] = False


class LeaseAnswer(Message):
    """A lease on one partition.

    Attributes:
        error: why the lease was refused, with all numbers -1; empty: it was granted.
        code: the code of the error; empty: the lease was granted.
        status: the HTTP status of the same.
    """

    topic: str
    partition: int
    error: str = ""
    code: str = ""
    status: int = 200
    pid: int = NO_PID
    generation: Annotated[int, Field(description="the generation to use")] = -1
    next_sequence: Annotated[
        int, Field(description="the sequence number of the first record to send")
    ] = -1
    sequence_number: Annotated[
        int, Field(deprecated=True, description="as `next_sequence`; gone in the next version")
    ] = -1
    expire_ms: Annotated[int, Field(description="when the lease ends, in ms since 1970")] = -1
    resume_at: Annotated[int, Field(description="where the name's own numbering continues")] = -1
    name: Annotated[str, Field(description="the name that the PID is bound to")] = ""
    cluster_id: Annotated[
        str, Field(description="the cluster that the lease is for, by its id in Kafka's Metadata")
    ] = ""


class LeaseBatchRequest(Message):
    """Several leases at once; each is granted or refused independently."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"leases": [{"topic": "orders", "partition": 0}]}]}
    )

    leases: list[LeaseRequest] = Field(min_length=1, max_length=LEASES_MAX)


class LeaseBatchAnswer(Message):
    """A lease or an error for each requested lease, in the order of the request."""

    leases: list[LeaseAnswer]


class ProducerRow(Message):
    """The state of a producer on a partition."""

    pid: Annotated[int, Field(description="-1: it has its own producer id, the name")]
    name: Annotated[str, Field(description="the name that the PID is bound to, or the producer id")]
    policy: str
    topic: str
    partition: int
    generation: int
    last_sequence: int = Field(description="the sequence number of the last record in the log")
    sequence_number: Annotated[
        int, Field(deprecated=True, description="as `last_sequence`; gone in the next version")
    ]
    last_offset: int = Field(description="the first offset of the last batch")
    last_write_ms: int = Field(description="when the last batch came, in ms since 1970")
    expire_ms: int = Field(description="when its lease ends, in ms since 1970; -1: not known")


class StoppedPartition(Message):
    """A partition with acknowledged records that cannot be read."""

    topic: str
    partition: int
    reason: str


class ProducersAnswer(Message):
    """Producers, in the order of topics, partitions and PIDs."""

    producers: list[ProducerRow]
    more: bool = Field(description="whether there are more than the limit")
    stopped: list[StoppedPartition] = Field(
        default_factory=list,
        description="partitions left out because the state of their producers is incomplete",
    )
