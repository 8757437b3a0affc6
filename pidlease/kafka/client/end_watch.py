"""Notices what other clients of Kafka write: one long poll for each leader, while readers wait."""

import asyncio
from functools import partial
from typing import Final, Protocol

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_FETCH
from pidlease.kafka.client.bootstrap import connect
from pidlease.kafka.client.broker_connection import BrokerConnection, version_for
from pidlease.kafka.client.cluster import NO_LEADER, Cluster
from pidlease.kafka.client.exchange import ask_for
from pidlease.kafka.codec.fetch import (
    READ_COMMITTED,
    EncodedPartition,
    FetchLimits,
    read_partitions,
    write_fetch_request,
)
from pidlease.kafka.errors import UpstreamError
from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import LINES, kind_of

#: A broker returns one batch at least, whatever the limit; only the offsets count here.
#: A partition that is new to the watch waits for the end of a poll, so a poll is short.
_LIMITS: Final = FetchLimits(250, 1, 1, READ_COMMITTED)
#: The pause after a poll that found something: own appends end each poll, too.
_REST_SECONDS: Final = 0.05
#: The pause before a partition without a known end, or without a leader, is looked at again.
_UNKNOWN_SECONDS: Final = 0.02
_FAILED_SECONDS: Final = 0.25

_log = Logger(__name__)


class WatchedLog(Protocol):
    """A partition with readers that wait."""

    @property
    def stable_offset(self) -> int:
        """The last stable offset, as far as it is known; -1: unknown."""

    def moved(self, stable_offset: int) -> None:
        """Note that the last stable offset may be higher, and wake the readers."""


class EndWatch:
    """Watches the last stable offsets of partitions.

    Parameters:
        cluster: the cluster, started.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster: Final = cluster
        self._logs: Final[dict[TopicPartition, WatchedLog]] = {}
        self._polls: Final[dict[int, asyncio.Task[None]]] = {}

    def add(self, place: TopicPartition, log: WatchedLog) -> None:
        """Watch a partition from now on."""
        self._logs[place] = log
        self._begin(self._cluster.view.leader(*place))

    def remove(self, place: TopicPartition, log: WatchedLog) -> None:
        """Watch a partition no longer."""
        if self._logs.get(place) is log:
            del self._logs[place]

    def close(self) -> None:
        """End all polls."""
        self._logs.clear()
        for poll in self._polls.values():
            poll.cancel()

    def _begin(self, leader: int) -> None:
        if leader not in self._polls:
            poll = self._polls[leader] = asyncio.create_task(self._poll_always(leader))
            poll.add_done_callback(partial(self._ended, leader))

    def _ended(self, leader: int, poll: asyncio.Task[None]) -> None:
        del self._polls[leader]
        if not poll.cancelled() and (error := poll.exception()) is not None:
            _log.error("the watch of a broker's partitions has ended", broker=leader,
                       error=repr(error))  # fmt: skip

    async def _poll_always(self, leader: int) -> None:
        """Poll a leader while partitions of it are watched."""
        connection: BrokerConnection | None = None
        try:
            while led := self._led_by(leader):
                offsets = {place: log.stable_offset for place, log in led.items()
                           if log.stable_offset >= 0}  # fmt: skip
                if leader == NO_LEADER or not offsets:
                    if leader == NO_LEADER:
                        self._cluster.stale()
                    await asyncio.sleep(_UNKNOWN_SECONDS)
                    continue
                try:
                    if connection is None or not connection.open:
                        address = self._cluster.address(leader)
                        connection = await connect(self._cluster.config, address)
                    await asyncio.sleep(await self._poll(connection, offsets))
                except UpstreamError as error:
                    LINES.write(_log, "info", "a broker cannot be polled; it is polled again",
                                kind_of(error), broker=leader, error=str(error))  # fmt: skip
                    self._cluster.stale()
                    await asyncio.sleep(_FAILED_SECONDS)
        finally:
            if connection is not None:
                connection.close()

    def _led_by(self, leader: int) -> dict[TopicPartition, WatchedLog]:
        """Return the watched partitions of a leader; begin a poll for those of new leaders."""
        led = {}
        for place, log in self._logs.items():
            current = self._cluster.view.leader(*place)
            if current == leader:
                led[place] = log
            else:
                self._begin(current)
        return led

    async def _poll(
        self, connection: BrokerConnection, offsets: dict[TopicPartition, int]
    ) -> float:
        """Wait until a partition has more to read; return how long to rest then, in seconds.

        Raises:
            UpstreamError: there is no response.
        """
        version = version_for(connection, API_FETCH)
        body = write_fetch_request(version, offsets, _LIMITS)
        code, rows = await ask_for(connection, body, partial(read_partitions, version))
        rest = _FAILED_SECONDS if code else 0.0
        for place, offset in offsets.items():
            row, log = rows.get(place), self._logs.get(place)
            if row is not None and log is not None:
                rest = max(rest, self._found(row, log, offset))
        return rest

    def _found(self, row: EncodedPartition, log: WatchedLog, offset: int) -> float:
        """Handle a partition of a response; return how long to rest, in seconds."""
        _, stable, _ = row.offsets
        if row.code:  # perhaps its readers learn why
            self._cluster.stale()
            log.moved(offset)
            return _FAILED_SECONDS
        if stable <= offset:
            return 0.0
        log.moved(stable)
        return _REST_SECONDS
