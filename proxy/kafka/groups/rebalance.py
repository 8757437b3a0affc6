"""How a group comes from one generation to the next, by what its members do and by time.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
      ^            |    ^                   |                |
      `------------'    `-------------------+----------------'

Preparing: waiting for all members to join. Completing: the generation is made, its leader is to
say who reads what. As in Kafka's GroupMetadataManager and ClassicGroup.
"""

import enum
from typing import Final

from kio.schema.errors import ErrorCode

from proxy.kafka.groups.group_members import NEVER, Member, Members
from proxy.kafka.groups.group_steps import (
    Answer,
    Effect,
    GroupLimits,
    JoinAnswer,
    Store,
    SyncAnswer,
    Waiter,
)
from proxy.kafka.groups.subscription import CONSUMER, subscribed_topics


@enum.unique
class State(enum.Enum):
    """Kafka's names for the states, as ListGroups tells them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Rebalancing:
    """The states of a group, and what makes it go from one to the next.

    Parameters:
        limits: what is allowed.
        generation: the last one that it had.
        protocol_type: what it was last; None: it had no members yet.

    Attributes:
        effects: what is to be done, in order; whoever does it empties the list.
        wake_at: `advance` has nothing to do before this time, in ms.
        unsaved: it became empty, and that is not stored yet.
        subscribed: the topics its members read; None: they do not say, or there were none.
    """

    def __init__(self, limits: GroupLimits, generation: int, protocol_type: str | None) -> None:
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
        #: The rebalance of an empty group waits for members to come: how long it waits now, and
        #: how much longer it may; None in any other.
        self._initial: tuple[int, int] | None = None
        self._new_member_came = False
        #: The leader's word for this generation, while it is being stored.
        self._assignments: dict[str, bytes] = {}

    # ------------------------------------------------------------------ generations

    def _prepare_or_complete(self, now: int) -> None:
        if self.state is not State.PREPARING:
            self._prepare(now)
        elif self._initial is None and self.members.all_joined:
            self._complete_join(now)

    def _prepare(self, now: int) -> None:
        """All members are to join again."""
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
        """The time for joining is over, or that which an empty group waits for more members."""
        delay, remaining = self._initial or (0, 0)
        longer = min(self._limits.initial_rebalance_ms, remaining)
        if not self._new_member_came or not longer:
            self._complete_join(now)
            return
        self._initial = (longer, max(remaining - delay, 0))
        self._new_member_came = False
        self._join_deadline = self._due(now + longer)

    def _complete_join(self, now: int) -> None:
        """Make the next generation, of those that have joined."""
        self._join_deadline = NEVER
        self._initial = None
        for member in list(self.members.by_id.values()):
            if member.join is None and member.instance_id is None:
                self._remove(member.member_id)
        if not self.members.elect_joined() and self.members.by_id:
            # Only static members, of which none has joined: until their sessions end.
            self._join_deadline = self._due(now + max(self.members.rebalance_ms, 1))
            return
        self.generation += 1
        if not self.members.by_id:
            self._become_empty()
            return
        self.protocol_name = protocol = self.members.select_protocol()
        self._look_at_subscriptions(protocol)
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

    def _look_at_subscriptions(self, protocol: str) -> None:
        self.subscribed = None
        if self.members.protocol_type == CONSUMER:
            members = self.members.by_id.values()
            self.subscribed = subscribed_topics(each.metadata(protocol) for each in members)

    # ------------------------------------------------------------------ assignments

    def stored(self, now: int, generation: int, *, failed: bool) -> None:
        """What `Store` asked for was done; or it failed."""
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
        """Give all members their assignments, and answer those who wait for them."""
        for member in self.members.by_id.values():
            self.members.assign(member, assignments.get(member.member_id, b""))
            waiter, member.sync = member.sync, None
            if waiter is None:
                continue
            failed = error is not ErrorCode.none
            answer = SyncAnswer(error) if failed else self._synced(member)
            self.effects.append(Answer(waiter, answer))
            # While it waited no heartbeat was expected of it.
            member.deadline = self._due(now + member.session_ms)

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(
            ErrorCode.none, member.assignment, self.members.protocol_type, self.protocol_name
        )

    def _joined(
        self, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> JoinAnswer:
        leader = leader if leader is not None else self.members.leader or ""
        told = leader == member.member_id and self.state is not State.PREPARING
        return JoinAnswer(
            ErrorCode.none,
            member.member_id,
            self.generation,
            self.members.protocol_type,
            self.protocol_name,
            leader,
            skip_assignment,
            self.members.told_to_leader(self.protocol_name or "") if told else (),
        )

    def _refuse_join(self, waiter: Waiter, error: ErrorCode, member_id: str) -> None:
        self.effects.append(Answer(waiter, JoinAnswer(error, member_id)))

    # ------------------------------------------------------------------ members that are no more

    def _remove(self, member_id: str) -> None:
        member = self.members.remove(member_id)
        self._pending_sync.discard(member_id)
        if member is not None:
            self._answer_both(member, ErrorCode.unknown_member_id, "")

    def _answer_both(self, member: Member, error: ErrorCode, member_id: str) -> None:
        """Refuse a member that is no more, wherever it waits."""
        if member.join is not None:
            self._refuse_join(member.join, error, member_id)
        if member.sync is not None:
            self.effects.append(Answer(member.sync, SyncAnswer(error)))
        member.join = member.sync = None

    def close(self, error: ErrorCode) -> None:
        """The group is no more, here: whoever waits is refused."""
        for member in self.members.by_id.values():
            self._answer_both(member, error, member.member_id)
        self.state = State.DEAD
        self.wake_at = NEVER

    # ------------------------------------------------------------------ time

    def advance(self, now: int) -> None:
        """Do what time has brought: members that are gone, rebalances that have taken too long."""
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
            member.deadline = NEVER  # it is for us to go on; then it begins anew
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
        """Members that joined, and then did not ask for their assignments, are gone."""
        self._sync_deadline = NEVER
        if self.state in (State.COMPLETING, State.STABLE) and self._pending_sync:
            for member_id in list(self._pending_sync):
                self._remove(member_id)
            self._prepare(now)

    def _due(self, at: float) -> float:
        """Note a time at which there is something to do."""
        self.wake_at = min(self.wake_at, at)
        return at
