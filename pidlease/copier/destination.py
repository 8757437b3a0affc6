"""Sends the batches of copied partitions to the destination, by the parts of the producer.

A `Channel` is the producer's `Host` and session for one partition: each partition has its own PID,
so it has its own sender. All partitions share the connections.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pidlease.client.background_tasks import BackgroundTasks
from pidlease.client.batch_sender import Sender
from pidlease.client.errors import OutcomeUnknownError, ProducerError, SessionEndedError
from pidlease.client.leader_connections import LeaderConnections
from pidlease.client.lease_client import LeaseClient
from pidlease.client.metrics import ProducerMetrics
from pidlease.client.partition_queue import PartitionQueue
from pidlease.client.pending_batch import Futures
from pidlease.client.producer_memory import Memory
from pidlease.client.sequence_numbers import LeasedSequence
from pidlease.client.settings import ProducerSettings
from pidlease.copier.copied_batch import CopiedBatch
from pidlease.copier.settings import CLIENT_ID, CopySettings

_log = logging.getLogger(__name__)
_FOREVER_MS: Final = float(2**53)
#: The copier bounds the bytes of a partition when it reads.
_ANY_BYTES: Final = 2**63


class Destination:
    """The connections and counters that all partitions share.

    Parameters:
        settings: those of a producer, without a delivery timeout.
    """

    def __init__(self, settings: ProducerSettings) -> None:
        self.settings: Final = settings
        self.metrics: Final = ProducerMetrics()
        self.leases: Final = LeaseClient.of(settings)
        self.connections: Final = LeaderConnections(self)
        self._tasks: Final = BackgroundTasks(self.broken)
        self._channels: dict[PartitionQueue, Channel] = {}
        self._broken: BaseException | None = None

    @property
    def partitions(self) -> dict[tuple[str, int], PartitionQueue]:
        """The copied partitions, by (topic, partition)."""
        return {(each.topic, each.partition): each for each in self._channels}

    async def start(self) -> None:
        """Connect.

        Raises:
            ProducerError: no server responds.
        """
        await self.connections.start()
        self.leases.cluster_id = self.connections.cluster.view.cluster_id

    async def close(self) -> None:
        """Close all connections."""
        await self._tasks.cancel()
        await self.connections.close()
        await self.leases.close()

    def channel(
        self, topic: str, partition: int, ended: Callable[[ProducerError], None]
    ) -> "Channel":
        """Open a channel to a partition."""
        channel = Channel(self, topic, partition, ended)
        self._channels[channel.queue] = channel
        return channel

    def forget(self, channel: "Channel") -> None:
        """Remove a channel that is closed."""
        self._channels.pop(channel.queue, None)

    def wake(self, partition: PartitionQueue) -> None:
        """Wake a partition's channel: there may be a connection."""
        channel = self._channels.get(partition)
        if channel is not None:
            channel.wake(partition)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a background task; an error in it ends the copier."""
        return self._tasks.spawn(work)

    def check(self) -> None:
        """Raise the error of a background task, if one has failed."""
        if self._broken is not None:
            raise self._broken

    def broken(self, error: BaseException) -> None:
        """End the copier: an unexpected error was raised."""
        _log.error("a copier broke", exc_info=error)
        self._broken = error


def destination_settings(settings: CopySettings) -> ProducerSettings:
    """Return a copier's settings as a producer."""
    return ProducerSettings(
        bootstrap_servers=settings.destination,
        leases=settings.leases,
        client_id=CLIENT_ID,
        max_in_flight=settings.max_in_flight,
        delivery_timeout_ms=_FOREVER_MS,
        request_timeout_ms=settings.request_timeout_ms,
        **settings.security_options(),
    )


class Channel:
    """Sends the batches of one partition.

    Parameters:
        topic: the destination's topic.
        ended: called with the error that ended the channel; in-flight batches are given up.

    Attributes:
        queue: the pending batches.
        unresolved: how many batches are in flight.
    """

    draining = False

    def __init__(
        self,
        shared: Destination,
        topic: str,
        partition: int,
        ended: Callable[[ProducerError], None],
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.settings: Final = shared.settings
        self.metrics: Final = shared.metrics
        self.memory: Final = Memory(_ANY_BYTES)
        self.unresolved = 0
        self.queue: Final = PartitionQueue(topic, partition, self)
        self.partitions: Final = {(topic, partition): self.queue}
        self._shared: Final = shared
        self._ended: Final = ended
        self._sender: Final = Sender(self, self, shared.connections)
        self._over = False

    # ------------------------------------------------------------------ called by the copier

    def begin(self, pid: int, generation: int, first: int) -> None:
        """Use a lease from now on.

        Parameters:
            first: first_sequence of the first batch.
        """
        self.queue.leased(LeasedSequence(pid, generation, first, first))

    def send(self, batch: CopiedBatch) -> "asyncio.Future[Any]":
        """Send a batch after the preceding ones; return a future of its first record's place."""
        return self.queue.add_batch(batch)

    def close(self) -> None:
        """Stop sending; `ended` is not called."""
        self._over = True
        self._sender.close()
        self._shared.forget(self)
        error = OutcomeUnknownError("the copier left the partition")
        self.queue.fail_sent(error)
        self.queue.end(error)

    # ------------------------------------------------------------------ called by the sender

    @property
    def alive(self) -> bool:
        """Whether batches may be sent; the server checks the lease."""
        return not self._over

    def want(self, partition: PartitionQueue) -> None:
        """Fail: `begin` comes first, so no lease can be missing."""
        raise AssertionError(f"{partition} has no lease")

    # ------------------------------------------------------------------ called by the queue

    def began(self, partition: PartitionQueue) -> None:
        """Do nothing: a copier has no delivery timeout."""

    def filled(self, partition: PartitionQueue) -> None:
        """Send a full batch."""
        self._sender.push(partition)

    def resolved(self, partition: PartitionQueue) -> None:
        """Send the next batch: one that was sent has its outcome."""
        if partition.closed:
            self._sender.push(partition)

    def failed(self, error: ProducerError, futures: Futures) -> None:
        """Count failed records; the copier gets the error by `ended`."""
        self.metrics.failed(error, len(futures))
        for future in futures:
            future.exception()

    def wake(self, partition: PartitionQueue) -> None:
        """Look at the partition: it may have a batch to send."""
        self._sender.wake(partition)

    def backoff(self, failures: int) -> float:
        """Return how many seconds to wait after so many failures in a row."""
        return self._shared.connections.backoff(failures)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a background task; an error in it ends the copier."""
        return self._shared.spawn(work)

    def broken(self, error: BaseException) -> None:
        """End the copier: an unexpected error was raised."""
        self._shared.broken(error)

    def end(self, sent: ProducerError, unsent: ProducerError) -> None:
        """End the channel: fenced, refused, or the lease has ended."""
        if self._over:
            return
        self._over = True
        self._sender.close()
        self.queue.fail_sent(sent)
        self.queue.end(unsent)
        self._ended(unsent)

    def refuse(self, error: ProducerError) -> None:
        """End the channel."""
        self.end(error, SessionEndedError(str(error)))
