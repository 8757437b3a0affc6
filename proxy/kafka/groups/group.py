"""One consumer group: what its members ask, step by step.

As in Kafka's GroupMetadataManager and ClassicGroup. Nothing here has a clock or waits: the time
comes in with every step, and what is to be answered or stored goes out as effects.
"""

from collections.abc import Callable, Iterable
from typing import Final

from kio.schema.errors import ErrorCode

from proxy.kafka.groups.group_members import NEVER, Member
from proxy.kafka.groups.group_steps import (
    Answer,
    GroupLimits,
    Identity,
    Join,
    Store,
    Sync,
    SyncAnswer,
    Waiter,
)
from proxy.kafka.groups.rebalance import Rebalancing, State
from proxy.kafka.groups.subscription import CONSUMER

#: How long a member that joins for the first time may wait for its answer before it is taken for
#: gone: it sends no heartbeats, and may have gone unseen (Kafka's
#: CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS).
NEW_MEMBER_JOIN_MS: Final = 5 * 60 * 1000


class Group(Rebalancing):
    """A group.

    Parameters:
        group_id: its id.
        limits: what is allowed.
        new_id: gives a text that was never given before.
        generation: the last one that it had.
        protocol_type: what it was last; None: it had no members yet.
    """

    def __init__(
        self,
        group_id: str,
        limits: GroupLimits,
        new_id: Callable[[], str],
        generation: int = 0,
        protocol_type: str | None = None,
    ) -> None:
        super().__init__(limits, generation, protocol_type)
        self.group_id: Final = group_id
        self._new_id = new_id

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to know of it that is not stored."""
        return self.state is State.EMPTY and not self.members.pending and not self.unsaved

    def reads(self, topic: str) -> bool:
        """Whether a topic is subscribed to, as far as it is known (ClassicGroup)."""
        if self.state is State.EMPTY:
            return False
        if self.subscribed is not None:
            return topic in self.subscribed
        return self.members.protocol_type == CONSUMER

    # ------------------------------------------------------------------ memory

    def held_by(self, request: Join) -> int:
        """How many bytes the member that joins holds already, who it is being told by its id."""
        member_id: str | None = request.member_id
        if not member_id and request.instance_id is not None:
            member_id = self.members.static.get(request.instance_id)
        member = self.members.by_id.get(member_id or "")
        return member.size_bytes if member is not None else 0

    def growth_by_sync(self, request: Sync) -> int:
        """How many bytes more the assignments take that a leader brings than those there are."""
        if not request.assignments or request.member_id != self.members.leader:
            return 0  # nothing is kept of it
        held = sum(len(each.assignment) for each in self.members.by_id.values())
        return sum(map(len, request.assignments.values())) - held

    # ------------------------------------------------------------------ JoinGroup

    def join(self, now: int, request: Join, waiter: Waiter) -> None:
        """A member joins, for the first time or again."""
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
        """See GroupMetadataManager.acceptJoiningMember."""
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
            # It is to come again with this id: who gives up waiting then leaves no trace (KIP-394).
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
        # A leader that joins a stable group wants a rebalance: it has seen new partitions, perhaps.
        if self.state is State.PREPARING or changed or (self.state is State.STABLE and leads):
            self._update(now, member, request, waiter)
        else:
            # It missed the answer, perhaps: it gets it again.
            self.effects.append(Answer(waiter, self._joined(member)))

    def _update(self, now: int, member: Member, request: Join, waiter: Waiter) -> None:
        self.members.update(member, request)
        before = self.members.set_join(member, waiter)
        if before is not None:
            # It asked again, on another connection, and is answered there.
            self._refuse_join(before, ErrorCode.rebalance_in_progress, member.member_id)
        self._prepare_or_complete(now)

    def _replace_static(
        self, now: int, request: Join, old_id: str, new_id: str, waiter: Waiter
    ) -> None:
        """A static member that was restarted takes its own place (KIP-345)."""
        leader = self.members.leader or ""
        old, member = self.members.replace_static(old_id, new_id)
        self._pending_sync.discard(old_id)
        self._answer_both(old, ErrorCode.fenced_instance_id, old_id)
        member.deadline = self._due(now + request.session_ms)
        self.members.update(member, request)
        if self.state is State.STABLE and self.members.select_protocol() == self.protocol_name:
            # Nothing changes for the others, and it goes on with what it had.
            leads = self.members.leader == new_id
            if request.skips_assignment:
                answer = self._joined(member, skip_assignment=leads)
            else:
                # It is not to take itself for the leader: its assignment would not be listened to.
                answer = self._joined(member, leader=leader)
            self.effects.append(Answer(waiter, answer))
            return
        self.members.set_join(member, waiter)
        # While completing, the leader may have been told of the old id: begin anew.
        self._prepare_or_complete(now)

    # ------------------------------------------------------------------ SyncGroup

    def sync(self, request: Sync, waiter: Waiter) -> None:
        """A member asks for its assignment; the leader brings those of all."""
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
        error = self._check_member(request.member_id, request.instance_id)
        if error is not ErrorCode.none:
            return error
        if request.generation != self.generation:
            return ErrorCode.illegal_generation
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
        """A member is still there; what it is to be told."""
        error = self._check_member(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
        if generation != self.generation:
            return ErrorCode.illegal_generation
        self._touch(now, member_id)
        if self.state is State.PREPARING:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def commit(
        self, now: int, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Whether one may commit offsets (ClassicGroup.validateOffsetCommit)."""
        if generation < 0 and self.state is State.EMPTY:
            return ErrorCode.none  # a tool, or a consumer without a group
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.unknown_member_id
        error = self._check_member(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
        if generation != self.generation:
            return ErrorCode.illegal_generation
        if self.state is State.COMPLETING:
            return ErrorCode.rebalance_in_progress
        self._touch(now, member_id)
        return ErrorCode.none

    def _touch(self, now: int, member_id: str) -> None:
        member = self.members.by_id[member_id]
        member.deadline = self._due(now + member.session_ms)

    def _check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """See ClassicGroup.validateMember."""
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

    def leave(self, now: int, leaving: Iterable[Identity]) -> list[ErrorCode]:
        """Members leave; for each, what it is to be told."""
        errors = [self._leave(each) for each in leaving]
        if ErrorCode.none in errors and self.state is not State.EMPTY:
            self._prepare_or_complete(now)
        return errors

    def _leave(self, who: Identity) -> ErrorCode:
        member_id: str | None = who.member_id
        if not who.member_id:
            # A tool removes a static member by the name that its owner gave it.
            member_id = self.members.static.get(who.instance_id or "")
        elif who.member_id not in self.members.pending:
            error = self._check_member(who.member_id, who.instance_id)
            if error is not ErrorCode.none:
                return error
        if not member_id:
            return ErrorCode.unknown_member_id
        self._remove(member_id)
        return ErrorCode.none
