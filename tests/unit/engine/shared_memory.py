"""What several active servers share, in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pidlease.coordination.fence_log import Fence, FenceLog, FenceLogError, FencePosition
from pidlease.coordination.members import (
    MapConflictError,
    Member,
    Members,
    MembersError,
    MembershipLostError,
    SharedView,
)
from pidlease.core.slots import EMPTY_MAP, SlotMap


@dataclass
class Coordinator:
    """What all members read and write; the clock is the tests'."""

    members: dict[int, Member] = field(default_factory=dict)
    slots: SlotMap = EMPTY_MAP
    stranger: str = ""
    now: float = 1000.0
    writes: list[int] = field(default_factory=list)


class Link(Members):
    """One server's connection."""

    def __init__(self, shared: Coordinator) -> None:
        self.shared = shared
        self.own: Member | None = None
        self.away = False
        #: Why this server can be no member any more; empty: it can.
        self.lost = ""
        #: Called after the members and the map were read.
        self.on_read: Callable[[], None] = lambda: None
        #: Called before this server joins.
        self.on_join: Callable[[], None] = lambda: None

    def _check(self) -> None:
        if self.lost:
            raise MembershipLostError(self.lost)
        if self.away:
            raise MembersError("away")

    def node_id(self) -> int:
        return 1

    def join(self, member: Member) -> None:
        self.on_join()
        self._check()
        before = self.shared.members.get(member.node_id)
        joined = before.joined if before else len(self.shared.members) + 1
        self.own = member._replace(joined=joined)
        self.shared.members[member.node_id] = self.own

    def leave(self) -> None:
        assert self.own is not None
        self.shared.members.pop(self.own.node_id, None)

    def read(self) -> SharedView:
        self._check()
        view = SharedView(dict(self.shared.members), self.shared.slots, self.shared.stranger)
        self.on_read()
        return view

    def slots(self) -> SlotMap:
        self._check()
        return self.shared.slots

    def write(self, slots: SlotMap) -> SlotMap:
        self._check()
        if slots.version != self.shared.slots.version:
            raise MapConflictError
        self.shared.slots = slots._replace(version=slots.version + 1)
        assert self.own is not None
        self.shared.writes.append(self.own.node_id)
        return self.shared.slots

    def watch(self, changed: Callable[[], None]) -> None:
        pass


class MemoryFences(FenceLog):
    """A fence log; a position is the number of entries that were read."""

    def __init__(self) -> None:
        self.entries: list[Fence] = []
        #: Entries before this one were removed.
        self.first = 0
        self.away = False
        self.reads = 0

    def end(self) -> FencePosition:
        return FencePosition(0, len(self.entries))

    def read(self, position: FencePosition) -> tuple[Sequence[Fence], FencePosition | None]:
        self.reads += 1
        if self.away:
            raise FenceLogError("away")
        if position.entry < self.first:
            return (), None
        return self.entries[position.entry :], self.end()
