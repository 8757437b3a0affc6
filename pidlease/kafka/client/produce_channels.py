"""Sends batches to the leaders of their partitions.

Kafka handles one request of a connection at a time, until all replicas have it. So producers share
a connection only if there are too few. A producer keeps its connection while it has batches in
flight: their order on the connection is their order in the log. Pending batches of different
partitions share a request.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_PRODUCE
from pidlease.kafka.client.bootstrap import connect
from pidlease.kafka.client.broker_connection import BrokerConnection, version_for
from pidlease.kafka.client.cluster import NO_LEADER, Cluster
from pidlease.kafka.codec.produce import (
    PartitionResponse,
    ProduceBatch,
    read_produce_response,
    read_single_response,
    write_produce_request,
    write_single_request,
)
from pidlease.kafka.error_codes import STALE_LEADER
from pidlease.kafka.errors import (
    UpstreamAwayError,
    UpstreamError,
    UpstreamLostError,
    UpstreamNonsenseError,
)
from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import LINES, kind_of

#: The most connections to one broker.
CHANNELS_MAX: Final = 64
#: The most requests in flight on a connection: Kafka handles one, and has the next ones already.
_REQUESTS_MAX: Final = 5
#: The most bytes of a request with more than one batch.
_REQUEST_BYTES_MAX: Final = 4 << 20
#: The leader may wait for the other replicas for this part of the response time.
_REPLICAS_PART: Final = 0.8

_log = Logger(__name__)

#: Gets the outcome of a batch: unknown after UpstreamLostError and UpstreamNonsenseError; not sent
#: after any other error.
OnResponse = Callable[[PartitionResponse | UpstreamError], None]


class _Send(NamedTuple):
    batch: ProduceBatch
    on_response: OnResponse


class _Route:
    """The channel of a producer to a partition, and its batches in flight there."""

    __slots__ = ("channel", "count", "key")

    def __init__(self, channel: "_Channel", key: tuple[int, TopicPartition]) -> None:
        self.channel = channel
        self.key = key
        self.count = 0


class ProduceChannels:
    """The connections for Produce.

    Parameters:
        cluster: the leaders.
        channels_max: the most connections to one broker.
    """

    def __init__(self, cluster: Cluster, channels_max: int = CHANNELS_MAX) -> None:
        self._cluster: Final = cluster
        self._channels_max: Final = channels_max
        self._channels: dict[int, list[_Channel]] = {}
        self._routes: dict[tuple[int, TopicPartition], _Route] = {}

    def send(self, producer: int, batch: ProduceBatch, on_response: OnResponse) -> None:
        """Send a batch to the leader of its partition, after the producer's earlier ones.

        Parameters:
            producer: its batches stay in order.
            batch: must not change until the response.
            on_response: gets the outcome, on the event loop.
        """
        key = (producer, batch.place)
        route = self._routes.get(key)
        if route is None:
            leader = self._cluster.view.leader(*batch.place)
            if leader == NO_LEADER:
                self._cluster.stale()
                on_response(UpstreamAwayError(f"no broker leads {batch.place} now"))
                return
            route = self._routes[key] = _Route(self._choose(leader, producer), key)
            route.channel.enter(producer)
        route.count += 1
        route.channel.take(_Send(batch, partial(self._landed, route, on_response)))

    def _landed(
        self, route: _Route, on_response: OnResponse, result: PartitionResponse | UpstreamError
    ) -> None:
        route.count -= 1
        if not route.count:
            route.channel.leave(route.key[0])
            self._end(route)
        if not isinstance(result, PartitionResponse) or result.code:
            self._failed(route, result)
        on_response(result)

    def _failed(self, route: _Route, result: PartitionResponse | UpstreamError) -> None:
        if not route.key[0]:
            # Without a producer there is no order: the next batch goes to the new leader.
            self._end(route)
        if not isinstance(result, PartitionResponse) or result.code in STALE_LEADER:
            self._cluster.stale()

    def _end(self, route: _Route) -> None:
        """Choose another channel for the producer's next batch."""
        if self._routes.get(route.key) is route:
            del self._routes[route.key]

    def _choose(self, broker: int, producer: int) -> "_Channel":
        """Return the producer's channel, or a free one, or that with the fewest producers."""
        channels = self._channels.setdefault(broker, [])
        for channel in channels:
            if producer in channel.producers:
                return channel
        emptiest = min(channels, key=lambda each: len(each.producers), default=None)
        if emptiest is None or (emptiest.producers and len(channels) < self._channels_max):
            emptiest = _Channel(self._cluster, broker)
            channels.append(emptiest)
        return emptiest

    def close(self) -> None:
        """Close all connections; batches in flight fail."""
        for channels in self._channels.values():
            for channel in channels:
                channel.close()


class _Channel:
    """One connection to a broker, opened for the first batch."""

    def __init__(self, cluster: Cluster, broker: int) -> None:
        self._cluster: Final = cluster
        self._broker: Final = broker
        self._connection: BrokerConnection | None = None
        self._version = 0
        self._connecting: asyncio.Task[None] | None = None
        self._queue: deque[_Send] = deque()
        self._scheduled = False
        self._correlation_id = 0
        self._timeout_ms = int(cluster.config.request_seconds * 1000 * _REPLICAS_PART)
        self._closed = False
        #: Producers with batches in flight here, and to how many partitions.
        self.producers: dict[int, int] = {}

    def take(self, send: _Send) -> None:
        """Send a batch soon, together with those that arrive in the same turn of the loop."""
        self._queue.append(send)
        if not self._scheduled:
            self._schedule()

    def enter(self, producer: int) -> None:
        """Note that a producer has batches in flight to one partition more."""
        self.producers[producer] = self.producers.get(producer, 0) + 1

    def leave(self, producer: int) -> None:
        """Note that a producer's batches to one partition have their responses."""
        self.producers[producer] -= 1
        if not self.producers[producer]:
            del self.producers[producer]

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()
        self._give_up(UpstreamAwayError("the server stops"))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        connection = self._connection
        if not self._queue:
            return
        if connection is None or not connection.open:
            if self._closed:
                self._give_up(UpstreamAwayError("the server stops"))
            elif self._connecting is None:
                self._connecting = asyncio.create_task(self._connect())
            return
        while self._queue and connection.in_flight < _REQUESTS_MAX and not connection.paused:
            self._send(connection, self._next())
        connection.flush()

    async def _connect(self) -> None:
        try:
            address = self._cluster.address(self._broker)
            connection = await connect(self._cluster.config, address)
            try:
                self._version = version_for(connection, API_PRODUCE)
            except UpstreamError:
                connection.close()
                raise
            connection.on_change = self._schedule
            self._connection = connection
        except UpstreamError as error:
            self._give_up(error)
        except Exception as error:  # noqa: BLE001 - the pending batches fail with it
            LINES.write(_log, "error", "no connection to Kafka", (self._broker, kind_of(error)),
                        error, broker=self._broker, error=repr(error))  # fmt: skip
            self._give_up(UpstreamAwayError(f"no connection to broker {self._broker}: {error!r}"))
        finally:
            self._connecting = None
        self._schedule()

    def _give_up(self, error: UpstreamError) -> None:
        """Fail the pending batches: none was sent."""
        pending, self._queue = self._queue, deque()
        for send in pending:
            _report(send, error)

    def _next(self) -> list[_Send]:
        """Take the batches of the next request: one of each partition, of one transaction."""
        queue = self._queue
        first = queue.popleft()
        sends = [first]
        if not queue or queue[0].batch.place == first.batch.place:
            return sends
        places = {first.batch.place}
        size = len(first.batch.data)
        while queue:
            batch = queue[0].batch
            size += len(batch.data)
            if (
                batch.place in places
                or size > _REQUEST_BYTES_MAX
                or batch.transactional_id != first.batch.transactional_id
            ):
                break
            places.add(batch.place)
            sends.append(queue.popleft())
        return sends

    def _send(self, connection: BrokerConnection, sends: list[_Send]) -> None:
        self._correlation_id = number = self._correlation_id + 1 & 0x7FFFFFFF
        version, batch = self._version, sends[0].batch
        if len(sends) == 1 and batch.transactional_id is None:
            connection.hold(
                write_single_request(version, number, self._timeout_ms, batch),
                partial(self._completed_alone, connection, version, sends),
            )
            return
        parts = write_produce_request(
            version, number, self._timeout_ms, [each.batch for each in sends]
        )
        connection.hold(parts, partial(self._completed, connection, version, sends))

    def _completed_alone(
        self,
        connection: BrokerConnection,
        version: int,
        sends: list[_Send],
        response: bytearray | UpstreamError,
    ) -> None:
        row = None
        if isinstance(response, bytearray):
            row = read_single_response(version, response, sends[0].batch.place)
        if row is None:
            self._completed(connection, version, sends, response)
            return
        _report(sends[0], row)
        if self._queue:
            self._schedule()

    def _completed(
        self,
        connection: BrokerConnection,
        version: int,
        sends: list[_Send],
        response: bytearray | UpstreamError,
    ) -> None:
        rows: dict[TopicPartition, PartitionResponse] = {}
        error: UpstreamError
        if isinstance(response, UpstreamError):
            # Whatever the reason: the request was sent, and may have had its effect.
            error = UpstreamLostError(str(response))
        else:
            error = UpstreamNonsenseError(f"{connection}: a response to Produce lacks a batch")
            try:
                rows = read_produce_response(version, response)
            except UpstreamNonsenseError as invalid:
                error = invalid
            if rows.keys() != {send.batch.place for send in sends}:
                rows = {}  # the other rows cannot be trusted, either
                LINES.write(_log, "error", "a response of Kafka is invalid", str(connection),
                            broker=str(connection), error=str(error))  # fmt: skip
                connection.close(error)
        for send in sends:
            _report(send, rows.get(send.batch.place, error))
        self._schedule()


def _report(send: _Send, result: PartitionResponse | UpstreamError) -> None:
    """Report an outcome; a bug of one receiver must not keep the others waiting."""
    try:
        send.on_response(result)
    except Exception:  # noqa: BLE001 - a bug
        _log.exception(
            "the outcome of a batch could not be handled", partition=str(send.batch.place)
        )
