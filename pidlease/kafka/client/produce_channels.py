"""Sends batches to the leaders of their partitions.

Kafka works on one request of a connection at a time, until all replicas have it. So producers do
not share a connection where there are enough of them; but what one producer sends stays on one
connection for as long as anything of it is in flight: its order there is its order in the log.
Batches that wait together go up in one request, one for each partition.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import structlog

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
from pidlease.observability.repeated_lines import LINES, kind_of

#: Connections to one broker.
CHANNELS_MAX: Final = 64
#: Requests on a connection that have no answer yet. Kafka works on one; the next are there by then.
_REQUESTS_MAX: Final = 5
#: What one request holds at most, beyond its first batch.
_REQUEST_BYTES_MAX: Final = 4 << 20
#: The leader gives up on the other replicas this part of the time before we give up on the leader.
_REPLICAS_PART: Final = 0.8

_log = structlog.get_logger(__name__)

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
    """All connections on which batches go up.

    Parameters:
        cluster: the leaders.
        channels_max: connections to one broker.
    """

    def __init__(self, cluster: Cluster, channels_max: int = CHANNELS_MAX) -> None:
        self._cluster: Final = cluster
        self._channels_max: Final = channels_max
        self._channels: dict[int, list[_Channel]] = {}
        self._routes: dict[tuple[int, TopicPartition], _Route] = {}

    def send(self, producer: int, batch: ProduceBatch, on_response: OnResponse) -> None:
        """Send a batch to the leader of its partition, after those that the producer sent before.

        Parameters:
            producer: its batches stay in order.
            batch: not to be changed until the response.
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
            # Without a producer there is no order to keep: the next goes to the new leader.
            self._end(route)
        if not isinstance(result, PartitionResponse) or result.code in STALE_LEADER:
            self._cluster.stale()

    def _end(self, route: _Route) -> None:
        """What comes next goes another way."""
        if self._routes.get(route.key) is route:
            del self._routes[route.key]

    def _choose(self, broker: int, producer: int) -> "_Channel":
        """Where the producer has something in flight; else a free connection; else the emptiest."""
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
        """End all connections; batches in flight fail."""
        for channels in self._channels.values():
            for channel in channels:
                channel.close()


class _Channel:
    """One connection to a broker, opened when there is something to send."""

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
        """Send it, soon: what else arrives together goes into the same request."""
        self._queue.append(send)
        if not self._scheduled:
            self._schedule()

    def enter(self, producer: int) -> None:
        """A producer begins to send to a partition."""
        self.producers[producer] = self.producers.get(producer, 0) + 1

    def leave(self, producer: int) -> None:
        """All that a producer has sent to a partition has been answered."""
        self.producers[producer] -= 1
        if not self.producers[producer]:
            del self.producers[producer]

    def close(self) -> None:
        """End it."""
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
        except Exception as error:  # noqa: BLE001 - the batches that wait fail by it
            LINES.write(_log, "error", "no connection to Kafka", (self._broker, kind_of(error)),
                        error, broker=self._broker, error=repr(error))  # fmt: skip
            self._give_up(UpstreamAwayError(f"no connection to broker {self._broker}: {error!r}"))
        finally:
            self._connecting = None
        self._schedule()

    def _give_up(self, error: UpstreamError) -> None:
        """Nothing of what waits was sent."""
        waiting, self._queue = self._queue, deque()
        for send in waiting:
            _report(send, error)

    def _next(self) -> list[_Send]:
        """What the next request takes: until a partition comes again, or another transaction."""
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
                partial(self._answered_alone, connection, version, sends),
            )
            return
        parts = write_produce_request(
            version, number, self._timeout_ms, [each.batch for each in sends]
        )
        connection.hold(parts, partial(self._answered, connection, version, sends))

    def _answered_alone(
        self,
        connection: BrokerConnection,
        version: int,
        sends: list[_Send],
        answer: bytearray | UpstreamError,
    ) -> None:
        row = None
        if isinstance(answer, bytearray):
            row = read_single_response(version, answer, sends[0].batch.place)
        if row is None:
            self._answered(connection, version, sends, answer)
            return
        _report(sends[0], row)
        if self._queue:
            self._schedule()

    def _answered(
        self,
        connection: BrokerConnection,
        version: int,
        sends: list[_Send],
        answer: bytearray | UpstreamError,
    ) -> None:
        rows: dict[TopicPartition, PartitionResponse] = {}
        error: UpstreamError
        if isinstance(answer, UpstreamError):
            # Whatever it was: the request is gone, and may have had its effect.
            error = UpstreamLostError(str(answer))
        else:
            error = UpstreamNonsenseError(
                f"{connection}: a batch is missing in an answer to Produce"
            )
            try:
                rows = read_produce_response(version, answer)
            except UpstreamNonsenseError as nonsense:
                error = nonsense
            if rows.keys() != {send.batch.place for send in sends}:
                rows = {}  # what fits is not to be believed, either
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
            "the outcome of a batch could not be handed on", partition=str(send.batch.place)
        )
