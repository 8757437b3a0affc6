"""The messages of the HTTP listener that show a server to its operators."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from pidlease.http_api.lease_messages import Message

#: The most rows in one response.
ROWS_MAX: Final = 500
ROWS_DEFAULT: Final = 100

State = Literal["serving", "stopped", "taken_over", "awaited"]


class HistorySample(Message):
    """What happened between two moments; counts are of that time only."""

    at_ms: int = Field(description="the later moment, in ms since 1970")
    records: int = Field(description="records acknowledged, without duplicates")
    batches: int = Field(description="batches acknowledged, without duplicates")
    bytes: int = Field(description="bytes of these batches")
    duplicates: int = Field(description="batches that were stored already")
    gaps: int = Field(description="batches refused because an earlier one is missing")
    fenced: int = Field(description="batches of an older generation, or of a former PID")
    failed: int = Field(description="batches that the log did not, or perhaps not, store")
    refused: int = Field(description="batches with any other error")
    leased: int = Field(description="leases of fresh PIDs")
    ended: int = Field(description="leases that have ended")
    leases: int = Field(description="leases at that moment")
    lag_seconds: float = Field(description="the longest lag of the event loop in between")


class HistoryAnswer(Message):
    """Samples of the last hour, oldest first; they are kept in memory only."""

    sample_seconds: float = Field(description="the time between two samples")
    samples: list[HistorySample]
    more: bool = Field(description="whether there are more after the last one")


class OutcomeRow(Message):
    """Batches of one policy with one outcome, since the start."""

    policy: str = Field(description="none: the batches have no PID, or one without a policy")
    outcome: str
    batches: int


class TopicOutcomes(Message):
    """The counts of a topic since the start; topics beyond a limit share one row."""

    topic: str
    records: int
    bytes: int
    duplicates: int
    gaps: int
    fenced: int
    failed: int
    refused: int


class BrokerRow(Message):
    """A broker of the Kafka cluster."""

    broker: int
    address: str
    connected: bool = Field(description="whether a connection for short requests is open")


class OutcomesAnswer(Message):
    """What became of all batches since the start, and the server now."""

    at_ms: int = Field(description="now, in ms since 1970")
    version: str
    ready: bool
    topics: int
    partitions: int
    leases: int
    records: int = Field(description="records acknowledged, without duplicates")
    batches: int = Field(description="batches acknowledged, without duplicates")
    bytes: int = Field(description="bytes of these batches")
    waited: int = Field(description="repeated batches that waited for their original")
    differing: int = Field(description="duplicates by their sequence numbers, with other bytes")
    outcomes: list[OutcomeRow]
    by_topic: list[TopicOutcomes]
    brokers: list[BrokerRow] = Field(description="of the Kafka cluster; empty: there is none")


class PartitionState(Message):
    """A partition as this server knows it; Kafka is not asked."""

    topic: str
    partition: int
    state: State
    reason: str = Field(description="why it is not serving; empty: it is")
    owner: str = Field(description="the server that writes to it: this one, or another")
    writer: str = Field(
        description="PID and epoch of the writer at Kafka; empty: the log needs none, or none now"
    )
    log_start: int | None = Field(description="the first offset in the log; null: unknown")
    log_end: int | None = Field(description="the offset after the last record; null: unknown")
    size_bytes: int | None = Field(description="of its records on disk; null: unknown, or at Kafka")
    producers: int = Field(description="producers with state")
    in_flight: int = Field(description="batches in flight")


class PartitionStatesAnswer(Message):
    """Partitions, in the order of topics and numbers."""

    partitions: list[PartitionState]
    next: str | None = Field(description="`after` of the next request; null: there are no more")


class BatchRow(Message):
    """A stored batch of a producer."""

    first_sequence: int
    last_sequence: int
    offset: int = Field(description="of its first record")
    crc: str | None = Field(description="CRC-32C in hex; null: it is a part of a joined batch")


class ProducerPartition(Message):
    """The state of a producer on one partition."""

    topic: str
    partition: int
    generation: int
    last_sequence: int
    last_offset: int = Field(description="the first offset of the last batch")
    last_write_ms: int = Field(description="when the last batch came, in ms since 1970")
    in_flight: bool
    batches: list[BatchRow] = Field(description="the last five, oldest first")


class ProducerStateAnswer(Message):
    """A producer: its lease, its fence, and its state on its partitions."""

    pid: int = Field(description="-1: it has its own producer id, the name")
    name: str = Field(description="the name that the PID is bound to, or the producer id")
    policy: str
    granted_ms: int | None = Field(
        description="when it was leased, in ms since 1970; null: before this start, or elsewhere"
    )
    ends_ms: int = Field(description="when the lease ends at the earliest, in ms since 1970")
    fence: int | None = Field(description="lower generations are fenced; null: there is no fence")
    replaced: bool = Field(description="whether the name has another PID now")
    former: int | None = Field(description="the PID that the name had before; null: none")
    partitions: list[ProducerPartition] = Field(description="in the order of topics and numbers")
    next: str | None = Field(description="`after` of the next request; null: there are no more")


class EventRow(Message):
    """Something that happened to a producer."""

    number: int = Field(description="the events of a server are counted")
    at_ms: int = Field(description="when, in ms since 1970")
    kind: str = Field(description="the outcome of a batch; or leased, granted, released, ended")
    pid: int = Field(description="0 or below: none; the producer may have its own id, the name")
    name: str
    idempotency_key: str = Field(
        default="",
        description="of the request, or its SHA-256 if it has 256 bytes; empty: it has none",
    )
    topic: str = Field(description="empty: it concerns no partition")
    partition: int | None
    generation: int | None
    first_sequence: int | None
    last_sequence: int | None
    expected: int | None = Field(description="the sequence number that would be admitted")
    known_generation: int | None = Field(description="the stored generation")
    former: int | None = Field(description="the PID that the name had before")
    reason: str


class EventsAnswer(Message):
    """Events of a producer, the newest first, of those that the server still keeps."""

    events: list[EventRow]
    next: int | None = Field(description="`before` of the next request; null: there are no more")


class RefusalGroup(Message):
    """Refusals of one kind, among those kept."""

    kind: str
    count: int
    first_ms: int = Field(description="the oldest one kept, in ms since 1970")
    last_ms: int = Field(description="the newest one, in ms since 1970")
    action: str = Field(description="what to do")
    runbook: str = Field(description="the address of the page that says more")


class RefusalsAnswer(Message):
    """The last refused batches and leases, the newest first, and all kept ones by their kind."""

    groups: list[RefusalGroup]
    refusals: list[EventRow]
    next: int | None = Field(description="`before` of the next request; null: there are no more")


class LeaseState(Message):
    """A lease of the lease table."""

    pid: int = Field(description="-1: the producer has its own producer id, the name")
    name: str = Field(description="the name that the PID is bound to, or the producer id")
    policy: str
    granted_ms: int | None = Field(
        description="when it was leased, in ms since 1970; null: before this start, or elsewhere"
    )
    ends_ms: int = Field(description="when it ends at the earliest, in ms since 1970")
    partitions: int = Field(description="partitions that the producer writes to")


class LeasesAnswer(Message):
    """The lease table, and its leases in the order of their ends, oldest first."""

    used: int
    capacity: int
    lease_seconds: float
    granted: dict[str, int] = Field(description="since the start, by policy")
    refused: dict[str, int] = Field(description="since the start, by reason")
    ended: int = Field(description="since the start")
    names: int = Field(description="names that are bound to a leased PID")
    block_left: int = Field(description="PIDs that can be leased without another block")
    block_seconds: float = Field(description="how long the last block took to come")
    block_failures: int = Field(description="blocks that could not be taken, since the start")
    block_error: str = Field(description="why the next block is missing; empty: it is not")
    leases: list[LeaseState]
    next: int | None = Field(
        description="`after` of the next request; null: there are no more. A search may return few"
        " leases, or none, and go on"
    )


class OffsetAnswer(Message):
    """The first record with a timestamp or a later one."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"offset": 17, "timestamp_ms": 1760000000000}]}
    )

    offset: int | None = Field(description="null: there is no such record")
    timestamp_ms: Annotated[int | None, Field(description="of that record, in ms since 1970")]


class SharingServer(Message):
    """One of the active servers that share a Kafka cluster."""

    node_id: int = Field(description="its id as a broker")
    server: str = Field(description="its host and process")
    kafka: str = Field(
        description="HOST:PORT of its Kafka listener, as clients connect to it; NAME://HOST:PORT,..."
        " of several"
    )
    http: str = Field(description="the address of its HTTP listener")
    slots: int = Field(description="how many slots it owns")
    partitions: int = Field(description="how many of the known partitions are in these slots")
    draining: bool = Field(description="it is about to leave, and hands its slots over")
    decides: bool = Field(description="it divides the slots: the oldest one that answers")
    silent: bool = Field(description="it does not answer pings, so the others own its slots")
    returning: bool = Field(description="it was silent, and gets slots again after 30 s of answers")
    responds: bool = Field(description="it sent this response")
    registrar: bool = Field(
        default=False, description="it writes the coordinator's rows, where these are in Kafka"
    )
    followed: int = Field(
        default=0,
        description="how many of its partitions the responding server gets if it ends",
    )
    follower_lag_seconds: float | None = Field(
        default=None,
        description="how old the responding server's states of these are; null: it has none",
    )


class ServersAnswer(Message):
    """The active servers that share a Kafka cluster, and the slots that each owns.

    A partition belongs to the slot (CRC-32 of the topic's name + the partition's number) modulo the
    number of slots.
    """

    shared: bool = Field(description="false: this server runs without --shared; all else is empty")
    partitions_without_owner: int
    servers: list[SharingServer]
    slot_owners: list[int] = Field(description="the node id of each slot's owner; 0: none")
