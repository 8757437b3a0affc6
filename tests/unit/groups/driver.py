"""A group under a test's own clock: what was answered to whom."""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from kio.schema.errors import ErrorCode

from proxy.kafka.groups.group import Group, State
from proxy.kafka.groups.group_steps import (
    Answer,
    GroupLimits,
    Join,
    JoinAnswer,
    MemberIdentity,
    Protocols,
    Store,
    Sync,
    SyncAnswer,
)

LIMITS = GroupLimits(initial_rebalance_ms=3_000)
SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE: Protocols = (("range", b"r"),)


def joining(member_id: str = "", **more: Any) -> Join:
    """A JoinGroup of a plain consumer."""
    plain = Join(
        member_id, None, "client", "127.0.0.1", "consumer", RANGE, SESSION_MS, REBALANCE_MS
    )
    return replace(plain, **more)


@dataclass
class Driver:
    """Drives one group."""

    limits: GroupLimits = LIMITS
    stores_at_once: bool = True
    now: int = 1_000
    answers: dict[str, JoinAnswer | SyncAnswer] = field(default_factory=dict)
    stores: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        numbers = itertools.count(1)
        self.group = Group("g", self.limits, lambda: str(next(numbers)))

    # ------------------------------------------------------------------ what comes in

    def join(self, waiter: str, member_id: str = "", **more: Any) -> JoinAnswer | None:
        """A JoinGroup; its answer, if there is one at once."""
        self.group.join(self.now, joining(member_id, **more), waiter)
        return self._joined(waiter)

    def join_with_id(self, waiter: str, **more: Any) -> str:
        """Join as a new member does from version 4 on; its id."""
        told = self.join(f"{waiter}, first", **more)
        assert told is not None
        assert told.error == ErrorCode.member_id_required
        self.join(waiter, told.member_id, **more)
        return told.member_id

    def sync(
        self,
        waiter: str,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        **more: Any,
    ) -> SyncAnswer | None:
        """A SyncGroup of the present generation; its answer, if there is one at once."""
        generation = self.group.generation if generation is None else generation
        sync = Sync(member_id, None, generation, "consumer", None, assignments or {})
        self.group.sync(replace(sync, **more), waiter)
        self.drain()
        answer = self.answers.get(waiter)
        assert not isinstance(answer, JoinAnswer)
        return answer

    def heartbeat(self, member_id: str, generation: int | None = None) -> ErrorCode:
        """A Heartbeat of the present generation."""
        generation = self.group.generation if generation is None else generation
        code = self.group.heartbeat(self.now, member_id, None, generation)
        self.drain()
        return code

    def leave(self, *member_ids: str) -> list[ErrorCode]:
        """A LeaveGroup of dynamic members."""
        codes = self.group.leave(self.now, [MemberIdentity(each, None) for each in member_ids])
        self.drain()
        return codes

    def stored(self, *, failed: bool = False) -> None:
        """What was to be stored first is."""
        self.group.stored(self.now, self.stores.pop(0), failed=failed)
        self.drain()

    def wait(self, ms: int, *alive: str) -> None:
        """Time goes on, second by second; those who are alive send heartbeats."""
        end = self.now + ms
        while self.now < end:
            due = max(self.group.wake_at, self.now + 1)
            self.now = int(min(self.now + 1_000, end, due))
            for member_id in alive:
                self.heartbeat(member_id)
            if self.group.wake_at <= self.now:
                self.group.advance(self.now)
                self.drain()
                assert self.group.wake_at > self.now
            else:
                before = (self.group.state, self.group.generation, len(self.group.members))
                self.group.advance(self.now)
                assert not self.group.effects
                assert before == (
                    self.group.state,
                    self.group.generation,
                    len(self.group.members),
                )

    # ------------------------------------------------------------------ what comes out

    def drain(self) -> None:
        """Take note of what is to be done."""
        while self.group.effects:
            effect = self.group.effects.pop(0)
            if isinstance(effect, Store):
                self.stores.append(effect.generation)
                if self.stores_at_once:
                    self.stored()
            else:
                assert isinstance(effect, Answer)
                assert isinstance(effect.waiter, str)
                assert effect.waiter not in self.answers, "answered twice"
                self.answers[effect.waiter] = effect.answer

    def _joined(self, waiter: str) -> JoinAnswer | None:
        self.drain()
        answer = self.answers.get(waiter)
        assert not isinstance(answer, SyncAnswer)
        return answer

    def join_answer(self, waiter: str) -> JoinAnswer:
        """The answer to a JoinGroup."""
        answer = self._joined(waiter)
        assert answer is not None, f"{waiter} still waits"
        return answer

    def sync_answer(self, waiter: str) -> SyncAnswer:
        """The answer to a SyncGroup."""
        answer = self.answers[waiter]
        assert isinstance(answer, SyncAnswer)
        return answer

    def error(self, waiter: str) -> ErrorCode:
        """The code that somebody was told."""
        return self.answers[waiter].error

    # ------------------------------------------------------------------ shortcuts

    def stable(self, count: int = 2) -> list[str]:
        """Bring a new group to its first assignment; its members' ids, the leader first."""
        ids = [self.join_with_id(f"join {number}") for number in range(count)]
        self.wait(2 * self.limits.initial_rebalance_ms + 1, *ids)
        self.assign(ids)
        assert self.group.state is State.STABLE
        return ids

    def assign(self, ids: list[str]) -> None:
        """All members sync, the leader last."""
        leader = self.group.members.leader
        assert leader is not None
        generation = self.group.generation
        for each in [*[each for each in ids if each != leader], leader]:
            own = {other: other.encode() for other in ids} if each == leader else {}
            self.sync(f"sync {generation} {each}", each, assignments=own)
