"""Named leases: a name gets the same PID again, under a generation that fences the previous one.

A producer that restarts needs to remember nothing but its name. A grant has four steps:

    1. raise the generation in the binding, by a conditional write, durably
    2. fence lower generations of the PID
    3. wait until the PID has no batch in flight
    4. return the next sequence number: the highest one in the log, plus 1

Without 2 and 3 a batch of the previous producer could be appended after step 4. The new producer's
first record would then have a sequence number that is in the log, and count as a duplicate.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Final

import structlog

from pidlease.coordination.grouped_call import GroupedCall
from pidlease.coordination.name_bindings import (
    FENCED_MAX,
    NAMES_AT_ONCE_MAX,
    RELEASED,
    Binding,
    BindingChange,
    BindingConflictError,
    NameBindings,
    NamesError,
    StoredBinding,
)
from pidlease.core.judge import Age
from pidlease.core.lease import NO_PID, LeaseWanted
from pidlease.core.pid import Policy, policy_named, policy_of
from pidlease.engine.append_outcome import FENCED_FOR_EVER
from pidlease.engine.leases.leases import Leases
from pidlease.engine.partition import Partition
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.io_pool import IoPool

#: A generation begins below this, at random: a producer that guesses it, or has one of another
#: PID, is fenced or refused, and does not count as the successor.
GENERATION_START_MAX: Final = 2**30
#: How long a grant waits for batches in flight, in seconds.
_LANDING_SECONDS: Final = 10.0
_LANDING_POLL_SECONDS: Final = 0.002
#: How often a binding that others change at the same time is read again.
_ATTEMPTS_MAX: Final = 20
#: Grants and releases that wait at once.
_WAITING_MAX: Final = 1000
#: PIDs of failed grants, kept for the next attempt.
_SPARE_MAX: Final = 1000
#: Released names with expired leases that a start unbinds.
_UNBOUND_MAX: Final = 200

_log = structlog.get_logger(__name__)

#: Leases a PID of a policy; may wait for the next block.
LeaseFresh = Callable[[Policy], Awaitable[int]]


class NameConflictError(Exception):
    """A name is bound to a PID of another policy."""


class UnknownNameError(Exception):
    """Nothing is bound to a name."""


class NameTakenError(Exception):
    """The name was granted to another producer since."""


class NameBusyError(Exception):
    """A name cannot be granted now; try again."""


class NamedLeases:
    """Grants leases to names.

    Parameters:
        bindings: which PID each name has.
        pool: the threads for the bindings; not the log's, because a coordinator may be slow.
        leases: all leases; gets the generations to fence.
    """

    def __init__(self, bindings: NameBindings, pool: IoPool, leases: Leases) -> None:
        self._bindings = bindings
        self._pool = pool
        self._leases = leases
        # The grants of many names share the coordinator's reads, and its writes.
        self._get: Final = GroupedCall(self._get_many, NAMES_AT_ONCE_MAX)
        self._change: Final = GroupedCall(self._change_many, NAMES_AT_ONCE_MAX)
        self._random = random.SystemRandom()
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._waiting = 0
        self._spare: dict[str, int] = {}
        #: Names by PID.
        self.names: Final = leases.bound_names

    async def load(self) -> None:
        """Restore all fences; call before the first batch is validated.

        Raises:
            NamesError: the bindings cannot be read.
        """
        ended = []
        for number, (name, binding) in enumerate(
            (await self._pool.run(self._bindings.all)).items()
        ):
            self.note_grant(name, binding)
            may_write = any(pid in self._leases for pid in binding.all_pids())
            if binding.generation == RELEASED and not may_write:
                ended.append((name, binding))
            if number % 1000 == 0:
                await asyncio.sleep(0)
        for name, binding in ended[: 0 if self._leases.keeps_fences else _UNBOUND_MAX]:
            await self._unbind(name, binding)

    async def _unbind(self, name: str, binding: Binding) -> None:
        """Unbind a released name: no producer is left to fence."""
        try:
            await self._pool.run(lambda: self._bindings.change(name, binding, None))
        except (BindingConflictError, NamesError) as error:
            LINES.write(_log, "warning", "a released name stays bound", kind_of(error),
                        name=name, reason=str(error))  # fmt: skip

    def note_grant(self, name: str, binding: Binding) -> None:
        """Note a grant that another server, or this one before its start, may have made."""
        self._lasts(binding)
        self._note(name, binding)

    async def landed(self, pid: int) -> None:
        """Wait until nothing of a PID, and of the former one of its name, is in flight here.

        Raises:
            NameBusyError: batches stay in flight.
        """
        await self._landed(Binding(pid, 0, self.former(pid)))

    def former(self, pid: int) -> int:
        """Return the PID that the name of a PID had before; -1: none."""
        return self._leases.formers.get(pid, -1)

    # ------------------------------------------------------------------ grants

    async def grant(
        self,
        name: str,
        wanted: LeaseWanted,
        partitions: Sequence[Partition],
        lease: LeaseFresh,
        *,
        unknown: int = NO_PID,
    ) -> Binding:
        """Grant a lease to a name. Nothing of its PID is in flight when this returns.

        Parameters:
            name: the name, checked.
            wanted: the request. With `renew`: a fresh PID, unless the last one came by a renewal
                and the lease of the one before it has not ended.
            partitions: the partitions that the request is for.
            lease: leases a fresh PID, for a name that has none.
            unknown: the PID of the grant before, which the owner of a partition does not know: the
                name does not keep it.

        Returns:
            The name's new binding.

        Raises:
            NameTakenError: the name was granted to another producer since.
            NameConflictError: the name has a PID of another policy.
            NameBusyError: others change the binding again and again, too many requests wait, or
                batches stay in flight.
            NamesError: the binding cannot be changed now, or whether it was is unknown.
            NoPidError: no PID can be leased now.
        """
        async with self._alone(name):
            binding = await self._raise(name, wanted, partitions, lease, unknown)
            self._note(name, binding)
            former, now_ms = max(binding.former, -1), self._leases.now_ms()
            self._leases.recent.granted(name, binding.pid, binding.generation, former, now_ms)
            await self._landed(binding)
            if binding.pid not in self._leases:
                raise NameBusyError("the lease of its PID has ended meanwhile; try again")
            return binding

    async def release(self, name: str) -> None:
        """Release a name: its producer is fenced, and the next one gets a fresh PID.

        Raises:
            UnknownNameError: the name has no PID.
            NameBusyError: others change the binding again and again, or too many requests wait.
            NamesError: the binding cannot be changed now, or whether it was is unknown.
        """
        async with self._alone(name):
            released: Binding | None = None
            for _ in range(_ATTEMPTS_MAX):
                stored = await self._stored(name)
                # The response to the first change may have been lost.
                done = released is not None and stored.binding == released
                binding = stored.binding if done else _unreleased(stored)
                if binding is None:
                    raise UnknownNameError(f"no producer has the name {name!r}")
                released = binding._replace(generation=RELEASED)
                if done or await self._changed(BindingChange(name, stored, released)):
                    self._note(name, released)
                    now_ms = self._leases.now_ms()
                    self._leases.recent.released(name, released.pid, now_ms)
                    return
            raise NameBusyError(f"the name {name!r} is being granted to others; try again")

    async def binding(self, name: str) -> Binding | None:
        """Return what a name is bound to; None: it is free.

        Raises:
            NamesError: the binding cannot be read.
        """
        return _unreleased(await self._get(name))

    async def _stored(self, name: str) -> StoredBinding:
        """Read a binding, and note what a change with an unknown outcome may have led to.

        Raises:
            NamesError: it cannot be read.
        """
        stored = await self._get(name)
        bound = stored.binding
        if bound is not None:
            self._drop_spare(name, bound)
            if bound.generation == RELEASED:
                self._note(name, bound)
        return stored

    async def _raise(
        self,
        name: str,
        wanted: LeaseWanted,
        partitions: Sequence[Partition],
        lease: LeaseFresh,
        unknown: int,
    ) -> Binding:
        held = (wanted.pid, wanted.generation) if wanted.pid >= 0 else None
        for _ in range(_ATTEMPTS_MAX):
            stored = await self._stored(name)
            bound = stored.binding
            if held is not None and (bound is None or held != bound[:2]):
                if bound is not None and _was_granted(held, bound):
                    return bound
                raise NameTakenError(f"the name {name!r} was granted to another producer since")
            last = bound if bound is not None and self._lasts(bound) else None
            if last is not None and last.generation != RELEASED:
                _check_policy(name, last.pid, wanted.policy)
            keeps = last is None or last.pid != unknown
            if last is not None and keeps and self._goes_on(last, wanted, partitions):
                new = last._replace(generation=last.generation + 1)
            else:
                if bound is not None and held is not None and not keeps:
                    # Two grants are one renewal, by one: else a repeated request is not recognised.
                    bound = bound._replace(generation=bound.generation - 1)
                new = await self._fresh(name, bound, wanted, lease)
            if await self._changed(BindingChange(name, stored, new)):
                self._spare.pop(name, None)
                return new
        raise NameBusyError(f"the name {name!r} is being granted to others; try again")

    def _goes_on(
        self, binding: Binding, wanted: LeaseWanted, partitions: Sequence[Partition]
    ) -> bool:
        """Return whether a name with an unexpired lease keeps its PID."""
        if binding.generation == RELEASED or (wanted.renew and not self._is_fresh(binding)):
            return False
        # If a partition lost history since the lease, this PID could not begin there; a fresh one
        # can.
        return policy_named(wanted.policy) is not Policy.STRICT or all(
            each.producer(binding.pid) is not None
            or self._leases.age(binding.pid, each.hole_ms) is Age.YOUNG
            for each in partitions
        )

    def _is_fresh(self, binding: Binding) -> bool:
        """Return whether a PID came by a renewal in the last half of a lease."""
        half_ms = self._leases.lease_ms // 2
        recent = binding.granted_ms + half_ms > self._leases.now_ms()
        return recent and binding.former in self._leases

    async def _fresh(
        self, name: str, bound: Binding | None, wanted: LeaseWanted, lease: LeaseFresh
    ) -> Binding:
        """Make a binding to a fresh PID; it names the former PID until the end of its lease."""
        policy = policy_named(wanted.policy)
        pid = self._spare.pop(name, -1)
        is_usable = pid in self._leases and policy_of(pid) is policy
        if not is_usable or pid in self._leases.fences:  # another server may have granted it
            pid = await lease(policy)
        while len(self._spare) >= _SPARE_MAX:
            self._spare.pop(next(iter(self._spare)))
        # If the change fails, or its outcome is unknown, the next attempt uses the same PID.
        self._spare[name] = pid
        generation = self._random.randrange(GENERATION_START_MAX)
        fresh = Binding(pid, generation, -1, self._leases.now_ms())
        if bound is None:
            return fresh
        if bound.generation == RELEASED:
            if self._may_write(bound.pid):
                fresh = fresh.after_release_of(bound.pid)
            return self._fencing(fresh, bound)
        # A name's generations rise across PIDs: by one for a renewal, by two for a takeover. So a
        # renewal that is requested again is recognised.
        generation = bound.generation + (2 if wanted.pid < 0 else 1)
        # The last PID may have expired without a write, while the one before has the numbers.
        former = next((p for p in (bound.pid, bound.former) if p in self._leases), -1)
        if self._leases.keeps_fences:
            # The owner of a partition knows whether the PID's appends have kept its lease.
            former = bound.pid
        fresh = fresh._replace(generation=generation, former=former)
        return self._fencing(fresh, bound, wanted.pid)

    def _may_write(self, pid: int) -> bool:
        """Whether a producer may still have a PID: by its lease, or because others know of it."""
        return self._leases.keeps_fences or pid in self._leases

    def _fencing(self, fresh: Binding, bound: Binding, held: int = -1) -> Binding:
        """Return a fresh binding that also fences all other PIDs of the binding before it.

        Parameters:
            held: a PID that is to be renewed: named even after its lease, so that a renewal that is
                requested again is recognised.

        Raises:
            NameBusyError: there are too many of them.
        """
        until_ms, every = self._leases.fence_until_ms(), self._leases.keeps_fences
        fenced = dict.fromkeys(bound.pids(), until_ms) | dict(bound.fenced)
        left = tuple(
            (pid, until_ms)
            for pid, until_ms in fenced.items()
            if pid not in fresh.pids()
            # A lease begins anew at a start of its server, so it may last longer.
            and (until_ms > self._leases.now_ms() or not every)
            and (pid == held or self._may_write(pid))
        )
        if len(left) > FENCED_MAX:
            raise NameBusyError(
                f"{FENCED_MAX} other PIDs of the name have leases that have not ended; try again "
                "when one has"
            )
        # Where the fresh PID does not continue the last one, it continues none.
        before = {bound.pid, *bound.formers} if fresh.former >= 0 else set()
        continues = sum(pid in before for pid, _ in left)
        return fresh._replace(fenced=left, continues=continues)

    def _lasts(self, binding: Binding) -> bool:
        """Return whether the lease of a name's PID has not ended; if so, keep it here.

        A server without the lease, after a crash before the next snapshot, or because another
        server granted it, takes the time of the grant from the binding.
        """
        if binding.granted_ms + self._leases.lease_ms <= self._leases.now_ms():
            return binding.pid in self._leases
        self._leases.hold(binding.pid, binding.granted_ms)
        return True

    async def _changed(self, change: BindingChange) -> bool:
        """Change a binding; False: it is not the expected one."""
        try:
            await self._change(change)
        except BindingConflictError:
            return False
        return True

    async def _get_many(self, names: Sequence[str]) -> Sequence[StoredBinding | NamesError]:
        return await self._pool.run(lambda: self._bindings.get_many(names))

    async def _change_many(
        self, changes: Sequence[BindingChange]
    ) -> Sequence[BindingConflictError | NamesError | None]:
        return await self._pool.run(lambda: self._bindings.change_many(changes))

    # ------------------------------------------------------------------ fences

    def _note(self, name: str, binding: Binding) -> None:
        """Fence the name's previous producers; a fence ends with the lease of its PID."""
        fences, every = self._leases.fences, self._leases.keeps_fences
        self._drop_spare(name, binding)
        if every or binding.pid in self._leases:
            fences[binding.pid] = max(binding.generation, fences.get(binding.pid, -1))
            self.names[binding.pid] = name
        # The last ones were given up when this PID was granted.
        until_ms = binding.granted_ms + self._leases.lease_ms
        gone = [*((pid, until_ms) for pid in binding.pids()[1:]), *binding.fenced]
        for pid, until_ms in gone:
            if not every and until_ms > self._leases.now_ms():
                self._leases.hold(pid, until_ms - self._leases.lease_ms)
            if every or pid in self._leases:
                fences[pid] = FENCED_FOR_EVER
        for pid, former in pairwise([binding.pid, *binding.formers]):
            if every or pid in self._leases:
                self._leases.formers[pid] = former

    def _drop_spare(self, name: str, binding: Binding) -> None:
        """Grant no PID again that a change with an unknown outcome, or another server, granted."""
        if self._spare.get(name) in binding.all_pids():
            del self._spare[name]

    async def _landed(self, binding: Binding) -> None:
        deadline = time.monotonic() + _LANDING_SECONDS
        while any(self._leases.is_in_flight(pid) for pid in (binding.pid, binding.former)):
            if time.monotonic() > deadline:
                raise NameBusyError(
                    "batches of the previous producer are still in flight; try again"
                )
            await asyncio.sleep(_LANDING_POLL_SECONDS)

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """Admit one request at a time for each name; conditional writes order those of servers."""
        if self._waiting >= _WAITING_MAX:
            raise NameBusyError("too many requests wait for the coordinator; try again")
        lock, waiting = self._locks.get(name, (asyncio.Lock(), 0))
        self._locks[name] = (lock, waiting + 1)
        self._waiting += 1
        try:
            async with lock:
                yield
        finally:
            self._waiting -= 1
            lock, waiting = self._locks[name]
            if waiting == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, waiting - 1)


def _unreleased(stored: StoredBinding) -> Binding | None:
    binding = stored.binding
    return None if binding is None or binding.generation == RELEASED else binding


def _was_granted(held: tuple[int, int], bound: Binding) -> bool:
    """Return whether a renewal was granted already, and its response was lost.

    A takeover since then would have raised the generation further.
    """
    pid, generation = held
    before = {bound.former, *(pid for pid, _ in bound.fenced)}
    return pid in before and bound.generation == generation + 1


def _check_policy(name: str, pid: int, policy: str) -> None:
    known = policy_of(pid)
    if known is not policy_named(policy):
        other = known.name.lower() if known is not None else "no policy"
        raise NameConflictError(f"the name {name!r} has a PID of policy {other}, not {policy}")
