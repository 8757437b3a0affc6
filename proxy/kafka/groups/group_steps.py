"""The requests that a consumer group handles, and the effects that it returns."""

from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

#: Identifies a waiting request; the group only returns it, in an `Answer`.
Waiter = object

#: The member's assignment protocols in the order of preference, with its metadata for each.
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The limits of consumer groups.

    Attributes:
        session_min_ms, session_max_ms: Kafka's group.{min,max}.session.timeout.ms.
        initial_rebalance_ms: Kafka's group.initial.rebalance.delay.ms.
        members_max: Kafka's group.max.size.
        groups_max: groups with and without members.
        memory_bytes_max: memory for the members of all groups.
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
        requires_member_id: whether a new member first gets its id (from version 4 on, KIP-394).
        skips_assignment: whether the client supports SkipAssignment (from version 9 on, KIP-814).
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
        """About the memory that the joining member takes."""
        own = len(self.client_id) + len(self.client_host) + len(self.instance_id or "")
        protocols = sum(len(name) + len(metadata) + 128 for name, metadata in self.protocols)
        # Its member id begins with its client id or instance id, and it is in several tables.
        return 1024 + 2 * own + len(self.protocol_type) + protocols


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request; the leader's has `assignments`: member id -> assignment."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


class MemberIdentity(NamedTuple):
    """A member in a LeaveGroup request; a static one may have an empty member id."""

    member_id: str
    instance_id: str | None


class JoinedMember(NamedTuple):
    """A member in the leader's JoinGroup response."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The response to a `Join`."""

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
    """The response to a `Sync`."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class Answer(NamedTuple):
    """Effect: send a waiter its response."""

    waiter: Waiter
    answer: JoinAnswer | SyncAnswer


class Store(NamedTuple):
    """Effect: store the group's generation, then call `Group.stored` with the outcome."""

    generation: int


Effect = Answer | Store
