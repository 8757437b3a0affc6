"""The parts of a producer, put together: the path of a record from `send` to its outcome."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from pidlease.client.background_tasks import BackgroundTasks
from pidlease.client.batch_sender import BatchDeadlines, Sender
from pidlease.client.errors import (
    OutcomeUnknownError,
    ProducerClosedError,
    ProducerError,
    SessionEndedError,
    copy_of,
)
from pidlease.client.failure_report import FailureLog, UnseenFailures
from pidlease.client.leader_connections import LeaderConnections
from pidlease.client.lease_client import LeaseClient
from pidlease.client.metrics import ProducerMetrics
from pidlease.client.partition_queue import RECORD_OVERHEAD, PartitionQueue
from pidlease.client.partitioner import Partitioner
from pidlease.client.pending_batch import Futures, PendingBatch, Sent
from pidlease.client.pid_session import PidSession
from pidlease.client.producer_memory import Memory
from pidlease.client.record_arguments import check_topic
from pidlease.client.settings import ProducerSettings
from pidlease.client.unstopped_producers import forget, report_lost, warn_unstopped, watch
from pidlease.kafka.client.cluster import NO_LEADER

_log = logging.getLogger(__name__)

#: The timeout of lease requests, whatever that of others is.
_LEASE_TIMEOUT_S: Final = 30.0


class Pipeline:
    """Everything below the producers' interfaces; it is the `Host` of its parts.

    Attributes:
        partitions: the partitions with a queue, by (topic, partition).
        partitioners: by topic; cleared when the metadata changes.
        waiting: topics with callers that wait for metadata: the place of the last one in the line.
            Its future completes when it goes on; later callers must not overtake.
        unresolved: in-flight batches of all partitions.
        refusal: why no record is accepted; None: records are accepted.
        unseen: failed records that the application has not seen.
        failure_log: logs failed records.
        process: the id of the process that started it; 0: it was not started, or has ended.
        at_exit: called if the program ends before the producer was stopped.
    """

    process: int = 0
    loop: asyncio.AbstractEventLoop
    session: PidSession
    _connections: LeaderConnections
    _sender: Sender
    _deadlines: BatchDeadlines
    _leases: LeaseClient

    def __init__(self, settings: ProducerSettings) -> None:
        self.settings: Final = settings
        self.metrics: Final = ProducerMetrics()
        self.memory: Final = Memory(settings.buffer_memory)
        self.partitions: Final[dict[tuple[str, int], PartitionQueue]] = {}
        self.partitioners: Final[dict[str, Partitioner]] = {}
        self.waiting: Final[dict[str, asyncio.Future[None]]] = {}
        #: As many futures as fit into the buffer: if all of them fail at once, the application can
        #: still see each.
        self.unseen_max: Final = settings.buffer_memory // RECORD_OVERHEAD + 1
        self.unseen: Final[UnseenFailures[asyncio.Future[Sent]]] = UnseenFailures(
            _looked_at, self.unseen_max
        )
        self.failure_log: Final = FailureLog()
        self.unresolved = 0
        self.refusal: ProducerError | None = ProducerClosedError("the producer was not started")
        self.at_exit: Callable[[], None] = self._abandoned
        self._started = False
        self._tasks: Final = BackgroundTasks(self.broken)

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Connect, and accept records from now on."""
        if self._started:
            raise ProducerError("a producer is started once")
        self._started = True
        self.loop = asyncio.get_running_loop()
        self._connections = LeaderConnections(self)
        self._leases = LeaseClient.of(self.settings, _LEASE_TIMEOUT_S)
        self.session = PidSession(self, self._leases)
        self._sender = Sender(self, self.session, self._connections)
        self._deadlines = BatchDeadlines(self, self._obstacle)
        try:
            if self.settings.is_secured:
                await self._leases.check()
            await self._connections.start()
        except BaseException:
            await self._close()
            raise
        self._leases.cluster_id = self._connections.cluster.view.cluster_id
        self._connections.cluster.on_change.append(lambda *_: self.partitioners.clear())
        self.session.start()
        self.refusal = None
        self.process = os.getpid()
        watch(self)

    def __del__(self) -> None:
        """Report what is lost if the loop has ended, and the producer was not stopped."""
        if self.process == os.getpid():
            self._abandoned()

    async def stop(self, timeout_s: float | None) -> None:
        """Deliver all pending records within `timeout_s`, and end."""
        if not self._started:
            return
        if self.refusal is None:
            self.refusal = ProducerClosedError("the producer was stopped")
        seconds = self.settings.delivery_timeout_ms / 1000 if timeout_s is None else timeout_s
        try:
            await asyncio.wait_for(self._delivered(), seconds)
        except TimeoutError:
            pass
        finally:
            text = "the producer was stopped"
            self.end(OutcomeUnknownError(text), ProducerClosedError(text), quietly=True)
            await self._close()
        await self.unseen.settle()
        self.failure_log.write()

    def _abandoned(self) -> None:
        """Report that the loop has ended, or ends, and the producer was not stopped."""
        self.process = 0
        forget(self)
        warn_unstopped(self)
        lost = sum(
            len(batch.futures)
            for partition in self.partitions.values()
            for batch in _left(partition)
        )
        if lost:
            report_lost(f"{lost:,} without an outcome; call stop(), or use `async with`")

    async def _close(self) -> None:
        self.process = 0
        forget(self)
        self.session.end()
        self._sender.close()
        self._deadlines.close()
        await self._tasks.cancel()
        await self._connections.close()
        await self._leases.close()

    # ------------------------------------------------------------------ called by the producer

    async def topic(self, topic: str) -> Partitioner:
        """Load a topic's metadata, and return its partitioner, in the order of calls.

        Raises:
            TypeError, ValueError: it is not a topic's name.
            ProducerError: there is no such topic.
        """
        check_topic(topic)
        if topic not in self.waiting and (known := self.partitioners.get(topic)) is not None:
            return known
        before, mine = self.waiting.get(topic), self.loop.create_future()
        self.waiting[topic] = mine
        try:
            found = await self._connections.topic(topic)
            if before is not None:
                await asyncio.shield(before)
                found = await self._connections.topic(topic)  # it may have changed meanwhile
        finally:
            if before is None or before.done():
                self._leave_line(topic, mine)
            else:  # cancelled, or failed: those after it wait for those before it
                before.add_done_callback(lambda _: self._leave_line(topic, mine))
        if (known := self.partitioners.get(topic)) is None:
            partitions = list(range(len(found.leaders)))
            available = [number for number in partitions if found.leaders[number] != NO_LEADER]
            known = Partitioner(partitions, available, self.settings.max_batch_size)
            self.partitioners[topic] = known
        return known

    def _leave_line(self, topic: str, place: "asyncio.Future[None]") -> None:
        place.set_result(None)
        if self.waiting[topic] is place:
            del self.waiting[topic]

    async def partition(self, topic: str, number: int) -> PartitionQueue:
        """Return a partition's queue; it is made on first use.

        Raises:
            ValueError: there is no such partition.
            ProducerError: there is no such topic.
        """
        known = self.partitions.get((topic, number))
        if known is not None:
            return known
        partitioner = self.partitioners.get(topic) or await self.topic(topic)
        partitions = partitioner.partitions
        if number not in partitions:
            raise no_partition(topic, number, partitions)
        self.check()
        place = topic, number
        if place not in self.partitions:
            self.partitions[place] = PartitionQueue(topic, number, self)
        return self.partitions[place]

    async def room(self) -> None:
        """Wait for room in the buffer.

        Raises:
            ProducerError: records are not accepted any more.
        """
        await self.memory.room()
        self.check()

    async def lease(self, partition: PartitionQueue) -> None:
        """Wait until a partition has a lease."""
        self.check()
        waiter = partition.lease()
        if not waiter.done():
            self.session.want(partition)
        await waiter

    async def flush(self, unseen: UnseenFailures[Any]) -> None:
        """Wait for the outcome of all records accepted so far.

        Parameters:
            unseen: the failures to report.

        Raises:
            ProducerError: there are failures, or the session is over.
        """
        await self._delivered()
        await unseen.settle()
        self.failure_log.write()
        if (error := unseen.take()) is not None:
            raise error
        self.check()

    def read_metrics(self) -> ProducerMetrics:
        """Return the counters, as they are now."""
        self.metrics.buffered_bytes = self.memory.used
        return self.metrics

    def check(self) -> None:
        """Raise if records are not accepted.

        Raises:
            ProducerError: the reason.
        """
        if self.refusal is not None:
            raise copy_of(self.refusal)

    def _obstacle(self, partition: PartitionQueue) -> str:
        if partition.numbers is None or self.session.draining:
            return self.session.obstacle
        return self._connections.obstacle(partition)

    async def _delivered(self) -> None:
        """Wait for the outcome of all records accepted so far."""
        waiting: list[tuple[PartitionQueue, PendingBatch]] = []
        for partition in self.partitions.values():
            partition.close_open()
            self.wake(partition)
            waiting += [(partition, batch) for batch in _left(partition)]
        # The records' futures would not do: callers may cancel them.
        for partition, batch in waiting:
            while batch in _left(partition):
                await self.memory.released()

    # ------------------------------------------------------------------ called by its parts

    def began(self, partition: PartitionQueue) -> None:
        """Watch the batch that a partition has begun."""
        self._deadlines.began(partition)

    def filled(self, partition: PartitionQueue) -> None:
        """Send a partition's full batch."""
        self._sender.push(partition)

    def resolved(self, partition: PartitionQueue) -> None:
        """Send a partition's next batch: one that was sent has its outcome."""
        if not self.unresolved and self.session.draining:
            self.session.drained()
        if partition.closed:
            self._sender.push(partition)
        elif partition.open is not None:
            self._sender.wake(partition)

    def failed(self, error: ProducerError, futures: Futures) -> None:
        """Count and log failed records."""
        self.metrics.failed(error, len(futures))
        self.failure_log.add(error, len(futures))
        self.unseen.add(futures)

    def wake(self, partition: PartitionQueue) -> None:
        """Look at a partition: it may have a batch to send."""
        self._sender.wake(partition)

    def backoff(self, failures: int) -> float:
        """Return how many seconds to wait after so many failures in a row."""
        return self._connections.backoff(failures)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a background task; an error in it ends the session."""
        return self._tasks.spawn(work)

    def broken(self, error: BaseException) -> None:
        """End the session: an unexpected error was raised."""
        _log.error("a producer broke", exc_info=error)
        text = f"the producer broke: {error!r}"
        self.end(OutcomeUnknownError(text), SessionEndedError(text))

    def refuse(self, error: ProducerError) -> None:
        """Accept no more records."""
        if self.refusal is None:
            self.refusal = error
            _log.warning(
                "the producer accepts no more records: %s: %s", type(error).__name__, error
            )

    def end(self, sent: ProducerError, unsent: ProducerError, *, quietly: bool = False) -> None:
        """End the session: fail the sent records with one error, the unsent ones with the other."""
        if not quietly:
            self.refuse(unsent)
        self.session.end()
        for partition in self.partitions.values():
            partition.fail_sent(sent)
            if partition.ended is None:
                partition.end(unsent)


def no_partition(topic: str, number: int, partitions: Sequence[int]) -> ValueError:
    """Return the error for a partition that a topic does not have."""
    return ValueError(f"topic {topic} has no partition {number!r}; it has {len(partitions)}")


def _looked_at(future: "asyncio.Future[Sent]") -> bool:
    # asyncio notes for each failed future whether its error must still be logged.
    return not future._log_traceback


def _left(partition: PartitionQueue) -> list[PendingBatch]:
    """Return the pending batches of a partition."""
    return [*partition.in_flight.all(), *partition.unsent]
