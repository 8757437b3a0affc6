"""lease_pid: a fresh PID for a partition, where a known one goes on, or the one of a name.

No lease changes what is known of a producer: only batches in the log do.
"""

import random
import time
import uuid
from collections.abc import Sequence, Set
from typing import Final, NamedTuple

from pidlease.coordination.name_bindings import check_name
from pidlease.coordination.pid_sequence import SequenceError
from pidlease.core.judge import Age
from pidlease.core.pid import Policy, policy_of
from pidlease.engine.append_outcome import FENCED_FOR_EVER
from pidlease.engine.engine import Engine
from pidlease.engine.leases.leases import NoPidError
from pidlease.engine.named_leases import (
    GENERATION_START_MAX,
    Held,
    NameBusyError,
    NameGrant,
    Wanted,
)
from pidlease.engine.partition import Partition
from pidlease.engine.topics.topic_table import AwaitedTopicError, UnknownTopicError
from pidlease.storage.snapshots import TopicPartition
from pidlease.storage.topics.topic_store import Topic

#: How long a lease waits for the next block of PIDs, in seconds.
_BLOCK_WAIT_SECONDS: Final = 2.0


class Granted(NamedTuple):
    """A lease on one partition.

    Attributes:
        pid: the PID.
        generation: the one to use.
        sequence_number: of the first record to be sent.
        expire_ms: when the lease ends, in ms since 1970.
        resume_at: where a name's own numbering goes on. Above `sequence_number` where the name has
            had another PID before, and nothing is known of this one on the partition.
        name: that the PID is bound to; empty: none.
    """

    pid: int
    generation: int
    sequence_number: int
    expire_ms: int
    resume_at: int = 0
    name: str = ""


class Ask(NamedTuple):
    """What is asked for.

    Attributes:
        topic: the topic that it is to write to,
        partition: and the partition.
        pid: one that was leased before; -1: a new one, or the name's.
        generation: with a name to renew, the one that was granted with the PID.
        name: the producer's; empty: it has none.
        assign_name: whether it is to be given a name.
        policy: what a new PID is judged by: strict or monotonic.
        renew: whether the name's lease is about to end (see `NamedLeases.grant`).
    """

    topic: str
    partition: int
    pid: int = -1
    generation: int = -1
    name: str = ""
    assign_name: bool = False
    policy: Policy = Policy.STRICT
    renew: bool = False


class NameNeededError(Exception):
    """What is asked for goes by name only, or a name goes with what is asked for in no way."""


class BadNameError(Exception):
    """A name that is none."""


class UnknownPartitionError(Exception):
    """A topic has no partition of that number."""


class WrongPolicyError(Exception):
    """A PID is under a policy that does not come here."""


class UnknownPidError(Exception):
    """A PID was never leased, or its lease has ended."""


def topic_of(engine: Engine, name: str) -> Topic:
    """A topic of an engine's.

    Raises:
        UnknownTopicError: there is no such topic.
        AwaitedTopicError: it cannot be read yet.
    """
    found = engine.topics.get(name)
    if found is not None:
        return found
    if name in engine.awaited:
        raise _awaited(f"topic {name}")
    raise UnknownTopicError(f"there is no topic {name}")


def partition_of(engine: Engine, topic: str, number: int) -> Partition:
    """A partition of an engine's.

    Raises:
        UnknownTopicError: there is no such topic.
        AwaitedTopicError: it cannot be read yet.
        UnknownPartitionError: it has no such partition.
    """
    found = engine.partition(topic, number)
    if found is not None:
        return found
    known = engine.awaited.get(topic)
    if known is None or engine.awaits(topic, number):
        known = topic_of(engine, topic)
    raise UnknownPartitionError(f"topic {topic} has partitions 0 to {known.partitions - 1}")


async def find_topic(engine: Engine, name: str) -> Topic:
    """A topic of an engine's; one that is not known the log is asked for.

    Raises:
        UnknownTopicError: there is no such topic.
        AwaitedTopicError: it cannot be read yet, or it cannot be known now whether it is there.
    """
    if name not in engine.topics:
        first = TopicPartition(name, 0)
        if first not in await engine.missing([first]) and name not in engine.topics:
            raise _awaited(name)
    return topic_of(engine, name)


async def find_partition(engine: Engine, topic: str, number: int) -> Partition:
    """A partition of an engine's; one that is not known the log is asked for.

    Raises:
        UnknownTopicError: there is no such topic.
        AwaitedTopicError: it cannot be read yet, or it cannot be known now whether it is there.
        UnknownPartitionError: it has no such partition.
    """
    if engine.partition(topic, number) is None:
        place = TopicPartition(topic, number)
        if place not in await engine.missing([place]) and engine.partition(*place) is None:
            raise _awaited(str(place))
    return partition_of(engine, topic, number)


def _awaited(what: str) -> AwaitedTopicError:
    return AwaitedTopicError(f"{what} cannot be read yet; try again")


class LeaseService:
    """Grants the leases of one request. What it asks for under one name is one grant.

    Parameters:
        engine: the engine.
        asks: all that the request asks for, where it is more than one.
    """

    def __init__(self, engine: Engine, asks: Sequence[Ask] = ()) -> None:
        self._engine = engine
        self._asks = asks
        self._random = random.SystemRandom()
        self._grants: dict[Wanted, NameGrant | Exception] = {}
        self._assigned = ""
        #: Of the partitions that are not known here, those that there are not; None: not asked yet.
        self._missing: Set[TopicPartition] | None = None

    async def lease(self, ask: Ask) -> Granted:
        """Lease a PID, or say where one goes on.

        Raises:
            UnknownTopicError: there is no such topic.
            UnknownPartitionError: it has no such partition.
            AwaitedTopicError: it cannot be read yet, or cannot be known now.
            WrongPolicyError: the PID is of a policy that is not leased.
            UnknownPidError: the PID was never leased, or its lease has ended.
            NameNeededError: a PID of policy monotonic has a name; a PID is asked for by one only.
            BadNameError: the name is too long, or no text.
            NameTakenError: the name to renew was granted to another one since.
            NameConflictError: the name has a PID of another policy.
            NameBusyError: the name cannot be granted now; try again.
            NamesError: bindings of names cannot be read or changed now; try again.
            NoPidError: there is none to be had now; try again.
            LogStoppedError: the partition is stopped; where the PID goes on there is not known.
        """
        began = time.monotonic()
        try:
            return await self._lease(ask)
        finally:
            self._engine.counts.lease_seconds["http"].observe(time.monotonic() - began)

    async def _lease(self, ask: Ask) -> Granted:
        partition = await self._partition(ask)
        name = self._name(ask)
        if name or ask.pid >= 0:
            # Before a name's generation is raised: where a PID goes on cannot be answered.
            partition.check_not_stopped()
        if ask.pid >= 0 and not (name and ask.renew):
            if name:
                raise NameNeededError("ask by pid, or by name; both are for renew")
            await self._sure(partition, ask.pid)
            return await self._known(partition, ask.pid)
        if name:
            return await self._named(partition, name, ask)
        if ask.policy is Policy.MONOTONIC:
            raise NameNeededError("policy monotonic is for producers with a name; say one")
        pid = await self._fresh(ask.policy)
        return Granted(pid, self._random_generation(), 0, self._engine.leases.expire_ms(pid))

    async def _partition(self, ask: Ask) -> Partition:
        """The partition that is asked for; the log is asked once for all that the request names."""
        engine = self._engine
        if engine.partition(ask.topic, ask.partition) is None:
            if self._missing is None:
                named = {
                    TopicPartition(each.topic, each.partition) for each in self._asks or (ask,)
                }
                unknown = [place for place in named if engine.partition(*place) is None]
                self._missing = await engine.missing(unknown)
            place = TopicPartition(ask.topic, ask.partition)
            if place not in self._missing and engine.partition(*place) is None:
                raise _awaited(str(place))
        return partition_of(engine, ask.topic, ask.partition)

    def _name(self, ask: Ask) -> str:
        if ask.assign_name and not ask.name:
            self._assigned = self._assigned or f"producer-{uuid.uuid4()}"
            return self._assigned
        if ask.name:
            try:
                check_name(ask.name)
            except ValueError as error:
                raise BadNameError(str(error)) from None
        return ask.name

    async def _fresh(self, policy: Policy) -> int:
        leases = self._engine.leases
        give_up = time.monotonic() + _BLOCK_WAIT_SECONDS
        while True:
            try:
                return leases.lease(policy)
            except NoPidError as error:
                left = give_up - time.monotonic()
                # Where there are PIDs in the block, it is the ring that is full.
                if leases.blocks.left or left <= 0 or not await leases.blocks.fetched(left):
                    leases.refuse(policy, error)
                    raise

    async def _named(self, partition: Partition, name: str, ask: Ask) -> Granted:
        grant = await self._grant(name, ask)
        await self._sure(partition, grant.pid)
        sequence, resume_at = _next(partition, grant.pid, grant.former)
        expire_ms = self._engine.leases.expire_ms(grant.pid)
        return Granted(grant.pid, grant.generation, sequence, expire_ms, resume_at, name)

    async def _sure(self, partition: Partition, pid: int) -> None:
        """See to it that all is known of a PID: what is told here is not used for something else.

        Raises:
            NameBusyError: it cannot be known now.
        """
        if not await partition.sure_of(pid):
            raise NameBusyError(
                f"what {partition.name} holds of PID {pid} cannot be known now; try again"
            )

    async def _grant(self, name: str, ask: Ask) -> NameGrant:
        """The one grant of all asks under this name; also where it was refused."""
        held = Held(ask.pid, ask.generation) if ask.pid >= 0 else None
        key = Wanted(name, ask.policy, ask.renew, held)
        found = self._grants.get(key)
        if found is None:
            wanted = key._replace(places=self._places(ask))
            try:
                found = await self._engine.naming.grant(wanted, self._fresh)
            except Exception as error:
                self._grants[key] = error
                raise
            self._grants[key] = found
        if isinstance(found, Exception):
            raise found
        return found

    def _places(self, ask: Ask) -> list[Partition]:
        """The partitions that are asked for together with one."""
        same = (each for each in (self._asks or (ask,)) if each[2:] == ask[2:])
        found = (self._engine.partition(each.topic, each.partition) for each in same)
        return [each for each in found if each is not None and not each.log.stopped]

    def _random_generation(self) -> int:
        return self._random.randrange(GENERATION_START_MAX)

    async def _known(self, partition: Partition, pid: int) -> Granted:
        leases, naming = self._engine.leases, self._engine.naming
        if policy_of(pid) not in (Policy.STRICT, Policy.MONOTONIC):
            raise WrongPolicyError(f"PID {pid} is none of those that are leased here")
        if partition.producer(pid) is None and leases.unsure(pid):
            await self._look(pid)
        state, fence = partition.producer(pid), leases.fences.get(pid, -1)
        if fence == FENCED_FOR_EVER:
            raise UnknownPidError(f"PID {pid} is its name's no more; lease by the name")
        if state is None and leases.age(pid, partition.hole_ms) is not Age.YOUNG:
            raise UnknownPidError(
                f"PID {pid} was never leased, or its lease has ended; lease a new one with pid -1,"
                " or by the name"
            )
        sequence, resume_at = _next(partition, pid, naming.former(pid))
        if fence >= 0:
            generation = fence
        else:
            generation = self._random_generation() if state is None else state.generation + 1
        name = naming.names.get(pid, "")
        return Granted(pid, generation, sequence, leases.expire_ms(pid), resume_at, name)

    async def _look(self, pid: int) -> None:
        """Learn whether another server has leased a PID.

        Raises:
            NameBusyError: that cannot be known now.
        """
        try:
            await self._engine.leases.look()
        except SequenceError as error:
            raise NameBusyError(
                f"whether another server has leased PID {pid} cannot be looked up now: {error};"
                " try again"
            ) from error


def _next(partition: Partition, pid: int, former: int) -> tuple[int, int]:
    """The next sequence of a PID, and where its name's numbering goes on."""
    state = partition.producer(pid)
    if state is not None:
        return state.high + 1, state.high + 1
    before = partition.producer(former) if former >= 0 else None
    return 0, 0 if before is None else before.high + 1
