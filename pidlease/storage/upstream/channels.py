"""Batches on their way to the leaders of their partitions.

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

from pidlease.storage.snapshot_tables import TopicPartition
from pidlease.storage.upstream.cluster import NO_LEADER, Cluster
from pidlease.storage.upstream.connecting import connect
from pidlease.storage.upstream.errors import (
    UpstreamAwayError,
    UpstreamError,
    UpstreamLostError,
    UpstreamNonsenseError,
)
from pidlease.storage.upstream.link import Link, version_for
from pidlease.storage.upstream.messages import PRODUCE
from pidlease.storage.upstream.produce_wire import (
    VERSIONS,
    Batch,
    Row,
    read_produce,
    write_produce,
)

#: Connections to one broker.
CHANNELS_MAX: Final = 64
#: Requests on a connection that have no answer yet. Kafka works on one; the next are there by then.
_REQUESTS_MAX: Final = 5
#: What one request holds at most, beyond its first batch.
_REQUEST_BYTES_MAX: Final = 4 << 20
#: The leader gives up on the other replicas this part of the time before we give up on the leader.
_REPLICAS_PART: Final = 0.8
#: Unknown topic or partition, not the leader, a disk that failed: who leads may have changed.
_STALE_CODES: Final = frozenset({3, 5, 6, 56, 72, 100})

_log = structlog.get_logger(__name__)

#: Told what became of a batch. UpstreamLostError and UpstreamNonsenseError: it is not known; any
#: other: it was not sent.
Told = Callable[[Row | UpstreamError], None]


class _Send(NamedTuple):
    batch: Batch
    told: Told


class _Lane:
    """What one producer has in flight to a partition, and where."""

    __slots__ = ("channel", "count")

    def __init__(self, channel: "_Channel") -> None:
        self.channel = channel
        self.count = 0


class Channels:
    """All connections on which batches go up.

    Parameters:
        cluster: who leads what.
        channels_max: connections to one broker.
    """

    def __init__(self, cluster: Cluster, channels_max: int = CHANNELS_MAX) -> None:
        self._cluster: Final = cluster
        self._channels_max: Final = channels_max
        self._channels: dict[int, list[_Channel]] = {}
        self._lanes: dict[tuple[int, TopicPartition], _Lane] = {}

    def send(self, producer: int, batch: Batch, told: Told) -> None:
        """Send a batch to the leader of its partition, behind what the producer sent before.

        Parameters:
            producer: whose batches stay in order.
            batch: it stays as it is until `told` is called.
            told: told what became of it, on the event loop.
        """
        key = (producer, batch.place)
        lane = self._lanes.get(key)
        if lane is None:
            leader = self._cluster.view.leader(*batch.place)
            if leader == NO_LEADER:
                self._cluster.stale()
                told(UpstreamAwayError(f"no broker leads {batch.place} now"))
                return
            lane = self._lanes[key] = _Lane(self._choose(leader, producer))
        lane.count += 1
        lane.channel.take(producer, _Send(batch, partial(self._landed, lane, key, told)))

    def _landed(
        self,
        lane: _Lane,
        key: tuple[int, TopicPartition],
        told: Told,
        result: Row | UpstreamError,
    ) -> None:
        lane.count -= 1
        # Without a producer nothing is to stay in order: what comes next goes to who leads now.
        failed = not isinstance(result, Row) or result.code != 0
        if (not lane.count or (failed and not key[0])) and self._lanes.get(key) is lane:
            del self._lanes[key]
        lane.channel.leave(key[0])
        if not isinstance(result, Row) or result.code in _STALE_CODES:
            self._cluster.stale()
        told(result)

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
        """End all connections; what is in flight is told so."""
        for channels in self._channels.values():
            for channel in channels:
                channel.close()


class _Channel:
    """One connection to a broker, opened when there is something to send."""

    def __init__(self, cluster: Cluster, broker: int) -> None:
        self._cluster: Final = cluster
        self._broker: Final = broker
        self._link: Link | None = None
        self._version = 0
        self._connecting: asyncio.Task[None] | None = None
        self._queue: deque[_Send] = deque()
        self._scheduled = False
        self._correlation_id = 0
        self._closed = False
        #: Who has something in flight here, and how much.
        self.producers: dict[int, int] = {}

    def take(self, producer: int, send: _Send) -> None:
        """Send it, soon: what else arrives together goes into the same request."""
        self.producers[producer] = self.producers.get(producer, 0) + 1
        self._queue.append(send)
        self._schedule()

    def leave(self, producer: int) -> None:
        """One of a producer's batches has been answered."""
        self.producers[producer] -= 1
        if not self.producers[producer]:
            del self.producers[producer]

    def close(self) -> None:
        """End it."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.close()
        self._give_up(UpstreamAwayError("the server stops"))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        link = self._link
        if not self._queue:
            return
        if link is None or not link.open:
            if self._closed:
                self._give_up(UpstreamAwayError("the server stops"))
            elif self._connecting is None:
                self._connecting = asyncio.create_task(self._connect())
            return
        while self._queue and link.in_flight < _REQUESTS_MAX and not link.paused:
            self._send(link, self._next())

    async def _connect(self) -> None:
        try:
            address = self._cluster.address(self._broker)
            link = await connect(self._cluster.config, address)
            try:
                self._version = version_for(link, PRODUCE, VERSIONS)
            except UpstreamError:
                link.close()
                raise
            link.on_change = self._schedule
            self._link = link
        except UpstreamError as error:
            self._give_up(error)
        except Exception as error:  # noqa: BLE001 - told to those who wait
            _log.exception("no connection to Kafka")
            self._give_up(UpstreamAwayError(f"no connection to broker {self._broker}: {error!r}"))
        finally:
            self._connecting = None
        self._schedule()

    def _give_up(self, error: UpstreamError) -> None:
        """Nothing of what waits was sent."""
        waiting, self._queue = self._queue, deque()
        for send in waiting:
            _tell(send, error)

    def _next(self) -> dict[TopicPartition, _Send]:
        """What the next request takes: until a partition comes again, or another transaction."""
        sends: dict[TopicPartition, _Send] = {}
        size = 0
        transactional_id = self._queue[0].batch.transactional_id
        while self._queue:
            batch = self._queue[0].batch
            size += len(batch.data)
            if batch.place in sends or (sends and size > _REQUEST_BYTES_MAX):
                break
            if batch.transactional_id != transactional_id:
                break
            sends[batch.place] = self._queue.popleft()
        return sends

    def _send(self, link: Link, sends: dict[TopicPartition, _Send]) -> None:
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        timeout_ms = int(self._cluster.config.request_seconds * 1000 * _REPLICAS_PART)
        parts = write_produce(
            self._version, self._correlation_id, timeout_ms, [each.batch for each in sends.values()]
        )
        link.send(parts, partial(self._answered, link, self._version, sends))

    def _answered(
        self,
        link: Link,
        version: int,
        sends: dict[TopicPartition, _Send],
        answer: bytearray | UpstreamError,
    ) -> None:
        rows: dict[TopicPartition, Row] = {}
        error: UpstreamError
        if isinstance(answer, UpstreamError):
            # Whatever it was: the request is gone, and may have had its effect.
            error = UpstreamLostError(str(answer))
        else:
            error = UpstreamNonsenseError(f"{link}: a batch is missing in an answer to Produce")
            try:
                rows = read_produce(version, answer)
            except UpstreamNonsenseError as nonsense:
                error = nonsense
            if rows.keys() != sends.keys():
                _log.error("an answer of Kafka makes no sense", broker=str(link), error=str(error))
                link.close(error)
        for place, send in sends.items():
            _tell(send, rows.get(place, error))
        self._schedule()


def _tell(send: _Send, result: Row | UpstreamError) -> None:
    """Tell one of many; what goes wrong there is not to keep the others waiting."""
    try:
        send.told(result)
    except Exception:  # noqa: BLE001 - a bug
        _log.exception("what became of a batch could not be told", partition=str(send.batch.place))
