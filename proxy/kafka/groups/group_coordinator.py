"""Runs all consumer groups: executes their effects, wakes them on time, bounds their number.

Only a group with members is in memory; an empty one exists only in the offset store.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Final, cast

import structlog
from kio.schema.errors import ErrorCode

from pidlease.observability.repeated_lines import LINES
from pidlease.storage.offsets.journal_records import (
    GroupNote,
    OffsetsFailedError,
    OffsetsFullError,
)
from pidlease.storage.offsets.offset_store import OffsetStore
from proxy.kafka.groups.group import Group, State
from proxy.kafka.groups.group_members import NEVER
from proxy.kafka.groups.group_steps import (
    Answer,
    GroupLimits,
    Join,
    JoinAnswer,
    MemberIdentity,
    Sync,
    SyncAnswer,
)
from proxy.kafka.groups.known_groups import KnownGroups

_log = structlog.get_logger(__name__)

JoinFuture = asyncio.Future[JoinAnswer]
SyncFuture = asyncio.Future[SyncAnswer]


def monotonic_ms() -> int:
    """Return the monotonic clock's time, in ms."""
    return time.monotonic_ns() // 1_000_000


class GroupCoordinator:
    """The server's groups.

    Parameters:
        offsets: stores the groups and their offsets.
        clock_ms: the time to store, in ms since 1970.
        now_ms: the time for deadlines, in ms; it never goes back.
    """

    def __init__(
        self,
        offsets: OffsetStore,
        limits: GroupLimits,
        clock_ms: Callable[[], int],
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        #: Groups with members, or with members that are about to join.
        self.active: Final[dict[str, Group]] = {}
        self.limits: Final = limits
        self.size_bytes = 0
        self.closed = False
        self._offsets = offsets
        self._clock_ms = clock_ms
        self._now_ms = now_ms
        #: When each group is woken, by `now_ms`, and its timer.
        self._timers: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        self.known: Final = KnownGroups(offsets.table, self.active)
        #: Groups that became empty where storing that has failed.
        self._unsaved: set[str] = set()
        #: Limits that were logged as reached.
        self._logged_full: set[str] = set()

    def start(self) -> None:
        """Store that groups are empty now which had members when the server ended."""
        now_ms = self._clock_ms()
        for group_id, stored in list(self._offsets.table.groups.items()):
            if stored.protocol_type is not None and stored.empty_ms < 0:
                # In memory at once, for requests; for the next start when it is stored.
                stored.empty_ms = now_ms
                note = GroupNote(group_id, stored.protocol_type, stored.generation, now_ms)
                self._offsets.write(note).add_done_callback(_log_failure)

    def close(self) -> None:
        """Complete all waiting requests with an error, and reject all later ones."""
        self.closed = True
        for group in list(self.active.values()):
            self._drop(group, ErrorCode.not_coordinator)

    # ------------------------------------------------------------------ known groups

    def state(self, group_id: str) -> State:
        """Return a group's state; DEAD if there is no such group."""
        group = self.active.get(group_id)
        if group is not None:
            return group.state
        return State.EMPTY if group_id in self._offsets.table.groups else State.DEAD

    def protocol_type(self, group_id: str) -> str:
        """Return a group's protocol type; empty if unknown."""
        group = self.active.get(group_id)
        if group is not None:
            return group.members.protocol_type or ""
        stored = self._offsets.table.groups.get(group_id)
        return (stored.protocol_type or "") if stored is not None else ""

    def has_room(self, group_id: str) -> bool:
        """Whether the group exists, or the server may have one more."""
        if group_id in self.known:
            return True
        if len(self.known) >= self.limits.groups_max:
            return self._refuse_full("groups-max")
        self._logged_full.discard("groups-max")
        return True

    def remove(self, group_id: str) -> None:
        """Drop a group without members, before it is deleted from the store."""
        group = self.active.get(group_id)
        if group is not None:
            self._drop(group, ErrorCode.group_id_not_found)

    # ------------------------------------------------------------------ members' requests

    def join(self, group_id: str, request: Join) -> JoinFuture:
        """Handle JoinGroup; the future completes when all members have joined."""
        waiter: JoinFuture = asyncio.get_running_loop().create_future()
        error = self._check_join(group_id, request)
        if error is not ErrorCode.none:
            waiter.set_result(JoinAnswer(error, request.member_id))
            return waiter
        group = self.active.get(group_id) or self._activate(group_id)
        self._step(group, partial(group.join, self._now_ms(), request, waiter))
        return waiter

    def sync(self, group_id: str, request: Sync) -> SyncFuture:
        """Handle SyncGroup; the future completes when the leader's assignments are stored."""
        waiter: SyncFuture = asyncio.get_running_loop().create_future()
        error = self._check_id(group_id)
        group = self.active.get(group_id)
        if error is ErrorCode.none and group is None:
            error = ErrorCode.unknown_member_id
        elif group is not None and not self._has_memory(group.growth_by_sync(request)):
            error = ErrorCode.coordinator_not_available
        if error is not ErrorCode.none or group is None:
            waiter.set_result(SyncAnswer(error))
            return waiter
        self._step(group, partial(group.sync, request, waiter))
        return waiter

    def leads(self, group_id: str, member_id: str) -> bool:
        """Whether a member is its group's leader."""
        group = self.active.get(group_id)
        return group is not None and group.members.leader == member_id

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Handle Heartbeat."""
        error = self._check_id(group_id)
        group = self.active.get(group_id)
        if error is not ErrorCode.none:
            return error
        if group is None:
            return ErrorCode.unknown_member_id
        error = group.heartbeat(self._now_ms(), member_id, instance_id, generation)
        self._arm(group)
        return error

    def leave(
        self, group_id: str, leaving: list[MemberIdentity]
    ) -> tuple[ErrorCode, list[ErrorCode]]:
        """Handle LeaveGroup; return the error of the request, and of each member."""
        error = self._check_id(group_id)
        group = self.active.get(group_id)
        if error is not ErrorCode.none:
            return error, []
        if group is None:
            return ErrorCode.none, [ErrorCode.unknown_member_id] * len(leaving)
        errors: list[ErrorCode] = []
        self._step(group, lambda: errors.extend(group.leave(self._now_ms(), leaving)))
        return ErrorCode.none, errors

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Check a commit; group_id_not_found if a member names a group that does not exist."""
        if self.closed:
            return ErrorCode.coordinator_not_available
        group = self.active.get(group_id)
        if group is not None:
            error = group.commit(self._now_ms(), member_id, instance_id, generation)
            self._arm(group)
            return error
        if generation < 0:
            full = not self.has_room(group_id)
            return ErrorCode.coordinator_not_available if full else ErrorCode.none
        known = group_id in self._offsets.table.groups
        return ErrorCode.unknown_member_id if known else ErrorCode.group_id_not_found

    def _check_id(self, group_id: str) -> ErrorCode:
        if self.closed:
            return ErrorCode.coordinator_not_available
        return ErrorCode.none if group_id else ErrorCode.invalid_group_id

    def _check_join(self, group_id: str, request: Join) -> ErrorCode:
        error = self._check_id(group_id)
        if error is not ErrorCode.none:
            return error
        if not self.limits.session_min_ms <= request.session_ms <= self.limits.session_max_ms:
            return ErrorCode.invalid_session_timeout
        if group_id not in self.active and request.member_id:
            return ErrorCode.unknown_member_id
        group = self.active.get(group_id)
        # A member that joins again needs only what it takes beyond its present memory.
        held = group.held_by(request) if group is not None else -_group_bytes(group_id)
        growth = request.size_bytes - held
        if not self.has_room(group_id) or not self._has_memory(growth):
            return ErrorCode.coordinator_not_available
        return ErrorCode.none

    def _has_memory(self, size: int) -> bool:
        if size <= 0:
            return True  # present members may always continue
        if self.size_bytes + size > self.limits.memory_bytes_max:
            return self._refuse_full("group-memory-bytes-max")
        self._logged_full.discard("group-memory-bytes-max")
        return True

    def _refuse_full(self, setting: str) -> bool:
        """Log that a limit is reached, once until there is room again; return False."""
        if setting not in self._logged_full:
            self._logged_full.add(setting)
            _log.error("consumer groups are refused: a limit is reached", setting=setting)
        return False

    # ------------------------------------------------------------------ steps of a group

    def _activate(self, group_id: str) -> Group:
        stored = self._offsets.table.groups.get(group_id)
        generation, protocol_type = 0, None
        if stored is not None:
            generation, protocol_type = stored.generation, stored.protocol_type
        group = Group(group_id, self.limits, _new_id, generation, protocol_type)
        self.active[group_id] = group
        self.size_bytes += _group_bytes(group_id)
        self.known.recount(group_id)
        return group

    def _step(self, group: Group, step: Callable[[], None]) -> None:
        """Run a step of a group, and execute its effects."""
        size, state, generation = group.members.size_bytes, group.state, group.generation
        step()
        self.size_bytes += group.members.size_bytes - size
        if (group.state, group.generation) != (state, generation):
            _log.info("group", group=group.group_id, state=group.state.value,
                      generation=group.generation, members=len(group.members))  # fmt: skip
        effects, group.effects[:] = list(group.effects), []
        for effect in effects:
            if isinstance(effect, Answer):
                _answer(effect)
            else:
                self._store(group, effect.generation)
        if group.is_idle:
            self._drop(group, ErrorCode.unknown_member_id)
        elif self.active.get(group.group_id) is group:
            self._arm(group)

    def _store(self, group: Group, generation: int) -> None:
        empty_ms = self._clock_ms() if group.state is State.EMPTY else -1
        note = GroupNote(group.group_id, group.members.protocol_type, generation, empty_ms)

        def ended(stored: "asyncio.Future[None]") -> None:
            error = stored.exception()
            # An empty group that was never stored need not be stored when the store is full.
            known = group.state is not State.EMPTY or group.group_id in self._offsets.table.groups
            failed = error is not None and (known or not isinstance(error, OffsetsFullError))
            if failed and group.state is State.EMPTY:
                self._unsaved.add(group.group_id)
            if group.state is not State.DEAD:
                self._step(group, partial(group.stored, self._now_ms(), generation, failed=failed))

        try:
            stored = self._offsets.write(note)
        except OffsetsFullError as full:
            stored = asyncio.get_running_loop().create_future()
            stored.set_exception(full)
            self._refuse_full("offsets-max")
        stored.add_done_callback(ended)

    def store_again(self) -> None:
        """Store again that groups are empty, where that has failed."""
        unsaved, self._unsaved = self._unsaved, set()
        for group_id in unsaved:
            group = self.active.get(group_id)
            if group is None or group.state is not State.EMPTY or not group.unsaved:
                continue
            if self._offsets.is_busy(group_id):
                self._unsaved.add(group_id)
            else:
                self._store(group, group.generation)

    def _drop(self, group: Group, error: ErrorCode) -> None:
        """Drop a group from memory; its waiting requests get the error."""
        group.close(error)
        for effect in group.effects:
            if isinstance(effect, Answer):
                _answer(effect)
        group.effects.clear()
        if self.active.get(group.group_id) is group:
            del self.active[group.group_id]
            self.size_bytes -= group.members.size_bytes + _group_bytes(group.group_id)
            self.known.recount(group.group_id)
        self._disarm(group.group_id)

    def _arm(self, group: Group) -> None:
        """Set the group's timer to its `wake_at`."""
        wake_at, _ = self._timers.get(group.group_id, (NEVER, None))
        # An earlier timer stays: it finds nothing to do, and is then set again.
        if group.wake_at < wake_at:
            self._disarm(group.group_id)
            delay = max(group.wake_at - self._now_ms(), 0) / 1000
            timer = asyncio.get_running_loop().call_later(delay, self._wake, group)
            self._timers[group.group_id] = group.wake_at, timer

    def _disarm(self, group_id: str) -> None:
        armed = self._timers.pop(group_id, None)
        if armed is not None:
            armed[1].cancel()

    def _wake(self, group: Group) -> None:
        self._timers.pop(group.group_id, None)
        self._step(group, lambda: group.advance(self._now_ms()))


def _group_bytes(group_id: str) -> int:
    """Return about how many bytes a group takes beside its members."""
    return 1024 + len(group_id)


def _answer(effect: Answer) -> None:
    waiter, answer = cast("asyncio.Future[JoinAnswer | SyncAnswer]", effect.waiter), effect.answer
    if not waiter.done():  # cancelled if the client has disconnected
        waiter.set_result(answer)


async def stored_code(stored: "asyncio.Future[None]") -> ErrorCode:
    """Wait for a write of the offset store; return the error code of its outcome."""
    try:
        await stored
    except OffsetsFailedError:
        return ErrorCode.coordinator_not_available
    return ErrorCode.none


def _log_failure(stored: "asyncio.Future[None]") -> None:
    if stored.exception() is not None:
        LINES.write(_log, "error", "group not stored", error=str(stored.exception()))


def _new_id() -> str:
    return str(uuid.uuid4())
