"""Named leases: a name brings back the same PID, under a generation that fences the one before.

Who crashed needs to remember nothing but its name. A grant, in this order:

    1. the generation is raised in the binding, by a conditional write, durably
    2. from then on lower generations of the PID are fenced
    3. what is in flight of the PID lands
    4. the next sequence is told: persisted H + 1

Without 2 and 3 a batch of the one before could still come in behind what 4 tells, and the record
that stands there for it would pass for a duplicate (the model's named-race).
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import structlog

from pidlease.coordination.names import (
    RELEASED,
    Binding,
    BindingConflictError,
    NameBindings,
)
from pidlease.core.judge import Age
from pidlease.core.pid import Policy, policy_of
from pidlease.engine.leasing import Leases
from pidlease.storage.io_pool import IoPool

#: A generation begins below this, at random: who guesses one, or remembers one of another PID,
#: is fenced or refused, not taken for its successor.
GENERATION_START_MAX: Final = 2**30
#: Fences every generation that a batch can have.
FENCED_FOR_EVER: Final = RELEASED
#: How long a grant waits for what is in flight, in seconds.
_LANDING_SECONDS: Final = 10.0
_LANDING_POLL_SECONDS: Final = 0.002
#: How often a binding that others change at the same time is looked at again.
_ATTEMPTS_MAX: Final = 20

_log = structlog.get_logger(__name__)

#: Leases a PID of a policy; may wait for the next block.
LeaseFresh = Callable[[Policy], Awaitable[int]]


class NameConflictError(Exception):
    """A name is bound to a PID of another policy."""


class UnknownNameError(Exception):
    """Nothing is bound to a name."""


class NameTakenError(Exception):
    """Another one was granted the name since."""


class NameBusyError(Exception):
    """A name cannot be granted now; try again."""


class Held(NamedTuple):
    """What a producer was granted before."""

    pid: int
    generation: int


class NameGrant(NamedTuple):
    """What was granted to a name.

    Attributes:
        pid: its PID.
        generation: the one to use.
        former: the PID before it, whose numbering goes on; -1: none.
    """

    pid: int
    generation: int
    former: int


class NamedLeases:
    """Grants leases to names.

    Parameters:
        bindings: which PID each name has.
        pool: the threads for it.
        leases: all leases; told whom to fence.
    """

    def __init__(self, bindings: NameBindings, pool: IoPool, leases: Leases) -> None:
        self._bindings = bindings
        self._pool = pool
        self._leases = leases
        self._random = random.SystemRandom()
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        #: Names, and the PIDs before, of PIDs that are bound; as far as they were seen here.
        self.names: dict[int, str] = {}
        self._former: dict[int, int] = {}
        leases.on_ended.append(self._forget)

    async def load(self) -> None:
        """Fence what was fenced before this start. Before anything is judged.

        Raises:
            NamesError: it cannot be known.
        """
        for number, (name, binding) in enumerate(
            (await self._pool.run(self._bindings.all)).items()
        ):
            if self._lasts(binding.pid) or self._lasts(binding.former):
                self._note(name, binding)
            if number % 1000 == 0:
                await asyncio.sleep(0)

    def former(self, pid: int) -> int:
        """The PID that the name of a PID had before; -1: none."""
        return self._former.get(pid, -1)

    # ------------------------------------------------------------------ granting

    async def grant(
        self,
        name: str,
        policy: Policy,
        lease: LeaseFresh,
        *,
        renew: bool = False,
        held: Held | None = None,
    ) -> NameGrant:
        """Grant a lease to a name. Nothing of its PID is in flight when this returns.

        Parameters:
            name: the name, checked.
            policy: what its PID is judged by.
            lease: leases a fresh PID, for a name that has none.
            renew: whether the lease is about to end: a fresh PID, unless the last one has come
                that way and the one before it still lasts.
            held: what the caller was granted before; None: it takes the name over from whoever
                has it.

        Raises:
            NameTakenError: the name is not the caller's any more.
            NameConflictError: the name has a PID of another policy.
            NameBusyError: others are granted the name again and again, or what is in flight does
                not land.
            NamesError: the binding cannot be changed now, or it is not known whether it was.
            NoPidError: there is no PID to be had.
        """
        async with self._alone(name):
            binding = await self._raise(name, policy, lease, renew, held)
            self._note(name, binding)
            await self._landed(binding)
            return NameGrant(*binding)

    async def release(self, name: str) -> None:
        """Let go of a name: who writes under it is fenced, and who asks for it is new.

        Raises:
            UnknownNameError: it has no PID.
            NameBusyError: it is being granted again and again.
            NamesError: it cannot be changed now, or it is not known whether it was.
        """
        async with self._alone(name):
            for _ in range(_ATTEMPTS_MAX):
                binding = await self.binding(name)
                if binding is None:
                    raise UnknownNameError(f"no producer has the name {name!r}")
                released = binding._replace(generation=RELEASED)
                if await self._change(name, binding, released):
                    self._note(name, released)
                    return
            raise NameBusyError(f"the name {name!r} is being granted to others; try again")

    async def binding(self, name: str) -> Binding | None:
        """What a name is bound to; None: it is free.

        Raises:
            NamesError: it cannot be known.
        """
        binding = await self._pool.run(lambda: self._bindings.get(name))
        return None if binding is None or binding.generation == RELEASED else binding

    async def _raise(
        self,
        name: str,
        policy: Policy,
        lease: LeaseFresh,
        renew: bool,  # noqa: FBT001 - as `grant` has it
        held: Held | None,
    ) -> Binding:
        fresh = -1
        for _ in range(_ATTEMPTS_MAX):
            binding = await self._pool.run(lambda: self._bindings.get(name))
            if held is not None and (binding is None or held != binding[:2]):
                raise NameTakenError(f"another one was granted the name {name!r} since")
            if binding is not None and self._goes_on(binding, renew=renew):
                if policy_of(binding.pid) is not policy:
                    raise NameConflictError(_conflict(name, binding.pid, policy))
                new = binding._replace(generation=binding.generation + 1)
            else:
                fresh = fresh if fresh >= 0 else await lease(policy)
                new = self._fresh(binding, fresh)
                if new.former >= 0 and policy_of(new.former) is not policy:
                    raise NameConflictError(_conflict(name, new.former, policy))
            if await self._change(name, binding, new):
                return new
        raise NameBusyError(f"the name {name!r} is being granted to others; try again")

    def _goes_on(self, binding: Binding, *, renew: bool) -> bool:
        """Whether a name keeps its PID."""
        if binding.generation == RELEASED or not self._lasts(binding.pid):
            return False
        return not renew or self._lasts(binding.former)

    def _fresh(self, binding: Binding | None, pid: int) -> Binding:
        """A binding to a fresh PID; the one before is remembered as long as it lasts."""
        generation = self._random.randrange(GENERATION_START_MAX)
        last = binding is not None and binding.generation != RELEASED
        former = binding.pid if binding is not None and last and self._lasts(binding.pid) else -1
        return Binding(pid, generation, former)

    def _lasts(self, pid: int) -> bool:
        """Whether the lease of a PID has not ended, as far as is known here."""
        return pid >= 0 and (pid in self._leases or self._leases.age(pid, -1) is Age.YOUNG)

    async def _change(self, name: str, expected: Binding | None, new: Binding) -> bool:
        """Change a binding; False: it is not what it was taken for."""
        try:
            await self._pool.run(lambda: self._bindings.change(name, expected, new))
        except BindingConflictError:
            return False
        return True

    # ------------------------------------------------------------------ fencing

    def _note(self, name: str, binding: Binding) -> None:
        fences = self._leases.fences
        fences[binding.pid] = max(binding.generation, fences.get(binding.pid, -1))
        self.names[binding.pid] = name
        if binding.former >= 0:
            fences[binding.former] = FENCED_FOR_EVER
            self._former[binding.pid] = binding.former

    def _forget(self, pid: int) -> None:
        self.names.pop(pid, None)
        self._former.pop(pid, None)

    async def _landed(self, binding: Binding) -> None:
        deadline = time.monotonic() + _LANDING_SECONDS
        while any(self._leases.is_flying(pid) for pid in (binding.pid, binding.former)):
            if time.monotonic() > deadline:
                raise NameBusyError("what is in flight of the one before does not land; try again")
            await asyncio.sleep(_LANDING_POLL_SECONDS)

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """One at a time for each name; conditional writes settle it between servers."""
        lock, waiting = self._locks.get(name, (asyncio.Lock(), 0))
        self._locks[name] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._locks[name]
            if waiting == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, waiting - 1)


def _conflict(name: str, pid: int, policy: Policy) -> str:
    known = policy_of(pid)
    other = known.name.lower() if known is not None else "no policy"
    return f"the name {name!r} has a PID of policy {other}, not {policy.name.lower()}"
