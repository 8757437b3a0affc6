"""The way of one partition's batches to the destination: numbered, in order, again after errors.

All of that is the producer's; here is what it sees of a copier (`host.Host`). One PID is for one
partition, so each has a sender of its own; connections are shared.
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
#: A partition's bytes are bounded by whoever reads for it.
_ANY_BYTES: Final = 2**63


class Destination:
    """What all partitions share.

    Parameters:
        settings: a producer's. How long a delivery may take is for whoever waits for it.
    """

    def __init__(self, settings: ProducerSettings) -> None:
        self.settings: Final = settings
        self.metrics: Final = ProducerMetrics()
        self.leases: Final = LeaseClient(settings.leases)
        self.links: Final = LeaderConnections(self)
        self._tasks: Final = BackgroundTasks(self._note)
        self._channels: dict[PartitionQueue, Channel] = {}
        self._broken: BaseException | None = None

    async def start(self) -> None:
        """Connect.

        Raises:
            ProducerError: nobody answers.
        """
        await self.links.start()

    async def close(self) -> None:
        """Close all connections."""
        await self._tasks.cancel()
        await self.links.close()
        await self.leases.close()

    def channel(
        self, topic: str, partition: int, ended: Callable[[ProducerError], None]
    ) -> "Channel":
        """A way to a partition; see `Channel`."""
        channel = Channel(self, topic, partition, ended)
        self._channels[channel.queue] = channel
        return channel

    def forget(self, channel: "Channel") -> None:
        """A channel is over."""
        self._channels.pop(channel.queue, None)

    def wake(self, partition: PartitionQueue) -> None:
        """See `Host`: a connection may be there."""
        channel = self._channels.get(partition)
        if channel is not None:
            channel.wake(partition)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """See `Host`."""
        return self._tasks.spawn(work)

    def check(self) -> None:
        """Raise what broke, if anything did."""
        if self._broken is not None:
            raise self._broken

    def _note(self, error: BaseException) -> None:
        _log.error("a copier broke", exc_info=error)
        self._broken = error


def destination_settings(settings: CopySettings) -> ProducerSettings:
    """What a copier is as a producer."""
    return ProducerSettings(
        bootstrap_servers=settings.destination,
        leases=settings.leases,
        client_id=CLIENT_ID,
        max_in_flight=settings.max_in_flight,
        delivery_timeout_ms=_FOREVER_MS,
        request_timeout_ms=settings.request_timeout_ms,
        security_protocol=settings.security_protocol,
        ssl_context=settings.ssl_context,
    )


class Channel:
    """See the module's text.

    Parameters:
        shared: connections.
        topic: the destination's,
        partition: and the partition.
        ended: told why nothing more is sent; what was sent and not answered is given up.

    Attributes:
        queue: the batches.
        unresolved: batches that were sent and have no answer for good.
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
        self._sender: Final = Sender(self, self, shared.links)
        self._over = False

    # ------------------------------------------------------------------ asked by the copier

    def begin(self, pid: int, generation: int, first: int) -> None:
        """Number what comes from now on.

        Parameters:
            first: where the range of the first batch begins.
        """
        self.queue.leased(LeasedSequence(pid, generation, first, first))

    def send(self, batch: CopiedBatch) -> "asyncio.Future[Any]":
        """Send a batch behind those before it; its answer, of which the offset is its first's."""
        return self.queue.add_batch(batch)

    def close(self) -> None:
        """Send nothing more, and tell nobody."""
        self._over = True
        self._sender.close()
        self._shared.forget(self)
        error = OutcomeUnknownError("the copier left the partition")
        self.queue.fail_sent(error)
        self.queue.end(error)

    # ------------------------------------------------------------------ asked by the sender

    @property
    def alive(self) -> bool:
        """Whether anything may be sent: the server judges whether the lease lasts."""
        return not self._over

    def want(self, partition: PartitionQueue) -> None:
        """A lease is wanted: `begin` comes first, so this cannot be."""
        raise AssertionError(f"{partition} has no numbers")

    # ------------------------------------------------------------------ asked by the queue

    def began(self, partition: PartitionQueue) -> None:
        """See `Host`: a copier has no deadline."""

    def filled(self, partition: PartitionQueue) -> None:
        """See `Host`."""
        self._sender.push(partition)

    def resolved(self, partition: PartitionQueue) -> None:
        """See `Host`."""
        if partition.closed:
            self._sender.push(partition)

    def failed(self, error: ProducerError, futures: Futures) -> None:
        """See `Host`: the copier hears of it by `ended`, whatever its futures say."""
        self.metrics.failed(error, len(futures))
        for future in futures:
            future.exception()

    def wake(self, partition: PartitionQueue) -> None:
        """See `Host`."""
        self._sender.wake(partition)

    def backoff(self, failures: int) -> float:
        """See `Host`."""
        return self._shared.links.backoff(failures)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """See `Host`."""
        return self._shared.spawn(work)

    def end(self, sent: ProducerError, unsent: ProducerError) -> None:
        """See `Host`: fenced, refused, or the lease has ended."""
        if self._over:
            return
        self._over = True
        self._sender.close()
        self.queue.fail_sent(sent)
        self.queue.end(unsent)
        self._ended(unsent)

    def refuse(self, error: ProducerError) -> None:
        """See `Host`."""
        self.end(error, SessionEndedError(str(error)))
