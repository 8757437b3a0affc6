"""A partition's pending batches: from the first record to the completed future.

No I/O: `Sender` takes the batches that may be sent, and reports their outcome.
"""

from __future__ import annotations

import logging
import time
from asyncio import Future
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from pidlease.client.errors import (
    FencedError,
    OutcomeUnknownError,
    ProducerError,
    SessionEndedError,
    copy_of,
)
from pidlease.client.in_flight_batches import CompletionOrder, InFlightBatches
from pidlease.client.pending_batch import (
    DuplicateRecord,
    Futures,
    Headers,
    PendingBatch,
    Sent,
    SequenceRange,
    complete_futures,
)
from pidlease.client.record_arguments import SEQUENCE_MAX
from pidlease.client.sequence_numbers import LeasedSequence, SequenceIds
from pidlease.core.lease import NO_PID
from pidlease.core.topic_partition import TopicPartition

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import Coroutine, Mapping

    from pidlease.client.metrics import ProducerMetrics
    from pidlease.client.producer_memory import Memory
    from pidlease.client.settings import ProducerSettings

_log = logging.getLogger(__name__)

#: Buffer memory of a record beside its bytes: its future and the result.
RECORD_OVERHEAD: Final = 256
#: By how many seconds a timer may be early.
_EARLY_S: Final = 0.002


class ConnectionHost(Protocol):
    """The owner of connections: a producer, or all partitions of a copier."""

    @property
    def settings(self) -> ProducerSettings:
        """The producer's settings."""

    @property
    def metrics(self) -> ProducerMetrics:
        """The producer's counters."""

    @property
    def partitions(self) -> Mapping[tuple[str, int], PartitionQueue]:
        """The partitions with a queue, by (topic, partition)."""

    def wake(self, partition: PartitionQueue) -> None:
        """Look at a partition: it may have a batch to send."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> Task[None]:
        """Run a background task; an error in it ends the session."""

    def broken(self, error: BaseException) -> None:
        """End the session: an unexpected error was raised."""


class SenderSession(Protocol):
    """The PID of a sender."""

    @property
    def draining(self) -> bool:
        """Whether only batches that were sent before may be sent."""

    @property
    def alive(self) -> bool:
        """Whether any batch may be sent."""

    def want(self, partition: PartitionQueue) -> None:
        """Lease for a partition; it is woken when it has sequence numbers."""


class Host(ConnectionHost, Protocol):
    """The owner of partition queues: a producer, or one partition of a copier.

    Attributes:
        unresolved: batches that were sent at least once and have no final outcome.
    """

    loop: AbstractEventLoop
    unresolved: int

    @property
    def memory(self) -> Memory:
        """The buffer memory of its partitions."""

    def began(self, partition: PartitionQueue) -> None:
        """Note that a partition has begun a batch."""

    def filled(self, partition: PartitionQueue) -> None:
        """Note that a partition has a full batch."""

    def resolved(self, partition: PartitionQueue) -> None:
        """Note that a sent batch of a partition has a final outcome, or was given up."""

    def failed(self, error: ProducerError, futures: Futures) -> None:
        """Count and log failed records.

        Parameters:
            futures: those of the records, without the cancelled ones.
        """

    def backoff(self, failures: int) -> float:
        """Return how many seconds to wait after so many failures in a row."""

    def end(self, sent: ProducerError, unsent: ProducerError) -> None:
        """End the session: fail the sent records with one error, the unsent ones with the other."""

    def refuse(self, error: ProducerError) -> None:
        """Accept no more records."""


class PartitionQueue:
    """The batches of one partition.

    Parameters:
        host: the producer.

    Attributes:
        numbers: the leased sequence; None: there is no lease.
        leased_before: whether the partition has ever had a lease.
        numbered: whether a record of the partition has ever had a sequence number.
        open: the batch that gathers records.
        closed: full batches that were never sent.
        in_flight: batches that were sent.
        resting: whether it backs off before it sends again.
        failures: failures in a row.
        ended: why it accepts no more records; None: it does.
        acknowledged: the highest sequence number known to be in the log; -1: none.
    """

    def __init__(self, topic: str, partition: int, host: Host) -> None:
        self.topic: Final = topic
        self.partition: Final = partition
        self.place: Final = TopicPartition(topic, partition)
        self._host: Final = host
        self._settings: Final = host.settings
        self.numbers: LeasedSequence | None = None
        self.leased_before: bool = False
        self.numbered: bool = False
        self.open: PendingBatch | None = None
        self.closed: deque[PendingBatch] = deque()
        self.in_flight: Final = InFlightBatches()
        self.resting: bool = False
        self.failures: int = 0
        self.ended: ProducerError | None = None
        self.acknowledged: int = -1
        self._ids: Final = SequenceIds()
        #: The batch of the last record, until its futures are complete.
        self._last_batch: PendingBatch | None = None
        #: The highest sequence number that was sent, and that a future was completed with.
        self._sent_last = -1
        self._completed_last = -1
        self._completed_range = SequenceRange(NO_PID, -1, -1, -1, -1)
        self._repeated = False
        self._in_order: Final = CompletionOrder()
        self._lease_waiters: list[Future[None]] = []

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    # ------------------------------------------------------------------ records

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int | None,
        sequence_id: int | None,
    ) -> Future[Sent]:
        """Add a record to the open batch.

        Raises:
            TypeError: key, value or a header has the wrong type.
            ValueError: the sequence_id is not above the last one (policy strict), or some records
                have a sequence_id and others do not.
        """
        if sequence_id is not None or self._ids.given:
            new = self._ids.check(sequence_id, repeats=self._settings.monotonic)
            if sequence_id is not None and not new:
                return self._repeat(sequence_id)
        before = batch = self.open
        size = 0 if batch is None else batch.append(key, value, headers, timestamp_ms)
        if batch is None or not size:
            batch = PendingBatch(self._settings.max_batch_size, time.monotonic())
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
        """Add a record with a sequence_id not above the last: a duplicate, as in Apache Pulsar.

        Its future completes after those of the preceding records, and as a duplicate only if they
        are stored: until then, the record that it repeats may still fail.
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
            self._complete([future], [sequence_id], self._completed_range, -1, duplicate=True)
            return future
        batch.repeats.append(DuplicateRecord(sequence_id, future))
        self._host.memory.used += RECORD_OVERHEAD
        if batch is self.open:
            # The next record follows the duplicate, so it begins another batch.
            self.close_open()
            self._host.filled(self)
        return future

    def add_batch(self, batch: PendingBatch) -> Future[Sent]:
        """Add a complete batch of records with sequence numbers.

        Returns:
            One future for the whole batch: the offset and sequence number of its first record.
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
        """Close the open batch as it is."""
        if self.open is not None:
            self.closed.append(self.open)
            self.open = None

    # ------------------------------------------------------------------ leases

    def lease(self) -> Future[None]:
        """Return a future that completes when the partition has a lease."""
        waiter: Future[None] = Future(loop=self._host.loop)
        if self.numbers is not None:
            waiter.set_result(None)
        elif self.ended is not None:
            waiter.set_exception(copy_of(self.ended))
        else:
            self._lease_waiters.append(waiter)
        return waiter

    def leased(self, numbers: LeasedSequence) -> None:
        """Use these sequence numbers from now on."""
        self.numbers = numbers
        self.leased_before = True
        for waiter in self._lease_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._lease_waiters.clear()

    @property
    def loses_none(self) -> bool:
        """Whether an unsent record stops those after it: ids, or a name, fix their order."""
        return self._ids.given or self._settings.name is not None

    def not_leased(self, error: ProducerError) -> None:
        """Fail everything that waits for a lease: there is none."""
        for waiter in self._lease_waiters:
            if not waiter.done():
                waiter.set_exception(copy_of(error))
        self._lease_waiters.clear()
        self.fail_unsent(error)

    # ------------------------------------------------------------------ sending

    @property
    def can_send(self) -> bool:
        """Whether it has a batch to send; the session and the connection are not asked."""
        in_flight = self.in_flight
        if self.resting or in_flight.failed or self.ended is not None:
            return False
        if len(in_flight.open) >= self._settings.max_in_flight:
            return False
        return bool(in_flight.again) or self._has_new()

    def _has_new(self) -> bool:
        """Whether a batch that was never sent need not wait for more records.

        A batch that is not full is sent only when nothing is in flight: a slow server gets fewer
        and larger batches, a fast one gets each at once.
        """
        if self.closed:
            return True
        if self.open is None or self.in_flight.open:
            return False
        linger_ms = self._settings.linger_ms
        due = self.open.made_at + linger_ms / 1000
        # A timer may fire a little early, and nothing would wake the partition again.
        return not linger_ms or time.monotonic() + _EARLY_S >= due

    def next_batch(self, *, new: bool) -> PendingBatch | None:
        """Take the next batch to send; it is in flight from now on. Needs `can_send`.

        Parameters:
            new: whether it may be one that was never sent.
        """
        if self.in_flight.again:
            batch = self.in_flight.again.popleft()
        elif not new or self.numbers is None:
            return None
        else:
            fresh = self._next_fresh(self.numbers)
            if fresh is None:
                return None
            batch, self.numbered = fresh, True
            span = self.numbers.span(batch, gaps=self._settings.monotonic)
            if span.last > SEQUENCE_MAX:
                self._fail_for_good(batch, ProducerError(f"{self}: no sequence number is left"))
                return None
            self._sent_last = span.last
            batch.seal(span, self._settings.codec)
            self._host.unresolved += 1
        self.in_flight.begin(batch)
        return batch

    def _next_fresh(self, numbers: LeasedSequence) -> PendingBatch | None:
        """Take the next batch that was never sent, without records that are in the log already."""
        while self.closed or self.open is not None:
            if not self.closed:
                self.close_open()
            batch = self.closed.popleft()
            if not batch.ids or batch.ids[0] >= numbers.stored:
                return batch
            futures, ids = batch.drop_below(numbers.stored)
            span = SequenceRange(numbers.pid, numbers.generation, 0, 0, 0)
            self._complete(futures, ids, span, -1, duplicate=True)
            if batch.futures:
                return batch
            self._complete_repeats(batch)
            self._host.memory.release(batch.cost)
        return None

    # ------------------------------------------------------------------ responses

    def succeeded(self, batch: PendingBatch, offset: int, *, duplicate: bool) -> bool:
        """Complete a batch that is in the log.

        Parameters:
            offset: of its first record; -1: unknown.
            duplicate: an earlier request stored it.

        Returns:
            Whether the failed batches may be sent again now.
        """
        self.failures = 0
        metrics = self._host.metrics
        metrics.batches += 1
        metrics.bytes += len(batch.data)
        span = batch.sealed
        complete = partial(self._complete_batch, batch, offset, duplicate=duplicate)
        self.acknowledged = max(self.acknowledged, span.last)
        all_answered = self.in_flight.resolve(batch)
        self._forget(batch)
        self._in_order.stored(span.last, complete, self.in_flight.first)
        self._host.resolved(self)
        return all_answered

    def cut(self, batch: PendingBatch, expected: int) -> None:
        """Cut off the records of a batch that are in the log: those below `expected`."""
        numbers = batch.numbers
        gone = batch.cut(expected, self._settings.codec, gaps=self._settings.monotonic)
        complete = partial(self._complete, gone, numbers, batch.sealed, -1, duplicate=True)
        self._in_order.stored(expected - 1, complete, self.in_flight.first)

    def _complete_batch(self, batch: PendingBatch, offset: int, *, duplicate: bool) -> None:
        self._complete(batch.futures, batch.numbers, batch.sealed, offset, duplicate=duplicate)
        self._complete_repeats(batch)

    def _complete_repeats(self, batch: PendingBatch, error: ProducerError | None = None) -> None:
        """Complete the futures of duplicates that follow a batch's records.

        Parameters:
            error: what the batch failed with; None: it is stored.
        """
        if batch is self._last_batch:
            self._last_batch = None
        repeats, batch.repeats = batch.repeats, []
        if not repeats:
            return
        for number, future in repeats:
            if error is None or number <= self._completed_last:
                self._complete([future], [number], self._completed_range, -1, duplicate=True)
            elif number < min(batch.ids[0], self._sent_last + 1) and type(error) is not FencedError:
                # An earlier batch may have stored it.
                self._fail([future], OutcomeUnknownError(str(error)))
            else:
                self._fail([future], error)
        self._host.memory.release(len(repeats) * RECORD_OVERHEAD)

    def _complete(
        self,
        futures: Futures,
        numbers: Sequence[int],
        span: SequenceRange,
        offset: int,
        *,
        duplicate: bool,
    ) -> None:
        if futures:
            self._completed_last = max(self._completed_last, numbers[len(futures) - 1])
            self._completed_range = span
        first = Sent(self.topic, self.partition, offset, span.pid, span.generation, -1, duplicate)
        complete_futures(futures, numbers, first)
        self._host.metrics.records += len(futures)
        self._host.metrics.duplicates += len(futures) * duplicate

    def _forget(self, batch: PendingBatch) -> None:
        self._host.unresolved -= 1
        self._host.memory.release(batch.cost)

    # ------------------------------------------------------------------ the end

    @property
    def unsent(self) -> list[PendingBatch]:
        """The batches that were never sent, in their order."""
        return [*self.closed, *([self.open] if self.open is not None else ())]

    @property
    def oldest(self) -> PendingBatch | None:
        """The batch that was begun first."""
        return next(iter(self.in_flight.all() or self.unsent), None)

    def end(self, error: ProducerError) -> None:
        """Accept and send no more records; those never sent fail with this error."""
        self.ended = error
        self.not_leased(error)

    def fail_refused(self, batch: PendingBatch, error: ProducerError) -> None:
        """Fail an in-flight batch that the server has finally refused."""
        self._fail_all(batch, error)
        self.in_flight.resolve(batch)
        self._forget(batch)
        self._in_order.complete(self.in_flight.first)

    def fail_sent(self, error: ProducerError) -> None:
        """Fail all in-flight batches."""
        for batch in self.in_flight.clear():
            self._fail_all(batch, error)
            self._forget(batch)
        self._in_order.complete(None)

    def fail_unsent(self, error: ProducerError, count: int | None = None) -> None:
        """Fail batches that were never sent: all, or the first `count`."""
        for batch in self.unsent[:count]:
            if self.closed:
                self.closed.popleft()
            else:
                self.open = None
            self._fail_all(batch, error)
            self._host.memory.release(batch.cost)

    def _fail_for_good(self, batch: PendingBatch, error: ProducerError) -> None:
        """Fail a batch that was taken to be sent, and all after it."""
        self._fail_all(batch, error)
        self._host.memory.release(batch.cost)
        self.end(error)
        self._host.refuse(SessionEndedError(str(error)))
        self._host.resolved(self)

    def _fail_all(self, batch: PendingBatch, error: ProducerError) -> None:
        self._fail(batch.futures, error)
        self._complete_repeats(batch, error)

    def _fail(self, futures: Futures, error: ProducerError) -> None:
        failed = [each for each in futures if not each.done()]
        for future in failed:
            future.set_exception(copy_of(error))
        self._host.failed(error, failed)
