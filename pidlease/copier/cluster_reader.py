"""Reads offsets and records of a cluster's partitions, with retries."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, NamedTuple

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, LeaderNotAvailableError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.structs import TopicPartition

from pidlease.copier.errors import CopyError
from pidlease.core.buffer import Buffer
from pidlease.kafka.error_codes import REREAD
from pidlease.kafka.records.record_batch import HEADER_BYTES, BatchHeader, read_header

_log = logging.getLogger(__name__)

EARLIEST: Final = -2
LATEST: Final = -1
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

#: Back-off before a request of the copier is sent again.
RETRY_S: Final = 0.2
_NO_LEADER: Final = -1
_READ_BYTES: Final = 4 << 20
_PART_BYTES: Final = 1 << 20


def known_leader(client: AIOKafkaClient, place: TopicPartition) -> int | None:
    """Return a partition's leader by the client's metadata; None: it has none."""
    leader = client.cluster.leader_for_partition(place)
    return None if leader is None or leader == _NO_LEADER else int(leader)


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


def chunk_of(part: tuple[Any, ...], *, committed: bool) -> FetchedChunk:
    """Convert a partition's part of aiokafka's Fetch response, version 4 or newer.

    Parameters:
        committed: the request was for committed records: they end at the last stable offset.
    """
    _, _, end, stable, *rest = part
    # Newer versions have more fields between the last stable offset and the records.
    aborted = next((each for each in rest if isinstance(each, list)), [])
    return FetchedChunk(rest[-1] or b"", [(each[0], each[1]) for each in aborted],
                 stable if committed else end)  # fmt: skip


class ClusterReader:
    """Reads from one cluster.

    Parameters:
        client: connected.
        name: of the cluster, for messages.
        seconds: how long a request is sent again until it fails.
    """

    def __init__(self, client: AIOKafkaClient, name: str, seconds: float) -> None:
        self.client: Final = client
        self.name: Final = name
        self._seconds: Final = seconds

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
        request = OffsetRequest(-1, isolation, [(place.topic, [(place.partition, timestamp)])])
        response = await self._ask(place, request)
        offset: int = response.topics[0][1][0][3]
        if offset < 0:  # no record is so young
            return await self.offset(place, LATEST, isolation)
        return offset

    async def chunks(
        self, place: TopicPartition, start: int, end: int, isolation: int = READ_UNCOMMITTED
    ) -> AsyncIterator[FetchedChunk]:
        """Read a part of a partition; batches may begin before it.

        Parameters:
            start: the first offset.
            end: the offset after the last.

        Raises:
            CopyError: it cannot be read.
        """
        while start < end:
            topics = [(place.topic, [(place.partition, start, _PART_BYTES)])]
            request = FetchRequest(100, 1, _READ_BYTES, isolation, topics)
            response = await self._ask(place, request)
            chunk = chunk_of(response.topics[0][1][0], committed=isolation == READ_COMMITTED)
            yield chunk
            next_offset = chunk.next_offset
            if next_offset <= start:
                if chunk.end_offset < end:
                    await asyncio.sleep(RETRY_S)  # a new leader does not have its end yet
                    continue
                return  # nothing is left there: compaction
            start = next_offset

    async def leader(self, place: TopicPartition) -> int:
        """Return a partition's leader; without one, load the metadata again.

        Raises:
            KafkaError: the partition has no leader.
        """
        leader = known_leader(self.client, place)
        if leader is None:
            self.client.add_topic(place.topic)
            await self.client.force_metadata_update()
            leader = known_leader(self.client, place)
        if leader is None:
            raise LeaderNotAvailableError(f"{place.topic}-{place.partition} has no leader")
        return leader

    async def _ask(self, place: TopicPartition, request: Any) -> Any:  # noqa: ANN401 - any API
        """The leader's answer, without an error.

        Raises:
            CopyError: there is none.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._seconds
        while True:
            reason = ""
            try:
                response = await self.client.send(await self.leader(place), request)
            except (KafkaError, OSError, TimeoutError) as error:
                reason = f"{error!r}"
            else:
                code = response.topics[0][1][0][1]
                if not code:
                    return response
                reason = for_code(code).__name__
                if code not in REREAD:
                    raise CopyError(f"{self.name}: {place.topic}-{place.partition}: {reason}")
            if loop.time() > give_up:
                raise CopyError(f"{self.name} does not answer for {place.topic}-{place.partition}:"
                                f" {reason}")  # fmt: skip
            _log.info("%s: %s: %s", self.name, place, reason)
            await asyncio.sleep(RETRY_S)
            await self.client.force_metadata_update()
