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

_NOBODY: Final = -1
_REST_S: Final = 0.2
_READ_BYTES: Final = 4 << 20
_PART_BYTES: Final = 1 << 20


def known_leader(client: AIOKafkaClient, place: TopicPartition) -> int | None:
    """Who leads a partition, as far as a client knows; None: nobody is known to."""
    leader = client.cluster.leader_for_partition(place)
    return None if leader is None or leader == _NOBODY else int(leader)


class Chunk(NamedTuple):
    """A fetch's records of one partition.

    Attributes:
        data: batches; the first may begin before what was asked for, the last may be cut off.
        aborted: transactions that were aborted: (producer id, first offset), in any order.
        end_offset: where reading goes up to now.
    """

    data: Buffer
    aborted: list[tuple[int, int]]
    end_offset: int

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The whole batches; nothing of them is checked."""
        view = memoryview(self.data)
        at = 0
        while len(view) - at >= HEADER_BYTES:
            header = read_header(view, at)
            if at + header.size > len(view):
                return
            if header.size < HEADER_BYTES:  # of an old format, or none: for who checks it
                yield header, view[at:]
                return
            yield header, view[at : at + header.size]
            at += header.size

    @property
    def behind(self) -> int:
        """The first offset behind its last whole batch; -1: it has none."""
        last = -1
        for header, _ in self.batches():
            last = header.last_offset
        return last + 1 if last >= 0 else -1


def chunk_of(part: tuple[Any, ...], *, committed: bool) -> Chunk:
    """What stands in aiokafka's Fetch answer of version 4 or newer.

    Parameters:
        part: the partition's part of it.
        committed: only what is committed was asked for: that ends at the last stable offset.
    """
    _, _, end, stable, *rest = part
    # More comes between the last stable offset and the records from version to version.
    aborted = next((each for each in rest if isinstance(each, list)), [])
    return Chunk(rest[-1] or b"", [(each[0], each[1]) for each in aborted],
                 stable if committed else end)  # fmt: skip


class Asked:
    """One cluster.

    Parameters:
        client: connected.
        name: of the cluster, for messages.
        seconds: how long it is asked again before that is given up.
    """

    def __init__(self, client: AIOKafkaClient, name: str, seconds: float) -> None:
        self.client: Final = client
        self.name: Final = name
        self._seconds: Final = seconds

    async def offset(
        self, place: TopicPartition, timestamp: int, isolation: int = READ_UNCOMMITTED
    ) -> int:
        """A partition's offset: the first, the end, or the first record's at or behind a time.

        Parameters:
            timestamp: EARLIEST, LATEST, or ms since 1970.
            isolation: READ_COMMITTED: the end is the last stable offset.

        Raises:
            CopyError: it cannot be asked.
        """
        request = OffsetRequest(-1, isolation, [(place.topic, [(place.partition, timestamp)])])
        response = await self._ask(place, request)
        offset: int = response.topics[0][1][0][3]
        if offset < 0:  # nothing is so young
            return await self.offset(place, LATEST, isolation)
        return offset

    async def chunks(
        self, place: TopicPartition, start: int, end: int, isolation: int = READ_UNCOMMITTED
    ) -> AsyncIterator[Chunk]:
        """Read a part of a partition; batches may begin before it.

        Parameters:
            start: the first offset,
            end: and the first behind it.

        Raises:
            CopyError: it cannot be read.
        """
        while start < end:
            topics = [(place.topic, [(place.partition, start, _PART_BYTES)])]
            request = FetchRequest(100, 1, _READ_BYTES, isolation, topics)
            response = await self._ask(place, request)
            chunk = chunk_of(response.topics[0][1][0], committed=isolation == READ_COMMITTED)
            yield chunk
            behind = chunk.behind
            if behind <= start:
                if chunk.end_offset < end:
                    await asyncio.sleep(_REST_S)  # a new leader does not know its end yet
                    continue
                return  # nothing is left there: compaction
            start = behind

    async def leader(self, place: TopicPartition) -> int:
        """Who leads a partition.

        Raises:
            KafkaError: nobody is known to.
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
            await asyncio.sleep(_REST_S)
            await self.client.force_metadata_update()
