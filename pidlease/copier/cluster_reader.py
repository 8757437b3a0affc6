"""Reads offsets and records of a cluster's partitions, with retries."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from pidlease.copier.errors import CopyError
from pidlease.core.buffer import Buffer
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_FETCH
from pidlease.kafka.client.broker_connection import BrokerConnection, version_for
from pidlease.kafka.client.cluster import NO_LEADER, Cluster, View
from pidlease.kafka.client.exchange import ask_for
from pidlease.kafka.client.offset_requests import EARLIEST, LATEST, list_offsets
from pidlease.kafka.client.topic_configs import compacted
from pidlease.kafka.codec.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchLimits,
    aborted_transactions,
    read_partitions,
    write_fetch_request,
)
from pidlease.kafka.codec.messages import error_name
from pidlease.kafka.error_codes import REREAD
from pidlease.kafka.errors import UpstreamAwayError, UpstreamError, UpstreamNonsenseError
from pidlease.kafka.records.old_formats import (
    OldFormatError,
    has_old_format,
    in_current_format,
)
from pidlease.kafka.records.record_batch import HEADER_BYTES, BatchHeader, read_header
from pidlease.storage.topics.topic_store import is_own_id

_log = logging.getLogger(__name__)

#: Back-off before a request of the copier is sent again.
RETRY_S: Final = 0.2
#: What is said of a source's topic with another id than before.
MADE_ANEW: Final = "was deleted and made anew: copy it to a new topic, with another group"
#: A part of a compacted topic is empty if nothing came for so long.
_COMPACTED_S: Final = 5.0
#: Added to the error if nothing comes from a topic without known settings.
_HINT: Final = (
    ". Compaction may have removed the rest, but the settings of the topic cannot be read: this"
    " needs the right DescribeConfigs on the topic"
)
_WAIT_MS: Final = 100
_READ_BYTES: Final = 4 << 20
_PART_BYTES: Final = 1 << 20
_NO_OFFSET: Final = -1
Answer = TypeVar("Answer")


class FetchedChunk(NamedTuple):
    """A fetch's records of one partition.

    Attributes:
        data: batches; the first may begin before the requested offset, the last may be cut off.
        aborted: aborted transactions: (producer id, first offset), in any order.
        end_offset: the high watermark, or the last stable offset.
    """

    data: Buffer
    aborted: list[tuple[int, int]]
    end_offset: int

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the whole batches, not validated."""
        view = memoryview(self.data)
        at = 0
        while len(view) - at >= HEADER_BYTES:
            header = read_header(view, at)
            if at + header.size > len(view):
                return
            if header.size < HEADER_BYTES:  # an old format, or no batch: the caller validates it
                yield header, view[at:]
                return
            yield header, view[at : at + header.size]
            at += header.size

    @property
    def next_offset(self) -> int:
        """The offset after its last whole batch; -1: it has none."""
        last = -1
        for header, _ in self.batches():
            last = header.last_offset
        return last + 1 if last >= 0 else -1


class FetchedPartition(NamedTuple):
    """A partition's part of a response to Fetch: an error code, or a chunk."""

    code: int
    chunk: FetchedChunk


async def fetch(
    connection: BrokerConnection, offsets: Mapping[TopicPartition, int], limits: FetchLimits
) -> dict[TopicPartition, FetchedPartition]:
    """Fetch partitions from their offsets on.

    Parameters:
        connection: to the partitions' leader.

    Raises:
        UpstreamError: there is no response.
        CopyError: a message of an old format cannot be read.
    """
    version = version_for(connection, API_FETCH)
    body = write_fetch_request(version, offsets, limits, connection.client_id)
    code, rows = await ask_for(connection, body, partial(read_partitions, version))
    if code:
        raise UpstreamAwayError(f"{connection}: {error_name(code)}")
    found = {}
    for place, row in rows.items():
        high_watermark, last_stable, _ = row.offsets
        partition, data = TopicPartition(*place), bytes(row.data[len(row.data) - row.size :])
        if has_old_format(data):
            data = await _converted(partition, data, offsets.get(partition, 0))
        found[partition] = FetchedPartition(row.code, FetchedChunk(
            data, aborted_transactions(version, row),
            last_stable if limits.isolation == READ_COMMITTED else high_watermark,
        ))  # fmt: skip
    return found


async def _converted(partition: TopicPartition, data: bytes, offset: int) -> bytes:
    """Convert messages of old formats to batches.

    Raises:
        CopyError: the message at the offset cannot be read.
    """
    try:
        return await asyncio.to_thread(in_current_format, data, offset)
    except OldFormatError as error:
        where = f"{partition}, offset {error.offset}"
        raise CopyError(f"{where}: {error}; look at the source") from None


def topic_id_of(view: View, topic: str) -> str:
    """Return a topic's id; empty: it is unknown, or the cluster gives none (Kafka before 2.8)."""
    found = view.topics.get(topic)
    return found.topic_id if found is not None and is_own_id(found.topic_id) else ""


def is_other_topic(known: str, topic_id: str) -> bool:
    """Whether a topic was deleted and made anew, by its ids then and now."""
    return "" not in (known, topic_id) and known != topic_id


class ClusterReader:
    """Reads from one cluster.

    Parameters:
        cluster: started.
        name: of the cluster, for messages.
        seconds: how long a request is sent again until it fails.
    """

    def __init__(self, cluster: Cluster, name: str, seconds: float) -> None:
        self._cluster: Final = cluster
        self.name: Final = name
        self._seconds: Final = seconds

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic that is read; empty: it is unknown."""
        return topic_id_of(self._cluster.view, topic)

    async def offset(
        self, place: TopicPartition, timestamp: int, isolation: int = READ_UNCOMMITTED
    ) -> int:
        """Return an offset: the first one, the end, or that of the first record from a time on.

        Parameters:
            timestamp: EARLIEST, LATEST, or ms since 1970.
            isolation: READ_COMMITTED: the end is the last stable offset.

        Raises:
            CopyError: the cluster does not return it.
        """

        async def request(connection: BrokerConnection) -> tuple[int, int]:
            rows = await list_offsets(connection, [place], timestamp, isolation)
            if place not in rows:
                raise UpstreamNonsenseError(f"{connection} returns no offset of {place}")
            return int(rows[place].error_code.value), int(rows[place].offset)

        if timestamp in (EARLIEST, LATEST):
            return await self._ask(place, request)
        # In this order: a record that is so young may come meanwhile.
        end = await self.offset(place, LATEST, isolation)
        offset = await self._ask(place, request)
        return end if offset == _NO_OFFSET else offset

    async def records_until(self, place: TopicPartition) -> tuple[bool, int]:
        """Return whether a partition has, or had, records, and its end.

        Control batches are none: a server in front of Kafka has one written to each partition that
        it takes over.

        Raises:
            CopyError: it cannot be read.
        """
        end = await self.offset(place, LATEST)
        if not end or await self.offset(place, EARLIEST):
            return end > 0, end
        async for chunk in self.chunks(place, 0, end):
            if not all(header.is_control for header, _ in chunk.batches()):
                return True, end
        return False, end

    async def chunks(
        self, place: TopicPartition, start: int, end: int, isolation: int = READ_UNCOMMITTED
    ) -> AsyncIterator[FetchedChunk]:
        """Read a part of a partition; batches may begin before it.

        A response without records is no end: a leader may not know its end yet, and a server may
        return nothing while it has no memory, or when another request follows. Only compaction
        leaves nothing there.

        Parameters:
            start: the first offset.
            end: the offset after the last.

        Raises:
            CopyError: it cannot be read, or some of it does not come.
        """
        limits = FetchLimits(_WAIT_MS, _READ_BYTES, _PART_BYTES, isolation)
        loop = asyncio.get_running_loop()
        moved_at, hint = loop.time(), ""
        while start < end:
            chunk = await self._ask(place, partial(_fetch_one, {place: start}, limits))
            if chunk.data:
                yield chunk
            if chunk.next_offset > start:
                start, moved_at = chunk.next_offset, loop.time()
                continue
            waited = loop.time() - moved_at
            if waited > self._seconds:
                raise CopyError(
                    f"{self.name}: {place}: nothing comes from offset {start} on; it ends at"
                    f" {chunk.end_offset}, and should go up to {end}{hint}"
                )
            if chunk.end_offset >= end and waited > min(_COMPACTED_S, self._seconds / 2):
                is_compacted = await self._is_compacted(place.topic)
                if is_compacted:
                    return
                hint = _HINT if is_compacted is None else ""
            await asyncio.sleep(RETRY_S)

    async def _is_compacted(self, topic: str) -> bool | None:
        """Return whether a topic is compacted; None: the cluster does not return its settings."""
        try:
            found = await compacted(await self._cluster.any_connection(), [topic])
        except UpstreamError as error:
            _log.info("%s: the settings of %s: %s", self.name, topic, error)
            return None
        return found.get(topic)

    async def _leader(self, place: TopicPartition) -> BrokerConnection:
        """Return a connection to a partition's leader; without one, load the metadata again.

        Raises:
            UpstreamError: the partition has no leader, or it does not respond.
        """
        cluster = self._cluster
        cluster.topics.add(place.topic)
        if cluster.view.leader(*place) == NO_LEADER:
            await cluster.load()
        leader = cluster.view.leader(*place)
        if leader == NO_LEADER:
            raise UpstreamAwayError(f"{place} has no leader")
        return await cluster.connection_to(leader)

    async def _ask(
        self,
        place: TopicPartition,
        request: Callable[[BrokerConnection], Awaitable[tuple[int, Answer]]],
    ) -> Answer:
        """Return the response of a partition's leader, with retries.

        Parameters:
            request: returns an error code and the response.

        Raises:
            CopyError: there is none.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._seconds
        while True:
            try:
                code, response = await request(await self._leader(place))
            except UpstreamError as error:
                reason = str(error)
            else:
                if not code:
                    return response
                reason = error_name(code)
                if code not in REREAD:
                    raise CopyError(f"{self.name}: {place}: {reason}")
            if loop.time() > give_up:
                raise CopyError(f"{self.name} does not answer for {place}: {reason}")
            _log.info("%s: %s: %s", self.name, place, reason)
            await asyncio.sleep(RETRY_S)
            await self._cluster.load()


async def _fetch_one(
    offsets: Mapping[TopicPartition, int], limits: FetchLimits, connection: BrokerConnection
) -> tuple[int, FetchedChunk]:
    found = await fetch(connection, offsets, limits)
    if found.keys() != offsets.keys():
        raise UpstreamAwayError(f"{connection} returns nothing of {', '.join(map(str, offsets))}")
    (partition,) = found.values()
    return partition
