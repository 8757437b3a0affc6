"""Fetches many partitions of the source: one long poll for each leader."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, Protocol

from pidlease.client.background_tasks import BackgroundTasks
from pidlease.copier.cluster_reader import (
    MADE_ANEW,
    RETRY_S,
    FetchedChunk,
    FetchedPartition,
    fetch,
    is_other_topic,
    topic_id_of,
)
from pidlease.copier.errors import CopyError
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.cluster import NO_LEADER, Cluster
from pidlease.kafka.codec.fetch import READ_COMMITTED, FetchLimits
from pidlease.kafka.codec.messages import error_name
from pidlease.kafka.error_codes import KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE, REREAD
from pidlease.kafka.errors import UpstreamError

_log = logging.getLogger(__name__)

#: The most bytes of a fetch: of all partitions, and of one.
_FETCH_BYTES: Final = 8 << 20
_PART_BYTES: Final = 1 << 20


class PartitionReader(Protocol):
    """A partition to be fetched."""

    @property
    def place(self) -> TopicPartition:
        """The partition."""

    @property
    def topic_id(self) -> str:
        """The id of its topic when the copy began; empty: unknown."""

    @property
    def wants(self) -> int:
        """The offset to fetch from; -1: no fetch now."""

    def came(self, offset: int, chunk: FetchedChunk) -> None:
        """Accept what a fetch from an offset returned; it may be empty."""

    def out_of_range(self) -> None:
        """Handle that the source does not have the requested offset."""

    def failed(self, error: CopyError) -> None:
        """Handle that the source refuses the fetch."""


class SourceFetcher:
    """Fetches partitions of the source for their readers.

    Parameters:
        cluster: the source, started.
        wait_ms: how long a fetch waits for records.
        give_up_s: how long to retry a partition that its broker cannot read.
    """

    def __init__(self, cluster: Cluster, wait_ms: int, give_up_s: float) -> None:
        self._cluster: Final = cluster
        self._limits: Final = FetchLimits(wait_ms, _FETCH_BYTES, _PART_BYTES, READ_COMMITTED)
        self._give_up_s: Final = give_up_s
        #: Partitions that their brokers cannot read: since when, by the loop's clock.
        self._unread: Final[dict[TopicPartition, float]] = {}
        self._readers: dict[TopicPartition, PartitionReader] = {}
        self._busy: set[int] = set()
        self._resting: set[TopicPartition] = set()
        self._tasks: Final = BackgroundTasks(self._broken)
        self._wake: Final = asyncio.Event()
        self._failed: asyncio.Future[None] | None = None

    def add(self, reader: PartitionReader) -> None:
        """Fetch a partition from now on."""
        self._readers[reader.place] = reader
        self._cluster.topics.add(reader.place.topic)
        self._wake.set()

    def remove(self, reader: PartitionReader) -> None:
        """Stop fetching a partition; the result of a running fetch is dropped."""
        if self._readers.get(reader.place) is reader:
            del self._readers[reader.place]
            self._unread.pop(reader.place, None)

    def wake(self) -> None:
        """Look again: a reader may accept more."""
        self._wake.set()

    async def run(self) -> None:
        """Fetch until it is cancelled."""
        self._failed = asyncio.get_running_loop().create_future()
        try:
            while True:
                self._look()
                waiting = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait((waiting, self._failed), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                self._wake.clear()
                if self._failed.done():
                    self._failed.result()
        finally:
            await self._tasks.cancel()

    def _look(self) -> None:
        """Send a fetch to each leader that has none, for the readers that want records."""
        wanted: dict[int, list[tuple[PartitionReader, int]]] = {}
        homeless = False
        ended: list[PartitionReader] = []
        for place, reader in self._readers.items():
            if place in self._resting or (offset := reader.wants) < 0:
                continue
            if is_other_topic(reader.topic_id, topic_id_of(self._cluster.view, place.topic)):
                ended.append(reader)
                continue
            leader = self._cluster.view.leader(*place)
            if leader == NO_LEADER:
                homeless = True
                self._rest(place)
                continue
            if leader not in self._busy:
                wanted.setdefault(leader, []).append((reader, offset))
        for each in ended:
            self.remove(each)
            each.failed(CopyError(f"{each.place.topic} of the source {MADE_ANEW}"))
        if homeless:
            self._tasks.spawn(self._cluster.load())
        for node, readers in wanted.items():
            self._busy.add(node)
            self._tasks.spawn(self._fetch(node, readers))

    async def _fetch(self, node: int, readers: list[tuple[PartitionReader, int]]) -> None:
        offsets = {reader.place: offset for reader, offset in readers}
        try:
            found = await fetch(await self._cluster.connection_to(node), offsets, self._limits)
        except UpstreamError as error:
            _log.info("node %s of the source: %s", node, error)
            for place in offsets:
                self._rest(place)
            self._tasks.spawn(self._cluster.load())
        else:
            self._take(readers, found)
        finally:
            self._busy.discard(node)
            self._wake.set()

    def _take(
        self,
        readers: list[tuple[PartitionReader, int]],
        found: Mapping[TopicPartition, FetchedPartition],
    ) -> None:
        requested = {reader.place: (reader, offset) for reader, offset in readers}
        moved = False
        for place, (code, chunk) in found.items():
            reader, offset = requested.get(place, (None, 0))
            if reader is None or self._readers.get(place) is not reader:
                continue  # it was removed, or added anew
            if code != KAFKA_STORAGE_ERROR:
                self._unread.pop(place, None)
            if not code:
                if chunk.data:  # the next fetch begins with those that got nothing
                    self._readers[place] = self._readers.pop(place)
                reader.came(offset, chunk)
            elif code == OFFSET_OUT_OF_RANGE:
                moved = True  # perhaps it is another topic
                reader.out_of_range()
            elif code in REREAD and not (code == KAFKA_STORAGE_ERROR and self._is_over(place)):
                moved = True
                self._rest(place)
            else:
                reader.failed(CopyError(f"{place} of the source: {error_name(code)}"))
        if moved:
            self._tasks.spawn(self._cluster.load())

    def _is_over(self, place: TopicPartition) -> bool:
        """Whether a partition's broker could not read it for too long."""
        now = asyncio.get_running_loop().time()
        if place not in self._unread:
            _log.warning("%s of the source: its broker cannot read it; trying again", place)
        return now - self._unread.setdefault(place, now) > self._give_up_s

    def _rest(self, place: TopicPartition) -> None:
        """Back off from a partition."""
        self._resting.add(place)
        asyncio.get_running_loop().call_later(RETRY_S, self._rested, place)

    def _rested(self, place: TopicPartition) -> None:
        self._resting.discard(place)
        self._wake.set()

    def _broken(self, error: BaseException) -> None:
        """End the copy with an error of a task: without it, no partition would be fetched."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)
