"""Grants lease requests: a fresh PID, a name's PID, or where a leased PID continues.

A lease does not change a producer's state: only batches in the log do.
"""

import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from pidlease.coordination.name_bindings import Binding, check_name
from pidlease.coordination.pid_sequence import SequenceError
from pidlease.core.judge import Age
from pidlease.core.lease import Lease, LeaseWanted
from pidlease.core.pid import Policy, policy_named, policy_of
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.append_outcome import FENCED_FOR_EVER
from pidlease.engine.engine import Engine
from pidlease.engine.leases.leases import NoPidError
from pidlease.engine.named_leases import GENERATION_START_MAX, NameBusyError
from pidlease.engine.partition import Partition
from pidlease.engine.partition_lookup import PartitionLookup
from pidlease.storage.errors import LogError, NotOwnerError

#: How long the leases of a request wait for the next block of PIDs, in seconds.
_BLOCK_WAIT_SECONDS: Final = 2.0


class NameNeededError(Exception):
    """The request needs a name, or must not have one."""


class BadNameError(Exception):
    """The name is invalid."""


class WrongPolicyError(Exception):
    """The PID has a policy that is not leased here."""


class UnknownPidError(Exception):
    """The PID was never leased, or its lease has ended."""


class LeaseService:
    """Grants the leases of one request; those under one name share one grant.

    Parameters:
        batch: all leases that the request wants.
        ask: asks the owner of a partition where a PID continues on it, if another active server
            owns it; None: it is not asked.
    """

    def __init__(
        self,
        engine: Engine,
        batch: Sequence[LeaseWanted],
        ask: Callable[[LeaseWanted], Awaitable[Lease]] | None = None,
    ) -> None:
        self._engine = engine
        self._ask: Final = ask
        named = [TopicPartition(each.topic, each.partition) for each in batch]
        self._lookup = PartitionLookup(engine, named)
        #: The partitions for which the batch wants the same, by its terms.
        self._same: dict[tuple[object, ...], list[TopicPartition]] = {}
        for each, partition in zip(batch, named, strict=True):
            self._same.setdefault(_terms(each), []).append(partition)
        self._random = random.SystemRandom()
        self._grants: dict[tuple[object, ...], Binding | Exception] = {}
        #: What owners have said about a PID on a partition.
        self._answers: dict[tuple[TopicPartition, int], Lease | Exception] = {}
        self._assigned = ""
        #: When the leases wait no longer for the next block; None: none waits.
        self._give_up: float | None = None

    async def lease(self, wanted: LeaseWanted) -> Lease:
        """Lease a PID, or return where a leased one continues.

        Raises:
            UnknownTopicError: the topic does not exist.
            UnknownPartitionError: the topic has no such partition.
            AwaitedTopicError: the partition cannot be read yet, or it is unknown if it exists.
            WrongPolicyError: the PID has a policy that is not leased.
            UnknownPidError: the PID was never leased, or its lease has ended.
            NameNeededError: policy monotonic without a name, or both PID and name without renew.
            BadNameError: the name is too long, or not UTF-8.
            NameTakenError: the name to renew was granted to another producer since.
            NameConflictError: the name has a PID of another policy.
            NameBusyError: the name cannot be granted now; try again.
            NamesError: bindings of names cannot be read or changed now; try again.
            NoPidError: no PID can be leased now; try again.
            LogStoppedError: the partition is stopped, so the next sequence number is unknown.
            NotOwnerError: another active server owns the partition, and is not to be asked.
        """
        began = time.monotonic()
        try:
            return await self._lease(wanted)
        finally:
            self._engine.counts.lease_seconds["http"].observe(time.monotonic() - began)

    async def _lease(self, wanted: LeaseWanted) -> Lease:
        partition = await self._lookup.find(TopicPartition(wanted.topic, wanted.partition))
        name = self._name(wanted)
        asks = bool(partition.elsewhere) and self._ask is not None
        if (name or wanted.pid >= 0) and not asks:
            # Check before the generation is raised: the next sequence number could not be returned.
            partition.check_not_stopped()
        if wanted.pid >= 0 and not (name and wanted.renew):
            if name:
                raise NameNeededError("give pid or name; both together only with renew")
            if asks:
                return await self._of_owner(partition, wanted.pid)
            await self._sure(partition, wanted.pid)
            return await self._known(partition, wanted.pid)
        if name:
            return await self._named(partition, name, wanted)
        policy = policy_named(wanted.policy)
        if policy is Policy.MONOTONIC:
            raise NameNeededError("policy monotonic needs a name; give one")
        pid = await self._fresh(policy)
        return self._lease_of(partition, pid, self._random_generation(), (0, 0))

    def _name(self, wanted: LeaseWanted) -> str:
        if wanted.assign_name and not wanted.name:
            self._assigned = self._assigned or f"producer-{uuid.uuid4()}"
            return self._assigned
        if wanted.name:
            try:
                check_name(wanted.name)
            except ValueError as error:
                raise BadNameError(str(error)) from None
        return wanted.name or ""

    async def _fresh(self, policy: Policy) -> int:
        leases = self._engine.leases
        while True:
            try:
                pid = leases.lease(policy)
            except NoPidError as error:
                now = time.monotonic()
                if self._give_up is None:
                    self._give_up = now + _BLOCK_WAIT_SECONDS
                left = self._give_up - now
                # If the block has PIDs left, the lease table is full.
                if leases.blocks.left or left <= 0 or not await leases.blocks.fetched(left):
                    leases.refuse(policy, error)
                    raise
            else:
                # Not for the whole request: it may need many blocks from a slow coordinator.
                self._give_up = None
                return pid

    async def _named(self, partition: Partition, name: str, wanted: LeaseWanted) -> Lease:
        grant = await self._grant(name, wanted)
        if partition.elsewhere:
            found = await self._of_owner(partition, grant.pid)
            # Not the owner's generation: the name may have been granted again since this grant.
            return replace(found, name=name, generation=grant.generation)
        await self._sure(partition, grant.pid)
        numbers = _next(partition, grant.pid)
        return self._lease_of(partition, grant.pid, grant.generation, numbers, name)

    def _lease_of(
        self,
        partition: Partition,
        pid: int,
        generation: int,
        numbers: tuple[int, int],
        name: str | None = None,
    ) -> Lease:
        expire_ms = self._engine.leases.expire_ms(pid)
        return Lease(*partition.name, pid, generation, *numbers, expire_ms, name=name)

    async def _of_owner(self, partition: Partition, pid: int) -> Lease:
        """Ask the owner of a partition where a PID continues.

        The owner reads the fences first, so it knows of the grant that this question follows.
        """
        if self._ask is None:
            raise NotOwnerError(f"{partition.name}: {partition.elsewhere}")
        found = self._answers.get((partition.name, pid))
        if found is None:
            try:
                found = await self._ask(LeaseWanted(*partition.name, pid))
            except (UnknownPidError, NameBusyError) as error:
                found = error
            self._answers[partition.name, pid] = found
        if isinstance(found, Exception):
            raise found
        return found

    async def _sure(self, partition: Partition, pid: int) -> None:
        """Wait until the state of a PID on the partition is certain.

        Raises:
            NameBusyError: it cannot be determined now.
        """
        if self._engine.fences is not None:
            # Another active server may have granted the name just before this question.
            try:
                await self._engine.fences.read()
            except LogError as error:
                raise NameBusyError(f"{error}; try again") from error
            await self._engine.naming.landed(pid)
        if not await partition.sure_of(pid):
            raise NameBusyError(
                f"what {partition.name} holds of PID {pid} cannot be known now; try again"
            )

    async def _grant(self, name: str, wanted: LeaseWanted) -> Binding:
        """Grant once for all leases of the batch under a name; a refusal is kept as well."""
        held = (wanted.pid, wanted.generation) if wanted.pid >= 0 else None
        key = name, wanted.policy, wanted.renew, held
        found = self._grants.get(key)
        if found is None:
            try:
                found = await self._granted(name, wanted)
            except Exception as error:
                self._grants[key] = error
                raise
            self._grants[key] = found
        if isinstance(found, Exception):
            raise found
        return found

    async def _granted(self, name: str, wanted: LeaseWanted) -> Binding:
        """Grant; with a fresh PID if an owner of another partition does not know the last one."""
        grant = partial(self._engine.naming.grant, name)
        own = self._partitions(wanted)
        found = await grant(wanted, own, self._fresh)
        if not await self._is_unknown_elsewhere(wanted, found.pid):
            return found
        if wanted.pid >= 0:
            wanted = replace(wanted, pid=found.pid, generation=found.generation)
        return await grant(wanted, own, self._fresh, unknown=found.pid)

    async def _is_unknown_elsewhere(self, wanted: LeaseWanted, pid: int) -> bool:
        """Return whether an owner of a partition of the batch does not know a PID."""
        for each in self._same[_terms(wanted)] if self._ask is not None else ():
            partition = self._engine.partition(*each)
            if partition is not None and partition.elsewhere:
                try:
                    await self._of_owner(partition, pid)
                except UnknownPidError:
                    return True
                except NameBusyError:
                    continue  # the lease for this partition gets the error
        return False

    def _partitions(self, wanted: LeaseWanted) -> list[Partition]:
        """Return the partitions for which the batch wants the same, of those that are here."""
        found = (self._engine.partition(*each) for each in self._same[_terms(wanted)])
        return [each for each in found if each is not None and not each.log.stopped]

    def _random_generation(self) -> int:
        return self._random.randrange(GENERATION_START_MAX)

    async def _known(self, partition: Partition, pid: int) -> Lease:
        leases, naming = self._engine.leases, self._engine.naming
        if policy_of(pid) not in (Policy.STRICT, Policy.MONOTONIC):
            raise WrongPolicyError(f"PID {pid} has a policy that is not leased")
        if partition.producer(pid) is None and leases.unsure(pid):
            await self._look(pid)
        state, fence = partition.producer(pid), leases.fences.get(pid, -1)
        if fence == FENCED_FOR_EVER:
            raise UnknownPidError(f"the name of PID {pid} has another PID now; lease by the name")
        age = Age.YOUNG if state is not None else leases.age(pid, partition.hole_ms)
        # A name goes on with its PID of policy monotonic, whatever history is missing.
        goes_on = policy_of(pid) is Policy.MONOTONIC and pid in leases
        if age is Age.NEVER or (age is Age.OLD and not goes_on):
            raise UnknownPidError(
                f"PID {pid} was never leased, or its lease has ended, or the topic was created"
                " again, or lost records, since; lease a new one with pid -1, or by the name"
            )
        numbers = _next(partition, pid)
        if fence >= 0:
            generation = fence
        else:
            generation = self._random_generation() if state is None else state.generation + 1
        return self._lease_of(partition, pid, generation, numbers, naming.names.get(pid))

    async def _look(self, pid: int) -> None:
        """Learn whether another server has leased a PID.

        Raises:
            NameBusyError: the coordinator cannot be read now.
        """
        try:
            await self._engine.leases.look()
        except SequenceError as error:
            raise NameBusyError(
                f"whether another server has leased PID {pid} cannot be looked up now: {error};"
                " try again"
            ) from error


def _terms(wanted: LeaseWanted) -> tuple[object, ...]:
    """Return a request's terms, without the partition."""
    return (
        wanted.pid, wanted.generation, wanted.name, wanted.assign_name, wanted.policy, wanted.renew,
    )  # fmt: skip


def _next(partition: Partition, pid: int) -> tuple[int, int]:
    """Return the next sequence number of a PID, and where its name's numbering continues."""
    state = partition.producer(pid)
    if state is not None:
        return state.high + 1, state.high + 1
    before = partition.former_state(pid)
    return 0, 0 if before is None else before.high + 1
