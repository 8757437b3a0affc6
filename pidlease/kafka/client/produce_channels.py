"""Sends batches to the leaders of their partitions.

Kafka handles one request of a connection at a time, until all replicas have it. So producers share
a connection only if there are too few. A producer keeps its connection while it has batches in
flight: their order on the connection is their order in the log. Pending batches of different
partitions share a request.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

from typing_extensions import override

from pidlease.core.buffer import Buffer
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_PRODUCE
from pidlease.kafka.client.bootstrap import connect
from pidlease.kafka.client.broker_connection import (
    BrokerConnection,
    BrokerRequest,
    version_for,
)
from pidlease.kafka.client.cluster import NO_LEADER, Cluster
from pidlease.kafka.codec.primitives import INT32
from pidlease.kafka.codec.produce import (
    NO_TIME,
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


class ProduceSend(BrokerRequest):
    """A batch for the leader of its partition; the sender's subclass takes the outcome.

    It is the request in flight, too, if it has the request to itself.

    Parameters:
        place: the batch's partition.
        data: the batch; it must not change until the outcome is known.
        transactional_id: None: the batch is not transactional.
    """

    __slots__ = ("append_time", "data", "place", "route", "transactional_id")

    #: Set when the batch has a channel.
    route: "_Route"

    def __init__(
        self, place: TopicPartition, data: Buffer, transactional_id: str | None = None
    ) -> None:
        self.place = place
        self.data = data
        self.transactional_id = transactional_id
        #: When Kafka appended it, as in `PartitionResponse`; set before `appended` is called.
        self.append_time = NO_TIME

    @property
    def ended(self) -> bool:
        """Whether it must not be sent any more, because its request has ended."""
        return False

    def appended(self, offset: int) -> None:
        """Take the outcome of a batch that is in the log, on the event loop.

        Parameters:
            offset: the offset of its first record.
        """
        self.completed(PartitionResponse(0, offset, append_time=self.append_time))

    def completed(self, result: PartitionResponse | UpstreamError) -> None:
        """Take the outcome, on the event loop.

        It is unknown after UpstreamLostError and UpstreamNonsenseError. After any other error, the
        batch was not sent.
        """
        raise NotImplementedError

    @override
    def responded(self, response: bytearray | UpstreamError) -> None:
        self.route.channel.responded(self, response)


class _JoinedRequest(BrokerRequest):
    """A request with several batches, or one of a transaction."""

    __slots__ = ("_channel", "_sends")

    def __init__(self, channel: "_Channel", sends: list[ProduceSend]) -> None:
        self._channel = channel
        self._sends = sends

    @override
    def responded(self, response: bytearray | UpstreamError) -> None:
        self._channel.responded_to_all(self._sends, response)


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
        #: Returns whether the process was suspended for so long that nothing of before may be sent;
        #: None: that does not matter.
        self.was_suspended: Callable[[], bool] | None = None
        #: Called with a broker when a connection to it has ended. What is pending is not sent then:
        #: another broker may lead its partitions. None: it is sent over the next connection.
        self.on_lost: Callable[[int], None] | None = None
        self._channels: dict[int, list[_Channel]] = {}
        self._routes: dict[tuple[int, TopicPartition], _Route] = {}

    def send(self, producer: int, send: ProduceSend) -> None:
        """Send a batch to the leader of its partition, after the producer's earlier ones.

        Parameters:
            producer: its batches stay in order; 0: there is no order.
            send: the batch; it gets the outcome after this returns.
        """
        key = (producer, send.place)
        route = self._routes.get(key)
        if route is None:
            leader = self._cluster.view.leader(*send.place)
            if leader == NO_LEADER:
                self._cluster.stale()
                error = UpstreamAwayError(f"no broker leads {send.place} now")
                # Not from here: the receiver may send the next batch at once, and so on.
                asyncio.get_running_loop().call_soon(send.completed, error)
                return
            route = self._routes[key] = _Route(self._choose(leader, producer), key)
            route.channel.enter(producer)
        route.count += 1
        send.route = route
        route.channel.take(send)

    def drop(self) -> None:
        """Send nothing that is pending: it came before the process was suspended."""
        for channels in list(self._channels.values()):
            for channel in channels:
                channel.drop()

    def appended(self, send: ProduceSend, offset: int) -> None:
        """Report that a batch is in the log."""
        self._leave(send)
        try:
            send.appended(offset)
        except Exception:  # noqa: BLE001 - a bug of one receiver must not keep the others waiting
            _log_bug(send)

    def completed(self, send: ProduceSend, result: PartitionResponse | UpstreamError) -> None:
        """Report the outcome of a batch."""
        route = self._leave(send)
        if not isinstance(result, PartitionResponse) or result.code:
            self._failed(route, result)
        try:
            send.completed(result)
        except Exception:  # noqa: BLE001 - a bug of one receiver must not keep the others waiting
            _log_bug(send)

    def connected(self, broker: int) -> bool:
        """Return whether a connection to a broker is open."""
        return any(each.open for each in self._channels.get(broker, ()))

    def _leave(self, send: ProduceSend) -> _Route:
        """Remove a batch from its route."""
        route = send.route
        route.count -= 1
        if not route.count:
            route.channel.leave(route.key[0])
            self._end(route)
        return route

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
            emptiest = _Channel(self, self._cluster, broker)
            channels.append(emptiest)
        return emptiest

    def close(self) -> None:
        """Close all connections; batches in flight fail."""
        for channels in self._channels.values():
            for channel in channels:
                channel.close()


class _Channel:
    """One connection to a broker, opened for the first batch.

    Parameters:
        channels: reports the outcomes.
        cluster: the broker's addresses.
        broker: the broker's id.
    """

    def __init__(self, channels: ProduceChannels, cluster: Cluster, broker: int) -> None:
        self._channels: Final = channels
        self._cluster: Final = cluster
        self._broker: Final = broker
        self._connection: BrokerConnection | None = None
        self._version = 0
        self._connecting: asyncio.Task[None] | None = None
        self._queue: deque[ProduceSend] = deque()
        self._scheduled = False
        self._correlation_id = 0
        self._timeout_ms = int(cluster.config.request_seconds * 1000 * _REPLICAS_PART)
        self._closed = False
        #: Whether a request got no response since the connection was made.
        self._unanswered = False
        #: Producers with batches in flight here, and to how many partitions.
        self.producers: dict[int, int] = {}

    @property
    def open(self) -> bool:
        """Whether it is connected."""
        return self._connection is not None and self._connection.open

    def take(self, send: ProduceSend) -> None:
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

    def drop(self) -> None:
        """Fail what is pending, and close a connection that may still send something."""
        if self._connection is not None and self._connection.in_flight:
            self._connection.close(UpstreamLostError("this server was suspended"))
        self._give_up(UpstreamAwayError("this server was suspended"))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        connection = self._connection
        if not self._queue:
            return
        suspended = self._channels.was_suspended
        if suspended is not None and suspended():
            self.drop()
            return
        if connection is None or not connection.open:
            if self._closed:
                self._give_up(UpstreamAwayError("the server stops"))
            elif self._connecting is None:
                self._connecting = asyncio.create_task(self._connect())
            return
        if suspended is not None and connection.suspended is None:
            connection.hold_back(suspended)
        while self._queue and connection.in_flight < _REQUESTS_MAX and not connection.paused:
            if self._queue[0].ended:
                self._drop_ended(self._queue[0].route)
            else:
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
            connection.on_change = self._changed
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

    def _changed(self) -> None:
        """Send what is pending, unless the connection has ended."""
        connection, lost = self._connection, self._channels.on_lost
        if connection is not None and not connection.open and lost is not None:
            self._connection = None
            if self._unanswered or not self._channels.connected(self._broker):
                lost(self._broker)  # not if Kafka has closed one of several that were idle
            self._unanswered = False
            self._give_up(UpstreamAwayError("the connection to its leader has ended"))
        self._schedule()

    def _give_up(self, error: UpstreamError) -> None:
        """Fail the pending batches: none was sent."""
        pending, self._queue = self._queue, deque()
        for send in pending:
            self._channels.completed(send, error)

    def _drop_ended(self, route: _Route) -> None:
        """Fail the first pending batch, and the later ones of its producer to its partition."""
        dropped = [self._queue.popleft()]
        if route.key[0]:  # without a producer there is no order
            dropped += [send for send in self._queue if send.route is route]
            self._queue = deque(send for send in self._queue if send.route is not route)
        for send in dropped:
            self._channels.completed(send, UpstreamAwayError("a request has ended"))

    def _next(self) -> list[ProduceSend]:
        """Take the batches of the next request: one of each partition, of one transaction."""
        queue = self._queue
        first = queue.popleft()
        sends = [first]
        if not queue or queue[0].place == first.place:
            return sends
        places = {first.place}
        size = len(first.data)
        while queue:
            send = queue[0]
            size += len(send.data)
            if (
                send.place in places
                or size > _REQUEST_BYTES_MAX
                or send.transactional_id != first.transactional_id
                or send.ended
            ):
                break
            places.add(send.place)
            sends.append(queue.popleft())
        return sends

    def _send(self, connection: BrokerConnection, sends: list[ProduceSend]) -> None:
        self._correlation_id = number = self._correlation_id + 1 & 0x7FFFFFFF
        version, send = self._version, sends[0]
        if len(sends) == 1 and send.transactional_id is None:
            send.correlation_id = number
            connection.hold(
                send,
                write_single_request(version, number, self._timeout_ms, send.place, send.data),
            )
            return
        batches = [ProduceBatch(each.place, each.data, each.transactional_id) for each in sends]
        parts = write_produce_request(version, number, self._timeout_ms, batches)
        request = _JoinedRequest(self, sends)
        request.correlation_id = number
        connection.hold(request, [INT32.pack(sum(map(len, parts))), *parts])

    def responded(self, send: ProduceSend, response: bytearray | UpstreamError) -> None:
        """Report the outcome of a batch that had a request to itself."""
        offset = -1
        if isinstance(response, bytearray):
            offset, send.append_time = read_single_response(self._version, response, send.place)
        if offset < 0:
            self.responded_to_all((send,), response)
            return
        self._channels.appended(send, offset)
        if self._queue and not self._scheduled:
            self._schedule()

    def responded_to_all(
        self, sends: Sequence[ProduceSend], response: bytearray | UpstreamError
    ) -> None:
        """Report the outcomes of a request's batches."""
        # All of a connection's responses come before the next connection is made.
        connection, version = cast(BrokerConnection, self._connection), self._version
        rows: dict[TopicPartition, PartitionResponse] = {}
        error: UpstreamError
        if isinstance(response, UpstreamError):
            # Whatever the reason: the request was sent, and may have had its effect.
            error = UpstreamLostError(str(response))
            self._unanswered = True
        else:
            error = UpstreamNonsenseError(f"{connection}: a response to Produce lacks a batch")
            try:
                rows = read_produce_response(version, response)
            except UpstreamNonsenseError as invalid:
                error = invalid
            if rows.keys() != {send.place for send in sends}:
                rows = {}  # the other rows cannot be trusted, either
                LINES.write(_log, "error", "a response of Kafka is invalid", str(connection),
                            broker=str(connection), error=str(error))  # fmt: skip
                connection.close(error)
        for send in sends:
            self._channels.completed(send, rows.get(send.place, error))
        self._schedule()


def _log_bug(send: ProduceSend) -> None:
    _log.exception("the outcome of a batch could not be handled", partition=str(send.place))
