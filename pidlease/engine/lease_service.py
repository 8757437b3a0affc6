"""lease_pid: a fresh PID for a partition, or where a PID that is known goes on.

No lease changes what is known of a producer: only batches in the log do.
"""

import random
import time
from typing import Final, NamedTuple

from pidlease.core.judge import Age
from pidlease.core.packed import unpack
from pidlease.core.pid import Policy, policy_of
from pidlease.core.rules import STRICT
from pidlease.engine.engine import Engine
from pidlease.engine.leasing import NoPidError
from pidlease.engine.partition import Partition
from pidlease.engine.topics import UnknownTopicError

#: A generation begins below this, at random: who guesses one, or remembers one of another PID,
#: is fenced or refused, not taken for its successor.
_GENERATION_MAX: Final = 2**30
#: How long a lease waits for the next block of PIDs, in seconds.
_BLOCK_WAIT_SECONDS: Final = 2.0


class Granted(NamedTuple):
    """A lease on one partition.

    Attributes:
        pid: the PID.
        generation: the one to use.
        sequence_number: of the first record to be sent.
        expire_ms: when the lease ends, in ms since 1970.
    """

    pid: int
    generation: int
    sequence_number: int
    expire_ms: int


class UnknownPartitionError(Exception):
    """A topic has no partition of that number."""


class WrongPolicyError(Exception):
    """A PID is under a policy that does not come here."""


class UnknownPidError(Exception):
    """A PID was never leased, or its lease has ended."""


def partition_of(engine: Engine, topic: str, number: int) -> Partition:
    """A partition of an engine's.

    Raises:
        UnknownTopicError: there is no such topic.
        UnknownPartitionError: it has no such partition.
    """
    found = engine.partition(topic, number)
    if found is not None:
        return found
    known = engine.topics.get(topic)
    if known is None:
        raise UnknownTopicError(f"there is no topic {topic}")
    raise UnknownPartitionError(f"topic {topic} has partitions 0 to {known.partitions - 1}")


class LeaseService:
    """Grants leases to producers of policy strict.

    Parameters:
        engine: the engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._random = random.SystemRandom()

    async def lease(self, topic: str, number: int, pid: int) -> Granted:
        """Lease a PID, or say where one goes on.

        Parameters:
            topic: the topic that it is to write to,
            number: and the partition.
            pid: one that was leased before; -1: a new one.

        Raises:
            UnknownTopicError: there is no such topic.
            UnknownPartitionError: it has no such partition.
            WrongPolicyError: the PID is not of policy strict.
            UnknownPidError: the PID was never leased, or its lease has ended.
            NoPidError: there is none to be had now; try again.
        """
        partition = partition_of(self._engine, topic, number)
        if pid < 0:
            return await self._fresh()
        return self._known(partition, pid)

    async def _fresh(self) -> Granted:
        leases = self._engine.leases
        give_up = time.monotonic() + _BLOCK_WAIT_SECONDS
        while True:
            try:
                pid = leases.lease(Policy.STRICT)
                return Granted(pid, self._random_generation(), 0, leases.expire_ms(pid))
            except NoPidError:
                left = give_up - time.monotonic()
                # Where there are PIDs in the block, it is the ring that is full.
                if leases.block_left or left <= 0 or not await leases.block_fetched(left):
                    raise

    def _random_generation(self) -> int:
        return self._random.randrange(_GENERATION_MAX)

    def _known(self, partition: Partition, pid: int) -> Granted:
        leases = self._engine.leases
        if policy_of(pid) is not Policy.STRICT:
            raise WrongPolicyError(f"PID {pid} is none of policy strict, and cannot be leased here")
        packed = partition.producers.get(pid)
        if packed is not None:
            state = unpack(STRICT, packed)
            return Granted(pid, state.generation + 1, state.high + 1, leases.expire_ms(pid))
        if leases.age(pid, partition.hole_ms) is not Age.YOUNG:
            raise UnknownPidError(
                f"PID {pid} was never leased, or its lease has ended; lease a new one with pid -1"
            )
        return Granted(pid, self._random_generation(), 0, leases.expire_ms(pid))
