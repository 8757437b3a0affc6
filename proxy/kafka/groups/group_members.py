"""The members of a group: their protocols, the leader, the static members; as in ClassicGroup."""

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from proxy.kafka.groups.group_steps import Join, JoinedMember, Protocols, Waiter

NEVER: Final = math.inf


@dataclass(slots=True)
class Member:
    """A member of a group.

    Attributes:
        instance_id: of a static member (KIP-345); None: a dynamic one.
        join: the waiter of its JoinGroup request.
        sync: the waiter of its SyncGroup request.
        is_new: whether it joins for the first time, and has no id yet to send heartbeats with.
        deadline: the end of its session, in ms.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocols: Protocols
    session_ms: int
    rebalance_ms: int
    size_bytes: int
    assignment: bytes = b""
    join: Waiter | None = None
    sync: Waiter | None = None
    is_new: bool = False
    deadline: float = NEVER

    @classmethod
    def of(cls, member_id: str, request: Join) -> "Member":
        """Create a member from its JoinGroup request."""
        return cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.protocols,
            request.session_ms,
            request.rebalance_ms,
            request.size_bytes,
        )

    @property
    def waits(self) -> bool:
        """Whether it waits for a response, and so need not send heartbeats (ClassicGroupMember)."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def metadata(self, protocol: str) -> bytes:
        """Return its metadata for a protocol that all members support."""
        return dict(self.protocols)[protocol]


class Members:
    """The members of one group, in the order in which they joined.

    Attributes:
        static: instance id -> member id.
        pending: member ids given to clients that have to join again with them, with deadlines in
            ms.
        protocol_type: of the group; None: it never had a member.
        leader: a member id; None: there are no members.
        joining: the number of members that wait for a JoinGroup response.
        size_bytes: about the memory that the members take.
    """

    def __init__(self, protocol_type: str | None) -> None:
        # Ordered: after removals at its front, a dict finds its first entry slowly, and each
        # leader that leaves makes the first member the leader.
        self.by_id: Final[OrderedDict[str, Member]] = OrderedDict()
        self.static: Final[dict[str, str]] = {}
        self.pending: Final[dict[str, float]] = {}
        self.protocol_type = protocol_type
        self.leader: str | None = None
        self.joining = 0
        self.size_bytes = 0
        self._supported: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member; the first leads."""
        if not self.by_id:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.by_id[member.member_id] = member
        self._supported.update(_names(member.protocols))
        self.size_bytes += member.size_bytes
        self.drop_pending(member.member_id)

    def remove(self, member_id: str) -> Member | None:
        """Remove and return a member; if it led, the next one leads."""
        self.drop_pending(member_id)
        member = self.by_id.pop(member_id, None)
        if member is None:
            return None
        self._count_out(member.protocols)
        self.size_bytes -= member.size_bytes + len(member.assignment)
        if member.join is not None:
            self.joining -= 1
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.by_id), None)
        return member

    def replace_static(self, old_id: str, new_id: str) -> tuple[Member, Member]:
        """Replace a restarted static member by one with a new id and no waiter; return both."""
        was_leader = self.leader == old_id
        old = self.by_id[old_id]
        self.remove(old_id)
        new = Member(
            new_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            old.protocols,
            old.session_ms,
            old.rebalance_ms,
            old.size_bytes,
        )
        self.add(new, self.protocol_type or "")
        self.assign(new, old.assignment)
        if was_leader:
            self.leader = new_id
        return old, new

    def update(self, member: Member, request: Join) -> None:
        """Update a member that joins again."""
        self._count_out(member.protocols)
        self._supported.update(_names(request.protocols))
        self.size_bytes += request.size_bytes - member.size_bytes
        member.protocols = request.protocols
        member.size_bytes = request.size_bytes
        member.session_ms, member.rebalance_ms = request.session_ms, request.rebalance_ms

    def assign(self, member: Member, assignment: bytes) -> None:
        """Set a member's assignment."""
        self.size_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def set_join(self, member: Member, waiter: Waiter | None) -> Waiter | None:
        """Set the waiter of a member's JoinGroup request; return the previous one."""
        before = member.join
        self.joining += (waiter is not None) - (before is not None)
        member.join = waiter
        return before

    def add_pending(self, member_id: str, deadline: float) -> None:
        """Note a member id that was given to a client."""
        self.pending[member_id] = deadline
        self.size_bytes += _pending_bytes(member_id)

    def drop_pending(self, member_id: str) -> None:
        """Forget a pending member id, if it is one."""
        if self.pending.pop(member_id, None) is not None:
            self.size_bytes -= _pending_bytes(member_id)

    @property
    def all_joined(self) -> bool:
        """Whether all members have joined."""
        return self.joining == len(self.by_id) and not self.pending

    @property
    def rebalance_ms(self) -> int:
        """How long a rebalance may take: the longest rebalance timeout of a member."""
        return max((member.rebalance_ms for member in self.by_id.values()), default=0)

    def supports(self, protocol_type: str, protocols: Protocols, *, empty: bool) -> bool:
        """Whether a member with these protocols can join.

        Parameters:
            empty: whether the group has no members, so that any type is possible.
        """
        if empty:
            return bool(protocol_type and protocols)
        return self.protocol_type == protocol_type and any(
            self._supported[name] == len(self.by_id) for name in _names(protocols)
        )

    def elect_joined(self) -> bool:
        """Choose a leader that has joined; return False if no member has."""
        if self.leader is None:
            return False
        if self.by_id[self.leader].join is not None:
            return True
        joined = next((each for each in self.by_id.values() if each.join is not None), None)
        if joined is None:
            return False
        self.leader = joined.member_id
        return True

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer, of those that all members support."""
        candidates = {name for name, count in self._supported.items() if count == len(self.by_id)}
        votes = Counter(
            next(name for name, _ in member.protocols if name in candidates)
            for member in self.by_id.values()
        )
        return votes.most_common(1)[0][0]

    def for_leader(self, protocol: str) -> tuple[JoinedMember, ...]:
        """Return the members' metadata, from which the leader makes the assignments."""
        return tuple(
            JoinedMember(each.member_id, each.instance_id, each.metadata(protocol))
            for each in self.by_id.values()
        )

    def _count_out(self, protocols: Protocols) -> None:
        for name in _names(protocols):
            self._supported[name] -= 1
            if not self._supported[name]:
                del self._supported[name]


def _names(protocols: Protocols) -> Iterable[str]:
    return [name for name, _ in protocols]


def _pending_bytes(member_id: str) -> int:
    return 512 + len(member_id)
