"""One consumer group: handles its members' requests, and moves from generation to generation.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
      ^            |    ^                   |                |
      `------------'    `-------------------+----------------'

Preparing: all members have to join. Completing: the generation has its members, and the leader has
to assign the partitions. As in Kafka's GroupMetadataManager and ClassicGroup.

There is no clock and no I/O here: each step gets the time, and appends responses and records to
store to `effects`.
"""

import enum
from collections.abc import Callable, Iterable
from typing import Final

from kio.schema.errors import ErrorCode

from proxy.kafka.groups.group_members import NEVER, Member, Members
from proxy.kafka.groups.group_steps import (
    Answer,
    Effect,
    GroupLimits,
    Join,
    JoinAnswer,
    MemberIdentity,
    Store,
    Sync,
    SyncAnswer,
    Waiter,
)
from proxy.kafka.groups.subscription import CONSUMER, subscribed_topics

#: How long a new member may wait for its first JoinGroup response before it is removed: it sends no
#: heartbeats yet, and may have crashed (Kafka's CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS).
NEW_MEMBER_JOIN_MS: Final = 5 * 60 * 1000


@enum.unique
class State(enum.Enum):
    """The states, with Kafka's names as in ListGroups."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Group:
    """The members and the state of one group.

    Parameters:
        new_id: returns a unique text.
        generation: the group's last generation.
        protocol_type: the group's last type; None: it never had a member.

    Attributes:
        effects: what the caller has to do, in order; the caller clears the list.
        wake_at: `advance` has nothing to do before this time, in ms.
        unsaved: whether the group became empty and that is not stored yet.
        subscribed: the topics that the members read; None: unknown, or there was no member.
    """

    def __init__(
        self,
        group_id: str,
        limits: GroupLimits,
        new_id: Callable[[], str],
        generation: int = 0,
        protocol_type: str | None = None,
    ) -> None:
        self.group_id: Final = group_id
        self.state = State.EMPTY
        self.generation = generation
        self.protocol_name: str | None = None
        self.members: Final = Members(protocol_type)
        self.subscribed: frozenset[str] | None = None
        self.effects: Final[list[Effect]] = []
        self.wake_at: float = NEVER
        self.unsaved = False
        self._limits = limits
        self._pending_sync: set[str] = set()
        self._join_deadline: float = NEVER
        self._sync_deadline: float = NEVER
        #: In the first rebalance of an empty group, which waits for more members: the present wait
        #: and how much longer it may be extended, in ms. None in any other rebalance.
        self._initial: tuple[int, int] | None = None
        self._new_member_came = False
        #: The leader's assignments, while the generation is being stored.
        self._assignments: dict[str, bytes] = {}
        self._new_id = new_id

    @property
    def is_idle(self) -> bool:
        """Whether all that matters of the group is stored."""
        return self.state is State.EMPTY and not self.members.pending and not self.unsaved

    def reads(self, topic: str) -> bool:
        """Whether a member subscribes to the topic, or may (as in ClassicGroup)."""
        if self.state is State.EMPTY:
            return False
        if self.subscribed is not None:
            return topic in self.subscribed
        return self.members.protocol_type == CONSUMER

    # ------------------------------------------------------------------ memory

    def held_by(self, request: Join) -> int:
        """Return the bytes that the joining member holds already; 0 for a new one."""
        member_id: str | None = request.member_id
        if not member_id and request.instance_id is not None:
            member_id = self.members.static.get(request.instance_id)
        member = self.members.by_id.get(member_id or "")
        return member.size_bytes if member is not None else 0

    def growth_by_sync(self, request: Sync) -> int:
        """Return the bytes that a leader's assignments take beyond the present ones."""
        if not request.assignments or request.member_id != self.members.leader:
            return 0  # the request's assignments are not kept
        held = sum(len(each.assignment) for each in self.members.by_id.values())
        return sum(map(len, request.assignments.values())) - held

    # ------------------------------------------------------------------ JoinGroup

    def join(self, now: int, request: Join, waiter: Waiter) -> None:
        """Handle JoinGroup of a new member, or of one that joins again."""
        if not self._has_room(request.member_id):
            self._remove(request.member_id)
            self._refuse_join(waiter, ErrorCode.group_max_size_reached, "")
        elif not self.members.supports(
            request.protocol_type, request.protocols, empty=self.state is State.EMPTY
        ):
            self._refuse_join(waiter, ErrorCode.inconsistent_group_protocol, request.member_id)
        elif not request.member_id:
            self._join_new(now, request, waiter)
        elif request.member_id in self.members.pending and request.instance_id is None:
            self._add(now, request, request.member_id, waiter)
        else:
            self._join_known(now, request, waiter)

    def _has_room(self, member_id: str) -> bool:
        """Whether the group may have one more member (GroupMetadataManager.acceptJoiningMember)."""
        member = self.members.by_id.get(member_id)
        if self.state is State.EMPTY:
            return True
        if self.state is State.PREPARING:
            waits = member is not None and member.join is not None
            return waits or self.members.joining < self._limits.members_max
        return member is not None or len(self.members) < self._limits.members_max

    def _join_new(self, now: int, request: Join, waiter: Waiter) -> None:
        name = request.client_id if request.instance_id is None else request.instance_id
        member_id = f"{name}-{self._new_id()}"
        if request.instance_id is not None:
            old_id = self.members.static.get(request.instance_id)
            if old_id is not None:
                self._replace_static(now, request, old_id, member_id, waiter)
            else:
                self._add(now, request, member_id, waiter)
        elif request.requires_member_id:
            # The client joins again with this id; one that does not leaves no member (KIP-394).
            self.members.add_pending(member_id, self._due(now + request.session_ms))
            self._refuse_join(waiter, ErrorCode.member_id_required, member_id)
        else:
            self._add(now, request, member_id, waiter)

    def _add(self, now: int, request: Join, member_id: str, waiter: Waiter) -> None:
        member = Member.of(member_id, request)
        member.is_new = True
        member.deadline = self._due(now + NEW_MEMBER_JOIN_MS)
        if self.state is State.PREPARING and self._initial is not None:
            self._new_member_came = True
        self.members.add(member, request.protocol_type)
        self.members.set_join(member, waiter)
        self._prepare_or_complete(now)

    def _join_known(self, now: int, request: Join, waiter: Waiter) -> None:
        error = self._check_member(request.member_id, request.instance_id)
        if error is not ErrorCode.none:
            self._refuse_join(waiter, error, request.member_id)
            return
        member = self.members.by_id[request.member_id]
        changed = member.protocols != request.protocols
        leads = self.members.leader == member.member_id
        # A leader that joins a stable group wants a rebalance, for example for new partitions.
        if self.state is State.PREPARING or changed or (self.state is State.STABLE and leads):
            self._update(now, member, request, waiter)
        else:
            # The member may have missed the response: send it again.
            self.effects.append(Answer(waiter, self._joined(member)))

    def _update(self, now: int, member: Member, request: Join, waiter: Waiter) -> None:
        self.members.update(member, request)
        before = self.members.set_join(member, waiter)
        if before is not None:
            # The member has sent JoinGroup again on another connection: that one gets the response.
            self._refuse_join(before, ErrorCode.rebalance_in_progress, member.member_id)
        self._prepare_or_complete(now)

    def _replace_static(
        self, now: int, request: Join, old_id: str, new_id: str, waiter: Waiter
    ) -> None:
        """Give a restarted static member a new id; its old id is fenced (KIP-345)."""
        leader = self.members.leader or ""
        old, member = self.members.replace_static(old_id, new_id)
        self._pending_sync.discard(old_id)
        self._answer_both(old, ErrorCode.fenced_instance_id, old_id)
        member.deadline = self._due(now + request.session_ms)
        self.members.update(member, request)
        if self.state is State.STABLE and self.members.select_protocol() == self.protocol_name:
            # No rebalance: the member keeps its assignment.
            leads = self.members.leader == new_id
            if request.skips_assignment:
                answer = self._joined(member, skip_assignment=leads)
            else:
                # Name the old leader id: a member that took itself for the leader would send
                # assignments, which would be ignored.
                answer = self._joined(member, leader=leader)
            self.effects.append(Answer(waiter, answer))
            return
        self.members.set_join(member, waiter)
        # In state Completing the leader may assign partitions to the old id: rebalance again.
        self._prepare_or_complete(now)

    # ------------------------------------------------------------------ SyncGroup

    def sync(self, request: Sync, waiter: Waiter) -> None:
        """Handle SyncGroup: a member requests its assignment; the leader's has all assignments."""
        error = self._check_sync(request)
        if error is not ErrorCode.none:
            self.effects.append(Answer(waiter, SyncAnswer(error)))
            return
        member = self.members.by_id[request.member_id]
        self._pending_sync.discard(member.member_id)
        if not self._pending_sync:
            self._sync_deadline = NEVER
        if self.state is State.STABLE:
            self.effects.append(Answer(waiter, self._synced(member)))
            return
        before, member.sync = member.sync, waiter
        if before is not None:
            self.effects.append(Answer(before, SyncAnswer(ErrorCode.rebalance_in_progress)))
        if self.members.leader == member.member_id:
            self._assignments = request.assignments
            self.effects.append(Store(self.generation))

    def _check_sync(self, request: Sync) -> ErrorCode:
        error = self._check_current(request.member_id, request.instance_id, request.generation)
        if error is not ErrorCode.none:
            return error
        if request.protocol_type not in (None, self.members.protocol_type):
            return ErrorCode.inconsistent_group_protocol
        if self.protocol_name is not None and request.protocol_name not in (
            None,
            self.protocol_name,
        ):
            return ErrorCode.inconsistent_group_protocol
        if self.state is State.PREPARING:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    # ------------------------------------------------------------------ Heartbeat, OffsetCommit

    def heartbeat(
        self, now: int, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Handle Heartbeat: extend the member's session."""
        error = self._check_current(member_id, instance_id, generation)
        if error is not ErrorCode.none:
            return error
        self._touch(now, member_id)
        if self.state is State.PREPARING:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def commit(
        self, now: int, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Check whether the member may commit offsets (ClassicGroup.validateOffsetCommit)."""
        if generation < 0 and self.state is State.EMPTY:
            return ErrorCode.none  # a tool, or a consumer that does not join the group
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.unknown_member_id
        error = self._check_current(member_id, instance_id, generation)
        if error is not ErrorCode.none:
            return error
        if self.state is State.COMPLETING:
            return ErrorCode.rebalance_in_progress
        self._touch(now, member_id)
        return ErrorCode.none

    def _touch(self, now: int, member_id: str) -> None:
        member = self.members.by_id[member_id]
        member.deadline = self._due(now + member.session_ms)

    def _check_current(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Check that the ids are a member's, and the generation is the group's."""
        error = self._check_member(member_id, instance_id)
        if error is ErrorCode.none and generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def _check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Check that the ids are a member's (ClassicGroup.validateMember)."""
        if instance_id is not None:
            existing = self.members.static.get(instance_id)
            if existing is not None and existing != member_id:
                return ErrorCode.fenced_instance_id
            if existing is None:
                return ErrorCode.unknown_member_id
        if member_id not in self.members.by_id:
            return ErrorCode.unknown_member_id
        return ErrorCode.none

    # ------------------------------------------------------------------ LeaveGroup

    def leave(self, now: int, leaving: Iterable[MemberIdentity]) -> list[ErrorCode]:
        """Handle LeaveGroup: remove members; return an error code for each."""
        errors = [self._leave(each) for each in leaving]
        if ErrorCode.none in errors and self.state is not State.EMPTY:
            self._prepare_or_complete(now)
        return errors

    def _leave(self, leaving: MemberIdentity) -> ErrorCode:
        member_id: str | None = leaving.member_id
        if not leaving.member_id:
            # A tool removes a static member by its instance id.
            member_id = self.members.static.get(leaving.instance_id or "")
        elif leaving.member_id not in self.members.pending:
            error = self._check_member(leaving.member_id, leaving.instance_id)
            if error is not ErrorCode.none:
                return error
        if not member_id:
            return ErrorCode.unknown_member_id
        self._remove(member_id)
        return ErrorCode.none

    # ------------------------------------------------------------------ generations

    def _prepare_or_complete(self, now: int) -> None:
        if self.state is not State.PREPARING:
            self._prepare(now)
        elif self._initial is None and self.members.all_joined:
            self._complete_join(now)

    def _prepare(self, now: int) -> None:
        """Begin a rebalance: all members have to join again."""
        if self.state is State.COMPLETING:
            self._propagate(now, {}, ErrorCode.rebalance_in_progress)
        self._pending_sync.clear()
        self._sync_deadline = NEVER
        if self.state is State.EMPTY:
            delay = self._limits.initial_rebalance_ms
            self._initial = (delay, max(self.members.rebalance_ms - delay, 0))
            self._new_member_came = False
            self._join_deadline = self._due(now + delay)
            self.state = State.PREPARING
            return
        self.state = State.PREPARING
        if self.members.all_joined:
            self._complete_join(now)
        else:
            self._join_deadline = self._due(now + self.members.rebalance_ms)

    def _end_of_join(self, now: int) -> None:
        """Handle the end of the rebalance timeout, or of the first rebalance's delay."""
        delay, remaining = self._initial or (0, 0)
        longer = min(self._limits.initial_rebalance_ms, remaining)
        if not self._new_member_came or not longer:
            self._complete_join(now)
            return
        self._initial = (longer, max(remaining - delay, 0))
        self._new_member_came = False
        self._join_deadline = self._due(now + longer)

    def _complete_join(self, now: int) -> None:
        """Begin the next generation with the members that have joined."""
        self._join_deadline = NEVER
        self._initial = None
        for member in list(self.members.by_id.values()):
            if member.join is None and member.instance_id is None:
                self._remove(member.member_id)
        if not self.members.elect_joined() and self.members.by_id:
            # Only static members, and none has joined: wait until their sessions end.
            self._join_deadline = self._due(now + max(self.members.rebalance_ms, 1))
            return
        self.generation += 1
        if not self.members.by_id:
            self._become_empty()
            return
        self.protocol_name = protocol = self.members.select_protocol()
        self._read_subscriptions(protocol)
        self.state = State.COMPLETING
        for member in self.members.by_id.values():
            waiter = self.members.set_join(member, None)
            if waiter is not None:
                self.effects.append(Answer(waiter, self._joined(member)))
            member.is_new = False
            member.deadline = self._due(now + member.session_ms)
        self._pending_sync = set(self.members.by_id)
        self._sync_deadline = self._due(now + self.members.rebalance_ms)

    def _become_empty(self) -> None:
        self.protocol_name = None
        self.subscribed = frozenset() if self.members.protocol_type == CONSUMER else None
        self.state = State.EMPTY
        self.unsaved = True
        self.effects.append(Store(self.generation))

    def _read_subscriptions(self, protocol: str) -> None:
        self.subscribed = None
        if self.members.protocol_type == CONSUMER:
            members = self.members.by_id.values()
            self.subscribed = subscribed_topics(each.metadata(protocol) for each in members)

    # ------------------------------------------------------------------ assignments

    def stored(self, now: int, generation: int, *, failed: bool) -> None:
        """Handle the outcome of a `Store` effect."""
        if generation != self.generation:
            return
        if self.state is State.EMPTY:
            self.unsaved = failed
        elif self.state is State.COMPLETING and failed:
            self._propagate(now, {}, ErrorCode.coordinator_not_available)
            self._prepare_or_complete(now)
        elif self.state is State.COMPLETING:
            self.state = State.STABLE
            self._propagate(now, self._assignments, ErrorCode.none)
            self._assignments = {}

    def _propagate(self, now: int, assignments: dict[str, bytes], error: ErrorCode) -> None:
        """Set all members' assignments, and complete their SyncGroup requests."""
        for member in self.members.by_id.values():
            self.members.assign(member, assignments.get(member.member_id, b""))
            waiter, member.sync = member.sync, None
            if waiter is None:
                continue
            failed = error is not ErrorCode.none
            answer = SyncAnswer(error) if failed else self._synced(member)
            self.effects.append(Answer(waiter, answer))
            # The member need not send heartbeats while it waits, so its session starts now.
            member.deadline = self._due(now + member.session_ms)

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(
            ErrorCode.none, member.assignment, self.members.protocol_type, self.protocol_name
        )

    def _joined(
        self, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> JoinAnswer:
        leader = leader if leader is not None else self.members.leader or ""
        leads = leader == member.member_id and self.state is not State.PREPARING
        return JoinAnswer(
            ErrorCode.none,
            member.member_id,
            self.generation,
            self.members.protocol_type,
            self.protocol_name,
            leader,
            skip_assignment,
            self.members.for_leader(self.protocol_name or "") if leads else (),
        )

    def _refuse_join(self, waiter: Waiter, error: ErrorCode, member_id: str) -> None:
        self.effects.append(Answer(waiter, JoinAnswer(error, member_id)))

    # ------------------------------------------------------------------ removed members

    def _remove(self, member_id: str) -> None:
        member = self.members.remove(member_id)
        self._pending_sync.discard(member_id)
        if member is not None:
            self._answer_both(member, ErrorCode.unknown_member_id, "")

    def _answer_both(self, member: Member, error: ErrorCode, member_id: str) -> None:
        """Complete a removed member's waiting requests with an error."""
        if member.join is not None:
            self._refuse_join(member.join, error, member_id)
        if member.sync is not None:
            self.effects.append(Answer(member.sync, SyncAnswer(error)))
        member.join = member.sync = None

    def close(self, error: ErrorCode) -> None:
        """End the group: all waiting requests get the error."""
        for member in self.members.by_id.values():
            self._answer_both(member, error, member.member_id)
        self.state = State.DEAD
        self.wake_at = NEVER

    # ------------------------------------------------------------------ time

    def advance(self, now: int) -> None:
        """Handle all deadlines up to `now`: of sessions, and of rebalances."""
        self._expire_pending(now)
        for member in list(self.members.by_id.values()):
            if member.deadline <= now and member.member_id in self.members.by_id:
                self._expire(now, member)
        if self._join_deadline <= now:
            self._end_of_join(now)
        if self._sync_deadline <= now:
            self._end_of_sync(now)
        deadlines = [member.deadline for member in self.members.by_id.values()]
        self.wake_at = min(
            *deadlines,
            *self.members.pending.values(),
            self._join_deadline,
            self._sync_deadline,
            NEVER,
        )

    def _expire_pending(self, now: int) -> None:
        gone = [each for each, deadline in self.members.pending.items() if deadline <= now]
        for member_id in gone:
            self.members.drop_pending(member_id)
        if gone:
            self._complete_if_all_joined(now)

    def _expire(self, now: int, member: Member) -> None:
        if member.waits:
            member.deadline = NEVER  # it waits for a response, which starts the session again
            return
        self._remove(member.member_id)
        if self.state is State.PREPARING:
            self._complete_if_all_joined(now)
        else:
            self._prepare(now)

    def _complete_if_all_joined(self, now: int) -> None:
        if self.state is State.PREPARING and self.members.all_joined:
            self._complete_join(now)

    def _end_of_sync(self, now: int) -> None:
        """Remove the members that joined and did not request their assignments in time."""
        self._sync_deadline = NEVER
        if self.state in (State.COMPLETING, State.STABLE) and self._pending_sync:
            for member_id in list(self._pending_sync):
                self._remove(member_id)
            self._prepare(now)

    def _due(self, at: float) -> float:
        """Return a deadline, after lowering `wake_at` to it."""
        self.wake_at = min(self.wake_at, at)
        return at
