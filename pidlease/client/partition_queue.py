"""One partition's records on their way: gathered, numbered, sent, answered.

No I/O: `Sender` asks for what may be sent, and tells what became of it.
"""

from __future__ import annotations

import logging
import time
from asyncio import Future
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from pidlease.client.completion_order import CompletionOrder
from pidlease.client.errors import FencedError, OutcomeUnknownError, ProducerError, copy_of
from pidlease.client.in_flight_batches import Flight
from pidlease.client.record_accumulator import Batch, Futures, Headers, Repeat, Sent, Span, tell
from pidlease.client.sequence_numbers import Ids, Numbers
from pidlease.core.lease import NO_PID

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import Coroutine, Mapping

    from pidlease.client.metrics import ProducerMetrics
    from pidlease.client.producer_memory import Memory
    from pidlease.client.settings import Settings

_log = logging.getLogger(__name__)

#: What a record takes of the buffer beside its bytes: its future, and the answer.
RECORD_OVERHEAD: Final = 256
#: By how much a timer may be early, in seconds.
_EARLY_S: Final = 0.002


class ConnectionHost(Protocol):
    """What connections are made for."""

    @property
    def settings(self) -> Settings:
        """What it was told."""

    @property
    def metrics(self) -> ProducerMetrics:
        """Its counters."""

    def wake(self, partition: PartitionQueue) -> None:
        """A partition may have something to send now."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> Task[None]:
        """Do something beside; where it breaks, all is over."""


class SenderSession(Protocol):
    """Under what is sent."""

    @property
    def draining(self) -> bool:
        """Whether nothing new is sent for now."""

    @property
    def alive(self) -> bool:
        """Whether anything may be sent at all."""

    def want(self, partition: PartitionQueue) -> None:
        """A partition has no numbers; it is woken when it has some."""


class Host(ConnectionHost, Protocol):
    """A producer.

    Attributes:
        unresolved: batches that were sent at least once and have no answer for good.
    """

    loop: AbstractEventLoop
    unresolved: int

    @property
    def memory(self) -> Memory:
        """What all its partitions share."""

    @property
    def partitions(self) -> Mapping[tuple[str, int], PartitionQueue]:
        """Those that were written to."""

    def began(self, partition: PartitionQueue) -> None:
        """A batch was begun."""

    def filled(self, partition: PartitionQueue) -> None:
        """A batch is full."""

    def resolved(self, partition: PartitionQueue) -> None:
        """Something that was sent has its answer for good, or is given up."""

    def failed(self, error: ProducerError, futures: Futures) -> None:
        """Records failed.

        Parameters:
            error: why,
            futures: and their futures, those left out that were cancelled.
        """

    def backoff(self, failures: int) -> float:
        """How many seconds to wait after so many failures in a row."""

    def end(self, sent: ProducerError, unsent: ProducerError) -> None:
        """The session is over: fail what was sent, and what never was."""

    def refuse(self, error: ProducerError) -> None:
        """Take no more records."""


class PartitionQueue:
    """A partition's batches.

    Parameters:
        topic: the topic,
        partition: and the partition.
        host: the producer.

    Attributes:
        numbers: None: to be leased.
        leased_before: whether it had numbers before,
        numbered: and whether a record of it has had one.
        open: the batch that gathers records.
        closed: those that are full and were never sent.
        flight: those that were sent.
        resting: it waits before it sends again.
        failures: in a row.
        ended: why it takes nothing more.
        acknowledged: the highest number that stands in the log; -1: none is known to.
    """

    def __init__(self, topic: str, partition: int, host: Host) -> None:
        self.topic: Final = topic
        self.partition: Final = partition
        self._host: Final = host
        self._settings: Final = host.settings
        self.numbers: Numbers | None = None
        self.leased_before = False
        self.numbered = False
        self.open: Batch | None = None
        self.closed: deque[Batch] = deque()
        self.flight: Final = Flight()
        self.resting = False
        self.failures = 0
        self.ended: ProducerError | None = None
        self.acknowledged = -1
        self._ids: Final = Ids()
        #: The batch of the last record that was taken, until its futures are resolved.
        self._last_batch: Batch | None = None
        #: The highest number that was sent, and that a future was resolved with.
        self._sent_last = -1
        self._told_last = -1
        self._told_under = Span(NO_PID, -1, -1, -1, -1)
        self._repeated = False
        self._in_order: Final = CompletionOrder()
        self._lease_waiters: list[Future[None]] = []

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    # ------------------------------------------------------------------ records come

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int | None,
        sequence_id: int | None,
    ) -> Future[Sent]:
        """Take a record.

        Raises:
            TypeError: key, value or a header is of another type.
            ValueError: the id does not rise (policy strict), or some records bring one and others
                do not.
        """
        if sequence_id is not None or self._ids.given:
            new = self._ids.check(sequence_id, repeats=self._settings.monotonic)
            if sequence_id is not None and not new:
                return self._repeat(sequence_id)
        before = batch = self.open
        size = 0 if batch is None else batch.append(key, value, headers, timestamp_ms)
        if batch is None or not size:
            batch = Batch(self._settings.max_batch_size, time.monotonic())
            size = batch.append(key, value, headers, timestamp_ms)
            self.close_open()
            self.open = self._last_batch = batch
            self._ids.note(sequence_id)
        future: Future[Sent] = Future(loop=self._host.loop)
        batch.futures.append(future)
        if sequence_id is not None:
            batch.ids.append(sequence_id)
            self._ids.note(sequence_id)
        cost = size + RECORD_OVERHEAD
        batch.cost += cost
        self._host.memory.used += cost
        if batch is not before:
            if before is not None:
                self._host.filled(self)
            self._host.began(self)
        return future

    def _repeat(self, sequence_id: int) -> Future[Sent]:
        """Take a record whose id is not above the last: a duplicate, as Apache Pulsar has it.

        Its future is resolved after those of the records before it, and as a duplicate only if
        they are stored: until then, what it repeats may still fail.
        """
        if not self._repeated:
            self._repeated = True
            _log.info(
                "%s: sequence_id %d is not above %d: a duplicate by policy monotonic, not sent"
                " (logged once)", self, sequence_id, self._ids.last,
            )  # fmt: skip
        future: Future[Sent] = Future(loop=self._host.loop)
        batch = self._last_batch
        if batch is None:
            self._tell([future], [sequence_id], self._told_under, -1, duplicate=True)
            return future
        batch.repeats.append(Repeat(sequence_id, future))
        self._host.memory.used += RECORD_OVERHEAD
        if batch is self.open:
            # The next record comes after the duplicate: it begins another batch.
            self.close_open()
            self._host.filled(self)
        return future

    def add_batch(self, batch: Batch) -> Future[Sent]:
        """Take a batch that is complete; its records bring their numbers.

        Returns:
            What tells of it as a whole: with the offset and the number of its first record.
        """
        self._ids.check(batch.ids[0])
        self._ids.note(batch.ids[-1])
        future: Future[Sent] = Future(loop=self._host.loop)
        batch.futures.append(future)
        self._host.memory.used += batch.cost
        self.closed.append(batch)
        self._host.filled(self)
        return future

    def close_open(self) -> None:
        """Let the batch that gathers records go as it is."""
        if self.open is not None:
            self.closed.append(self.open)
            self.open = None

    # ------------------------------------------------------------------ leases

    def lease(self) -> Future[None]:
        """Done when it has numbers; fails with what it fails with."""
        waiter: Future[None] = Future(loop=self._host.loop)
        if self.numbers is not None:
            waiter.set_result(None)
        elif self.ended is not None:
            waiter.set_exception(copy_of(self.ended))
        else:
            self._lease_waiters.append(waiter)
        return waiter

    def leased(self, numbers: Numbers) -> None:
        """From now on it is written to under these."""
        self.numbers = numbers
        self.leased_before = True
        for waiter in self._lease_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._lease_waiters.clear()

    @property
    def loses_none(self) -> bool:
        """Whether nothing may be sent behind a record that was not: its number tells its place."""
        return self._ids.given or self._settings.name is not None

    def not_leased(self, error: ProducerError) -> None:
        """There is no lease for it: fail whatever waits for one."""
        for waiter in self._lease_waiters:
            if not waiter.done():
                waiter.set_exception(copy_of(error))
        self._lease_waiters.clear()
        self.fail_unsent(error)

    # ------------------------------------------------------------------ batches go

    @property
    def can_send(self) -> bool:
        """Whether it has something that may be sent now, as far as it knows by itself."""
        flight = self.flight
        if self.resting or flight.failed or self.ended is not None:
            return False
        if len(flight.open) >= self._settings.max_in_flight:
            return False
        return bool(flight.again) or self._has_new()

    def _has_new(self) -> bool:
        """Whether there is a batch that was never sent and need not wait for more records.

        One that is not full goes only when nothing is under way: so a slow server gets fewer and
        larger batches, and a fast one gets each at once.
        """
        if self.closed:
            return True
        if self.open is None or self.flight.open:
            return False
        linger_ms = self._settings.linger_ms
        due = self.open.made_at + linger_ms / 1000
        # A timer may come a little early: nothing would wake it again.
        return not linger_ms or time.monotonic() + _EARLY_S >= due

    def next_batch(self, *, new: bool) -> Batch | None:
        """The next batch to be sent, which is in flight from now on; `can_send` was asked.

        Parameters:
            new: whether one may be taken that was never sent.
        """
        if self.flight.again:
            batch = self.flight.again.popleft()
        elif not new or self.numbers is None:
            return None
        else:
            fresh = self._next_fresh(self.numbers)
            if fresh is None:
                return None
            batch, self.numbered = fresh, True
            span = self.numbers.span(batch, holes=self._settings.monotonic)
            self._sent_last = span.last
            batch.seal(span, self._settings.codec)
            self._host.unresolved += 1
        self.flight.begin(batch)
        return batch

    def _next_fresh(self, numbers: Numbers) -> Batch | None:
        """The next batch that was never sent, without what stands in the log by its own ids."""
        while self.closed or self.open is not None:
            if not self.closed:
                self.close_open()
            batch = self.closed.popleft()
            if not batch.ids or batch.ids[0] >= numbers.stored:
                return batch
            futures, ids = batch.drop_below(numbers.stored)
            span = Span(numbers.pid, numbers.generation, 0, 0, 0)
            self._tell(futures, ids, span, -1, duplicate=True)
            if batch.futures:
                return batch
            self._tell_repeats(batch)
            self._host.memory.release(batch.cost)
        return None

    # ------------------------------------------------------------------ answers come

    def succeeded(self, batch: Batch, offset: int, *, duplicate: bool) -> bool:
        """A batch stands in the log.

        Parameters:
            offset: of its first record; -1: not told.
            duplicate: it had been there before.

        Returns:
            Whether all that failed before may be sent again now.
        """
        self.failures = 0
        metrics = self._host.metrics
        metrics.batches += 1
        metrics.bytes += len(batch.data)
        span = batch.sealed
        told = partial(self._tell_all, batch, offset, duplicate=duplicate)
        self.acknowledged = max(self.acknowledged, span.last)
        turned_back = self.flight.resolve(batch)
        self._forget(batch)
        self._in_order.stored(span.last, told, self.flight.first)
        self._host.resolved(self)
        return turned_back

    def cut(self, batch: Batch, expected: int) -> None:
        """What comes before a number stands in the log; the rest of a batch is to be sent."""
        numbers = batch.numbers
        gone = batch.cut(expected, self._settings.codec, holes=self._settings.monotonic)
        told = partial(self._tell, gone, numbers, batch.sealed, -1, duplicate=True)
        self._in_order.stored(expected - 1, told, self.flight.first)

    def _tell_all(self, batch: Batch, offset: int, *, duplicate: bool) -> None:
        self._tell(batch.futures, batch.numbers, batch.sealed, offset, duplicate=duplicate)
        self._tell_repeats(batch)

    def _tell_repeats(self, batch: Batch, error: ProducerError | None = None) -> None:
        """Resolve the duplicates that were given after a batch's records.

        Parameters:
            error: what the batch failed with; None: it is stored.
        """
        if batch is self._last_batch:
            self._last_batch = None
        repeats, batch.repeats = batch.repeats, []
        if not repeats:
            return
        for number, future in repeats:
            if error is None or number <= self._told_last:
                self._tell([future], [number], self._told_under, -1, duplicate=True)
            elif number < min(batch.ids[0], self._sent_last + 1) and type(error) is not FencedError:
                # An earlier batch may have stored it, whatever is true of this one.
                self._fail([future], OutcomeUnknownError(str(error)))
            else:
                self._fail([future], error)
        self._host.memory.release(len(repeats) * RECORD_OVERHEAD)

    def _tell(
        self, futures: Futures, numbers: Sequence[int], span: Span, offset: int, *, duplicate: bool
    ) -> None:
        if futures:
            self._told_last = max(self._told_last, numbers[len(futures) - 1])
            self._told_under = span
        told = Sent(self.topic, self.partition, offset, span.pid, span.generation, -1, duplicate)
        tell(futures, numbers, told)
        self._host.metrics.records += len(futures)
        self._host.metrics.duplicates += len(futures) * duplicate

    def _forget(self, batch: Batch) -> None:
        self._host.unresolved -= 1
        self._host.memory.release(batch.cost)

    # ------------------------------------------------------------------ it ends

    @property
    def unsent(self) -> list[Batch]:
        """Batches that were never sent, in their order."""
        return [*self.closed, *([self.open] if self.open is not None else ())]

    @property
    def oldest(self) -> Batch | None:
        """The batch that has waited longest."""
        return next(iter(self.flight.all() or self.unsent), None)

    def end(self, error: ProducerError) -> None:
        """It takes nothing more, and sends nothing more: what it never sent fails with this."""
        self.ended = error
        self.not_leased(error)

    def fail_refused(self, batch: Batch, error: ProducerError) -> None:
        """Fail a batch that is in flight, and was refused for good."""
        self._fail_all(batch, error)
        self.flight.resolve(batch)
        self._forget(batch)
        self._in_order.tell(self.flight.first)

    def fail_sent(self, error: ProducerError) -> None:
        """Fail all that was sent and is not resolved."""
        for batch in self.flight.clear():
            self._fail_all(batch, error)
            self._forget(batch)
        self._in_order.tell(None)

    def fail_unsent(self, error: ProducerError, count: int | None = None) -> None:
        """Fail what was never sent: all, or the first so many batches."""
        for batch in self.unsent[:count]:
            if self.closed:
                self.closed.popleft()
            else:
                self.open = None
            self._fail_all(batch, error)
            self._host.memory.release(batch.cost)

    def _fail_all(self, batch: Batch, error: ProducerError) -> None:
        self._fail(batch.futures, error)
        self._tell_repeats(batch, error)

    def _fail(self, futures: Futures, error: ProducerError) -> None:
        failed = [each for each in futures if not each.done()]
        for future in failed:
            future.set_exception(copy_of(error))
        self._host.failed(error, failed)
