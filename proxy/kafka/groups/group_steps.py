"""The events that a consumer group handles, and the effects that it returns."""

from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

#: Stands for a request that waits for its answer; the group only hands it back.
Waiter = object

#: Names of assignment protocols with the member's metadata for each, by preference.
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What is allowed to groups; times in ms, sizes in bytes.

    Attributes:
        session_min_ms, session_max_ms: Kafka's group.{min,max}.session.timeout.ms.
        initial_rebalance_ms: Kafka's group.initial.rebalance.delay.ms.
        members_max: Kafka's group.max.size.
        groups_max: groups that are known, with members or without.
        memory_bytes_max: what the members of all groups may hold.
        offsets_retention_ms: Kafka's offsets.retention.minutes.
    """

    session_min_ms: int = 6_000
    session_max_ms: int = 1_800_000
    initial_rebalance_ms: int = 3_000
    members_max: int = 10_000
    groups_max: int = 100_000
    memory_bytes_max: int = 64 << 20
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request.

    Attributes:
        requires_member_id: whether a new member first gets its id (version 4 on, KIP-394).
        skips_assignment: whether the client understands SkipAssignment (version 9 on, KIP-814).
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Protocols
    session_ms: int
    rebalance_ms: int
    requires_member_id: bool = True
    skips_assignment: bool = True

    @property
    def size_bytes(self) -> int:
        """About what a member takes that joins by this."""
        own = len(self.client_id) + len(self.client_host) + len(self.instance_id or "")
        protocols = sum(len(name) + len(metadata) + 128 for name, metadata in self.protocols)
        # Its id begins with the client's, and there are a few tables that it is in.
        return 1024 + 2 * own + len(self.protocol_type) + protocols


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request; `assignments` is the leader's: member id -> assignment."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


class Identity(NamedTuple):
    """A member that leaves by LeaveGroup; without a member id, a static member."""

    member_id: str
    instance_id: str | None


class JoinedMember(NamedTuple):
    """What the leader gets to know of a member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The answer to a `Join`."""

    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The answer to a `Sync`."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class Answer(NamedTuple):
    """A response for a waiter."""

    waiter: Waiter
    answer: JoinAnswer | SyncAnswer


class Store(NamedTuple):
    """The group's generation is to be stored, and `Group.stored` called with the outcome."""

    generation: int


Effect = Answer | Store
