"""The PID of a producer: leased on first use, replaced before its lease ends.

One task sends the lease requests, so responses cannot overtake one another. Its states:

    no PID -> leased -> draining: no new batch is sent -> no batch is in flight -> no PID, or the
    name's next one

The session can end in each of them; the outcome of in-flight batches then stays unknown.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from pidlease.client.errors import (
    FencedError,
    LeaseRefusedError,
    LeaseUnavailableError,
    OutcomeUnknownError,
    SessionEndedError,
)
from pidlease.client.lease_client import Answer, LeaseClient
from pidlease.client.lease_requests import (
    GONE,
    NOT_FOUND,
    GrantedName,
    LeaseRequests,
    TakenError,
    is_refusal,
)
from pidlease.client.partition_queue import Host, PartitionQueue
from pidlease.client.sequence_numbers import LeasedSequence
from pidlease.client.settings import ProducerSettings
from pidlease.core.lease import NO_PID, Lease
from pidlease.http_api.lease_messages import LEASES_MAX

_FOREVER: Final = float("inf")
#: A lease that ends within so many seconds is replaced with a back-off.
_SHORT_S: Final = 0.25


class PidSession:
    """Leases a producer's PID, and the sequence numbers of its partitions.

    Attributes:
        pid: the PID; -1: none.
        generation: the generation granted to the name; -1: no name, or no lease yet.
        draining: no new batch is sent, because the PID is about to be replaced.
    """

    def __init__(self, host: Host, leases: LeaseClient) -> None:
        self._host: Final = host
        self._requests: Final = LeaseRequests(host, leases)
        self._settings: Final[ProducerSettings] = host.settings
        self.pid: int = host.settings.pid or NO_PID
        self.generation: int = -1
        self.draining: bool = False
        self._own_pid = host.settings.pid is not None
        #: The name's last grant, while its PID is replaced: the renewal then fails if the name was
        #: granted to another producer since.
        self._held: GrantedName | None = None
        self._hurried = 0
        #: How often in a row the server did not know the PID on a partition, or granted none.
        self._refused: dict[PartitionQueue, int] = {}
        self._ends_at = _FOREVER
        self._wanted: dict[PartitionQueue, None] = {}
        self._awake: Final = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []
        self._task: asyncio.Task[None] | None = None
        self._over = False

    def start(self) -> None:
        """Start the task that leases."""
        self._task = self._host.spawn(self._run())

    async def close(self) -> None:
        """Stop the task."""
        self.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def end(self) -> None:
        """End the session: lease nothing any more."""
        self._over = True
        self._stop_timers()

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    # ------------------------------------------------------------------ called by the sender

    def want(self, partition: PartitionQueue) -> None:
        """Lease for a partition; it is woken when that is done."""
        self._wanted[partition] = None
        self._awake.set()

    @property
    def alive(self) -> bool:
        """Whether any batch may be sent under this PID."""
        return time.monotonic() < self._ends_at

    @property
    def obstacle(self) -> str:
        """Why there is no lease yet; empty: no request has failed."""
        return self._requests.obstacle

    def drained(self) -> None:
        """Note that no batch is in flight."""
        self._awake.set()

    # ------------------------------------------------------------------ the task

    async def _run(self) -> None:
        while not self._over:
            await self._awake.wait()
            self._awake.clear()
            if self.draining:
                if self._host.unresolved:
                    continue  # the last response wakes it again
                await self._replace()
            while (wanted := self._still_wanted()) and not self.draining and not self._over:
                await self._lease_some(wanted)

    def _still_wanted(self) -> list[PartitionQueue]:
        """Return partitions to lease for, of those that send any more."""
        for each in [each for each in self._wanted if each.ended is not None]:
            del self._wanted[each]
        return list(self._wanted)[:LEASES_MAX]

    async def _lease_some(self, partitions: list[PartitionQueue]) -> None:
        named = self.pid == NO_PID and self._settings.name is not None
        if self.pid == NO_PID and not named:
            # The first lease brings the PID; leased together, each partition would get its own.
            partitions = partitions[:1]
        if named and self._held is not None:
            answers = await self._renew(self._held, partitions)
            if answers is None:
                return
        else:
            answers = await self._requests.lease(self.pid, partitions)
        for partition, answer in zip(partitions, answers, strict=True):
            self._take(partition, answer, named=named)
        if any(is_refusal(each, GONE) for each in answers) and not self._over:
            # If it is the first time, the lease of the PID may just have ended.
            times = max(self._refused.get(each, 0) for each in partitions)
            failures = times if named else times - 1
            if failures:
                await asyncio.sleep(self._host.backoff(failures))
            self._drain()

    def _take(self, partition: PartitionQueue, answer: Answer, *, named: bool) -> None:
        if self._over:
            return
        self._wanted.pop(partition, None)
        if isinstance(answer, LeaseUnavailableError):
            self._wanted[partition] = None  # after the others
            return
        if isinstance(answer, Lease):
            self._adopt(partition, answer, granted=named)
        elif answer.status == NOT_FOUND:
            self._not_found(partition, answer)
        elif answer.status == GONE:
            self._gone(partition, answer)
        else:
            self._host.end(OutcomeUnknownError(str(answer)), answer)

    def _not_found(self, partition: PartitionQueue, answer: LeaseRefusedError) -> None:
        if partition.loses_none and partition.unsent:
            # The records after it would take its sequence number, or skip it.
            partition.end(answer)
            self._host.refuse(SessionEndedError(f"{partition}: {answer}"))
        partition.not_leased(answer)

    def _gone(self, partition: PartitionQueue, answer: LeaseRefusedError) -> None:
        """Replace the PID: its lease has ended, or the name has another one."""
        if self._host.unresolved or self._own_pid:
            self._lost(str(answer))
            return
        self._wanted[partition] = None
        self._refused[partition] = self._refused.get(partition, 0) + 1
        self._awake.set()

    def _adopt(self, partition: PartitionQueue, lease: Lease, *, granted: bool) -> None:
        """Use a lease's sequence numbers."""
        settings = self._settings
        if settings.name is not None:
            if granted:
                self._held = None
                self.generation = max(self.generation, lease.generation)
            elif lease.generation != self.generation:
                granted_since = f"generation {lease.generation} was granted to another producer"
                self._fenced(f"{granted_since}; this one has")
                return
        self.pid = lease.pid
        self._refused.pop(partition, None)
        self._host.metrics.leases += 1
        self._set_timers(lease)
        first, number, generation = lease.sequence_number, lease.resume_at, lease.generation
        if self._own_pid:
            place = partition.topic, partition.partition
            first = number = (settings.sequences or {}).get(place, first)
            generation = generation if settings.generation is None else settings.generation
        partition.acknowledged = max(partition.acknowledged, lease.resume_at - 1)
        if settings.name is not None:
            # The server may have forgotten an idle partition's sequence; the producer has not.
            number = max(number, partition.acknowledged + 1)
        initial = settings.initial_sequence_id
        if initial is not None and not partition.numbered:
            number = initial + 1
        stored = lease.resume_at if lease.resume_at > lease.sequence_number else 0
        partition.leased(LeasedSequence(lease.pid, generation, first, number, stored))
        self._host.wake(partition)

    def _fenced(self, why: str) -> None:
        error = FencedError(f"{self._settings.name}: {why}, generation {self.generation}")
        self._host.end(error, error)

    # ------------------------------------------------------------------ the lease ends

    def _set_timers(self, lease: Lease) -> None:
        """Set the timers of a lease: one to replace the PID in time, one for its end."""
        if lease.ends_at == _FOREVER or (self._timers and lease.ends_at <= self._ends_at):
            return
        self._stop_timers()
        self._ends_at = lease.ends_at
        left = max(lease.ends_at - time.monotonic(), 0)
        self._hurried = self._hurried + 1 if left < _SHORT_S else 0
        # A lease with no time left is replaced too, but after a back-off.
        rest = self._host.backoff(self._hurried) if self._hurried else 0
        loop = self._host.loop
        self._timers = [
            loop.call_later(max(left * (1 - self._settings.renew_before), rest), self._drain),
            loop.call_later(max(left, rest), self._ended),
        ]

    def _drain(self) -> None:
        self.draining = True
        self._awake.set()

    def _ended(self) -> None:
        if self._host.unresolved:
            self._lost(f"the lease of PID {self.pid} has ended")
        else:
            self._drain()

    def _lost(self, text: str) -> None:
        self._host.end(OutcomeUnknownError(text), SessionEndedError(text))

    async def _replace(self) -> None:
        """Lease the next PID; no batch is in flight."""
        known = [each for each in self._host.partitions.values() if each.numbers is not None]
        self._stop_timers()
        self._ends_at = _FOREVER
        before, self._own_pid = self.pid, False
        self.pid = NO_PID
        if self._settings.name is not None:
            if self._held is None and self.generation >= 0:
                self._held = GrantedName(before, self.generation)
            if known and self._held is not None:
                # With those that the PID was refused for: the name must not keep it.
                refused = [each for each in self._still_wanted() if each in self._refused]
                asked = dict.fromkeys([*refused, *known])
                await self._go_on(self._held, list(asked)[:LEASES_MAX])
        if self._over:
            return
        for partition in known:
            numbers = partition.numbers
            if numbers is not None and (
                numbers.pid == before != self.pid
                or (self._settings.name is not None and numbers.generation != self.generation)
            ):
                partition.numbers = None  # leased again with its next record
        self._host.metrics.switches += 1
        self.draining = False
        for partition in self._host.partitions.values():
            self._host.wake(partition)

    async def _renew(
        self, held: GrantedName, partitions: list[PartitionQueue]
    ) -> Sequence[Answer] | None:
        """Lease the name's next PID; None: the session has ended, another producer has the name."""
        try:
            return await self._requests.renew(held, partitions)
        except TakenError:
            self._fenced("the name was granted to another producer; this one had")
            return None

    async def _go_on(self, held: GrantedName, partitions: list[PartitionQueue]) -> None:
        """Continue under the name's next PID."""
        answers = await self._renew(held, partitions)
        if answers is None:
            return
        self.generation = -1
        for partition, answer in zip(partitions, answers, strict=True):
            partition.numbers = None
            self._take(partition, answer, named=True)
