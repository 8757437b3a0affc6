"""Sends batches, handles their responses and keeps their deadlines.

The sender never waits. Each event of a partition makes the sender look at it, and write all that
may be sent to its connection at once. Connections call back with responses; tasks await connections
and leases.
"""

import time
from asyncio import TimerHandle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from pidlease.client.errors import (
    DeliveryTimeoutError,
    FencedError,
    LeaseEndedError,
    OutcomeUnknownError,
    ProducerError,
    SessionEndedError,
)
from pidlease.client.leader_connections import LeaderConnections
from pidlease.client.partition_queue import Host, PartitionQueue, SenderSession
from pidlease.client.pending_batch import PendingBatch
from pidlease.client.response_action import ResponseAction, meaning_of
from pidlease.kafka.api import API_PRODUCE
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.exchange import read
from pidlease.kafka.codec.messages import next_id
from pidlease.kafka.codec.produce import (
    PartitionResponse,
    ProduceBatch,
    read_produce_response,
    write_produce_request,
)
from pidlease.kafka.errors import UpstreamError

_INT32_MAX: Final = 2**31 - 1
#: The version of Produce: the first one with a text for each error.
_VERSION: Final = 8

_Sending = tuple[PartitionQueue, PendingBatch]


class Sender:
    """Sends the batches of partitions to their leaders.

    Parameters:
        host: the producer.
        session: its PID.
        connections: to the leaders; may be shared.
    """

    def __init__(self, host: Host, session: SenderSession, connections: LeaderConnections) -> None:
        self._host: Final = host
        self._session: Final = session
        self._connections: Final = connections
        self._metrics: Final = host.metrics
        self._settings: Final = host.settings
        self._timeout_ms: Final = int(min(host.settings.request_timeout_ms, _INT32_MAX))
        self._ready: dict[PartitionQueue, None] = {}
        self._using: dict[PartitionQueue, BrokerConnection] = {}
        self._scheduled = False
        self._closed = False

    def close(self) -> None:
        """Stop sending."""
        self._closed = True

    # ------------------------------------------------------------------ sending

    def wake(self, partition: PartitionQueue) -> None:
        """Look at a partition in the next turn of the event loop.

        Records that are added until then are sent with it.
        """
        self._ready[partition] = None
        if not self._scheduled:
            self._scheduled = True
            self._host.loop.call_soon(self._look)

    def push(self, partition: PartitionQueue) -> None:
        """Send a partition's full batch now."""
        for batch, connection in self._batches(partition):
            self._request(connection, [(partition, batch)])

    def _look(self) -> None:
        ready, self._ready = self._ready, {}
        self._scheduled = False
        found = [(each, list(self._batches(each))) for each in ready]
        # A request holds one batch of a partition: the first batches go first.
        for place in range(max((len(batches) for _, batches in found), default=0)):
            self._send([(each, *batches[place]) for each, batches in found if len(batches) > place])

    def _batches(
        self, partition: PartitionQueue
    ) -> Iterator[tuple[PendingBatch, BrokerConnection]]:
        """Take the batches of a partition that may be sent now; they are in flight from here on."""
        session = self._session
        while partition.can_send and not self._closed:
            if not partition.in_flight.again:
                if session.draining:
                    return
                if partition.numbers is None:
                    session.want(partition)
                    return
            connection = self._connection(partition) if session.alive else None
            if connection is None:
                return
            batch = partition.next_batch(new=not session.draining)
            if batch is None:
                return
            self._metrics.retries += batch.sends > 1
            yield batch, connection

    def _connection(self, partition: PartitionQueue) -> BrokerConnection | None:
        """Return the connection for a partition's next batch; None: there is none yet.

        The partition is woken when there is one. It changes to a new leader or a new connection
        only when nothing is in flight on the old one: a batch must not overtake those.
        """
        connection = self._using.get(partition)
        if partition.in_flight.open and connection is not None:
            return connection if connection.open else None
        found = self._connections.connection(partition)
        if found is not None:
            self._using[partition] = found
        return found

    def _send(self, sendings: list[tuple[PartitionQueue, PendingBatch, BrokerConnection]]) -> None:
        """Write one request for each connection, or more where one would be too large."""
        waiting: dict[BrokerConnection, list[_Sending]] = {}
        sizes: dict[BrokerConnection, int] = {}
        for partition, batch, connection in sendings:
            size = sizes.get(connection, 0) + len(batch.data)
            if connection in waiting and size > self._settings.max_request_size:
                self._request(connection, waiting.pop(connection))
                size = len(batch.data)
            waiting.setdefault(connection, []).append((partition, batch))
            sizes[connection] = size
        for connection, each in waiting.items():
            self._request(connection, each)

    def _request(self, connection: BrokerConnection, sendings: list[_Sending]) -> None:
        lowest, highest = connection.versions.get(API_PRODUCE, (0, -1))
        if not lowest <= _VERSION <= highest:
            self._incompatible(sendings)
            return
        batches = [ProduceBatch(each.place, batch.data) for each, batch in sendings]
        request = write_produce_request(
            _VERSION, next_id(), self._timeout_ms, batches, self._settings.client_id
        )
        self._metrics.requests += connection.open
        connection.send(request, partial(self._on_response, connection, sendings))

    def _incompatible(self, sendings: list[_Sending]) -> None:
        """End the session: the server does not support the requests."""
        error = f"the server does not support Produce {_VERSION}"
        # These batches were not written now; the outcome of those sent before is unknown.
        for queue, batch in sendings:
            if batch.sends == 1:
                queue.fail_refused(batch, ProducerError(error))
        self._host.end(OutcomeUnknownError(error), ProducerError(error))

    # ------------------------------------------------------------------ responses

    def _on_response(
        self,
        connection: BrokerConnection,
        sendings: list[_Sending],
        response: bytearray | UpstreamError,
    ) -> None:
        try:
            if isinstance(response, UpstreamError):
                self._lost(connection, sendings)
            else:
                self._completed(connection, sendings, response)
        except Exception as error:  # noqa: BLE001 - a bug; the connection would only log it
            self._host.broken(error)

    def _completed(
        self, connection: BrokerConnection, sendings: list[_Sending], response: bytearray
    ) -> None:
        try:
            found = read(connection, response, partial(read_produce_response, _VERSION))
        except UpstreamError:
            self._lost(connection, sendings)
            return
        for queue, batch in sendings:
            result = found.get(queue.place)
            if batch not in queue.in_flight.open:
                continue  # it has failed since
            if result is None:
                self._retry(queue, batch, connection)
            else:
                self._answered(queue, batch, connection, result)

    def _lost(self, connection: BrokerConnection, sendings: list[_Sending]) -> None:
        """Send batches again: their connection broke, or had no response in time."""
        connection.close()
        for partition, batch in sendings:
            if batch in partition.in_flight.open:
                self._retry(partition, batch, connection)

    def _answered(
        self,
        partition: PartitionQueue,
        batch: PendingBatch,
        connection: BrokerConnection,
        result: PartitionResponse,
    ) -> None:
        after_failed = bool(partition.in_flight.failed)
        action, expected, moved = meaning_of(result, batch.sealed, after_failed=after_failed)
        if action in (ResponseAction.STORED, ResponseAction.DUPLICATE):
            offset = result.offset if result.code == 0 else -1
            if partition.succeeded(batch, offset, duplicate=action is ResponseAction.DUPLICATE):
                self._send_failed_again(partition)
            return
        self._metrics.refusals[result.code] += 1
        if moved:
            self._connections.refresh()
        if action is ResponseAction.CUT:
            partition.cut(batch, expected)
        if action in (ResponseAction.CUT, ResponseAction.RETRY_IN_ORDER, ResponseAction.RETRY):
            self._retry(partition, batch, connection, rest=action is ResponseAction.RETRY)
        else:
            self._final(partition, batch, action, result)

    def _final(
        self,
        partition: PartitionQueue,
        batch: PendingBatch,
        action: ResponseAction,
        result: PartitionResponse,
    ) -> None:
        """End the session: the server will never store this batch, and none that follows it."""
        text = f"{partition}: error {result.code}: {result.reason or action.value}"
        if action is ResponseAction.FENCED:
            self._host.end(FencedError(text), FencedError(text))
            return
        if action is ResponseAction.REFUSED and batch.sends == 1:
            # If it was sent before, an earlier request may have stored it.
            partition.fail_refused(batch, ProducerError(text))
        ended = LeaseEndedError if action is ResponseAction.LEASE_ENDED else SessionEndedError
        self._host.end(OutcomeUnknownError(text), ended(text))

    def _retry(
        self,
        partition: PartitionQueue,
        batch: PendingBatch,
        connection: BrokerConnection,
        *,
        rest: bool = True,
    ) -> None:
        """Send a batch again, and all that were sent after it.

        Parameters:
            rest: back off first.
        """
        if self._settings.monotonic:
            # The server must not validate what follows an error on this connection: where sequence
            # gaps are allowed, it would accept a batch out of order.
            connection.close()
        # Batches that fail after another one count as one failure with it.
        partition.failures += rest and not partition.in_flight.failed
        if partition.in_flight.fail(batch):
            self._send_failed_again(partition)

    def _send_failed_again(self, partition: PartitionQueue) -> None:
        """Send the failed batches again: all that were in flight have a response."""
        if partition.failures:
            partition.resting = True
            wait = self._connections.backoff(partition.failures)
            self._host.loop.call_later(wait, self._rested, partition)
        else:
            self.wake(partition)

    def _rested(self, partition: PartitionQueue) -> None:
        partition.resting = False
        self.wake(partition)


class BatchDeadlines:
    """Wakes partitions after the linger time, and fails batches after the delivery timeout.

    Each partition with a pending batch has one timer for the delivery timeout.

    Parameters:
        obstacle: returns why a partition's batches cannot be sent now; empty: it is not known.
    """

    def __init__(self, host: Host, obstacle: Callable[[PartitionQueue], str]) -> None:
        self._host: Final = host
        self._obstacle: Final = obstacle
        self._delivery_s: Final = host.settings.delivery_timeout_ms / 1000
        self._linger_s: Final = host.settings.linger_ms / 1000
        self._timers: dict[PartitionQueue, TimerHandle] = {}

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def began(self, partition: PartitionQueue) -> None:
        """Watch a batch that was just begun."""
        if partition not in self._timers:
            self._watch(partition, self._delivery_s)
        if self._linger_s:
            self._host.loop.call_later(self._linger_s, self._host.wake, partition)
        elif not partition.in_flight.open:  # otherwise the next response does it
            self._host.wake(partition)

    def _watch(self, partition: PartitionQueue, seconds: float) -> None:
        self._timers[partition] = self._host.loop.call_later(seconds, self._due, partition)

    def _due(self, partition: PartitionQueue) -> None:
        del self._timers[partition]
        while (oldest := partition.oldest) is not None:
            left = oldest.made_at + self._delivery_s - time.monotonic()
            if left > 0:
                self._watch(partition, left)
                return
            self._overdue(partition, oldest)

    def _overdue(self, partition: PartitionQueue, batch: PendingBatch) -> None:
        late = f"not delivered within {self._host.settings.delivery_timeout_ms:g} ms"
        if obstacle := self._obstacle(partition):
            late += f" ({obstacle})"
        never = DeliveryTimeoutError(f"{partition}: never sent, {late}")
        if batch.span is None and not partition.loses_none:
            partition.fail_unsent(never, 1)
            return
        # Its sequence numbers are used, or its ids will not come again: no batch may follow it.
        if batch.span is None:
            partition.fail_unsent(never)
        partition.fail_sent(OutcomeUnknownError(f"{partition}: sent, {late}; never sent again"))
        ended = SessionEndedError(f"{partition}: a record was {late}")
        partition.end(ended)
        self._host.refuse(ended)
        self._host.resolved(partition)
