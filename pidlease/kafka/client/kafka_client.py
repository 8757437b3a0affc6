"""The Kafka client of a server: fetches, offsets and Produce for all partition logs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from pidlease.core.timed_offset import TimedOffset
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_FETCH
from pidlease.kafka.client.all_topics_cluster import AllTopicsCluster
from pidlease.kafka.client.bootstrap import connect
from pidlease.kafka.client.broker_connection import BrokerConnection, version_for
from pidlease.kafka.client.cluster import NO_LEADER, Cluster
from pidlease.kafka.client.coordinators import Coordinators
from pidlease.kafka.client.end_watch import EndWatch
from pidlease.kafka.client.exchange import ask_for
from pidlease.kafka.client.offset_requests import (
    EARLIEST,
    LATEST,
    LeaderLog,
    ends_of_epochs,
    list_offsets,
)
from pidlease.kafka.client.produce_channels import ProduceChannels, ProduceSend
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.kafka.client.transactions import Fencing
from pidlease.kafka.codec.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchedRecords,
    FetchLimits,
    first_offset,
    read_fetch_response,
    write_fetch_request,
)
from pidlease.kafka.errors import (
    UpstreamAwayError,
    UpstreamError,
    UpstreamNonsenseError,
)
from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import LINES

#: The most connections to one broker for fetches.
_READING_MAX: Final = 4
#: Partitions in one request for offsets.
_PARTITIONS_AT_ONCE: Final = 1000


_log = Logger(__name__)


class Upstream:
    """One client of a Kafka cluster, shared by all partition logs.

    Parameters:
        config: the settings of the connections.
    """

    def __init__(self, config: UpstreamConfig) -> None:
        self.cluster: Final = AllTopicsCluster(config)
        self.coordinators: Final = Coordinators(self.cluster)
        self.fencing: Final = Fencing(self.cluster, self.coordinators)
        #: The connections for Produce.
        self.channels: Final = ProduceChannels(self.cluster)
        #: Notices what others write to partitions, for readers that wait.
        self.ends: Final = EndWatch(self.cluster)
        #: Called when a partition has stopped, and is to be read again.
        self.on_read_again: Callable[[], None] = lambda: None
        self._reading: dict[int, _Readers] = {}
        self._closed = False
        #: Gaps in what leaders returned: partition -> first offset missing, first offset returned.
        self._gaps: dict[TopicPartition, tuple[int, int]] = {}

    async def start(self) -> None:
        """Load the cluster's metadata.

        Raises:
            UpstreamError: no broker responds.
        """
        await self.cluster.start()

    async def close(self) -> None:
        """Close all connections; pending fetches fail."""
        self._closed = True
        self.channels.close()
        self.ends.close()
        for readers in self._reading.values():
            readers.close()
        await self.cluster.close()

    # ------------------------------------------------------------------ of one partition

    def send(self, producer: int, send: ProduceSend) -> None:
        """Send a batch to the leader of its partition, after the earlier ones of its producer."""
        self.channels.send(producer, send)

    def stale(self) -> None:
        """Refresh the metadata soon: a leader may have changed."""
        self.cluster.stale()

    def read_again(self) -> None:
        """Have a partition that has stopped opened and read again."""
        self.on_read_again()

    async def fetch(
        self,
        place: TopicPartition,
        offset: int,
        bytes_max: int,
        isolation: int = READ_UNCOMMITTED,
    ) -> FetchedRecords:
        """Fetch batches of a partition from an offset on."""
        if self._closed:
            raise UpstreamAwayError("the server stops")
        leader = self._leader(place)
        readers = self._reading.get(leader)
        if readers is None:
            readers = self._reading[leader] = _Readers(self.cluster, leader)
        async with readers.connection() as connection:
            version = version_for(connection, API_FETCH)
            limits = FetchLimits(0, bytes_max, bytes_max, isolation)
            body = write_fetch_request(version, {place: offset}, limits)
            read = partial(self._fetched, version, place, offset, isolation)
            return await ask_for(connection, body, read)

    def _fetched(
        self, version: int, place: TopicPartition, offset: int, isolation: int, frame: bytearray
    ) -> FetchedRecords:
        """Decode a response to Fetch; only compaction may have removed records from it.

        Raises:
            UpstreamNonsenseError: it is invalid, or lacks records that must be there.
            UpstreamAwayError: Kafka throttles this client.
        """
        found = read_fetch_response(version, place, frame)
        if found.code:
            return found
        is_committed = isolation == READ_COMMITTED
        if is_committed and not 0 <= found.stable_offset <= found.end_offset:
            raise UpstreamNonsenseError(
                f"a last stable offset of {found.stable_offset} for {place}, which ends at"
                f" {found.end_offset}"
            )
        end = found.stable_offset if is_committed else found.end_offset
        begin = first_offset(found.data)
        if begin is None:
            if found.data:
                raise UpstreamNonsenseError(f"a part of a batch for {place} at {offset}")
            missing = offset < end
        else:
            missing = offset < begin
        topic = self.cluster.view.topics.get(place.topic)
        if not missing or topic is None or topic.compacted is not False:
            self._gaps.pop(place, None)
        elif begin is None or self._gaps.get(place) != (offset, begin):
            # The topic may have been compacted once: then the second response is the same.
            self._gaps[place] = (offset, -1 if begin is None else begin)
            returned = "nothing" if begin is None else f"records from {begin} on"
            raise UpstreamNonsenseError(f"{returned} for {place} at {offset}, which ends at {end}")
        return found

    async def log_of(self, place: TopicPartition, epoch: int = -1) -> LeaderLog:
        """Return a partition's log, as its leader reports it."""
        leader = self._leader(place)
        current = self.cluster.view.topics[place.topic].epochs[place.partition]
        reached = -1
        if epoch >= 0:
            connection = await self.cluster.connection_to(leader)
            row = (await ends_of_epochs(connection, {place: epoch}, current)).get(place)
            if row is None or row.error_code.value:
                self.stale()
                raise UpstreamAwayError(f"{place} has another leader, or another leader epoch, now")
            reached = max(int(row.end_offset), 0)
        found = (await self._logs(leader, [place])).get(place)
        if found is None:
            self.stale()
            raise UpstreamAwayError(f"the leader of {place} returns no offsets now")
        if epoch >= 0:  # of the leader with this epoch; there may be a newer one by now
            found = found._replace(epoch=current, reached=reached)
        return found

    async def stable_offset_of(self, place: TopicPartition) -> int:
        """Return a partition's last stable offset."""
        row = await self._committed(place, LATEST)
        if row.offset < 0:
            raise UpstreamNonsenseError(f"{place} ends at {row.offset}")
        return int(row.offset)

    async def end_of(self, place: TopicPartition) -> int:
        """Return the high watermark of a partition."""
        rows = await self._offsets(self._leader(place), [place], LATEST)
        if place not in rows:
            raise UpstreamAwayError(f"the leader of {place} returns no offsets now")
        return int(rows[place].offset)

    async def find_time(self, place: TopicPartition, timestamp: int) -> TimedOffset | None:
        """Find the first committed record with this timestamp or a later one."""
        row = await self._committed(place, timestamp)
        return None if row.offset < 0 else TimedOffset(int(row.offset), int(row.timestamp))

    async def _committed(self, place: TopicPartition, timestamp: int) -> Any:  # noqa: ANN401 - one of kio's classes
        """Ask for an offset as a consumer does that reads what is committed."""
        rows = await self._offsets(self._leader(place), [place], timestamp, READ_COMMITTED)
        if place not in rows:
            self.stale()
            raise UpstreamAwayError(f"the leader of {place} returns no offsets now")
        return rows[place]

    # ------------------------------------------------------------------ of many partitions

    async def logs(self, places: Iterable[TopicPartition]) -> Mapping[TopicPartition, LeaderLog]:
        """Return partitions' logs, without those of leaders that do not respond."""
        found: dict[TopicPartition, LeaderLog] = {}
        for leader, led in self._by_leader(places).items():
            for first in range(0, len(led), _PARTITIONS_AT_ONCE):
                some = led[first : first + _PARTITIONS_AT_ONCE]
                try:
                    found |= await self._logs(leader, some)
                except UpstreamError as error:
                    LINES.write(_log, "warning", "a broker returns no offsets", leader,
                                broker=leader, error=str(error))  # fmt: skip
                    self.stale()
                    break
        return found

    async def _logs(
        self, leader: int, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, LeaderLog]:
        starts = await self._offsets(leader, places, EARLIEST)
        ends = await self._offsets(leader, places, LATEST)
        # After that: a broker's metadata are never older than its logs, so a topic that has its id
        # now had it when the offsets were read.
        connection = await self.cluster.connection_to(leader)
        topics = {place.topic for place in places}
        view = await self.cluster.look_up(topics, connection=connection)
        found = {}
        for place in starts.keys() & ends.keys():
            start, end = int(starts[place].offset), int(ends[place].offset)
            if not 0 <= start <= end:
                LINES.write(_log, "error", "a response of Kafka is invalid", leader, broker=leader,
                            error=f"{place} goes from {start} to {end}")  # fmt: skip
            elif view.leader(*place) != leader:
                self.stale()
            else:
                topic = view.topics[place.topic]
                epoch = topic.epochs[place.partition]
                found[place] = LeaderLog(topic.topic_id, leader, epoch, start, end)
        return found

    async def ends_of_epochs(
        self, epochs: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Return up to which offset partitions' logs are as they were under leader epochs.

        Without the partitions of leaders that do not respond.
        """
        found: dict[TopicPartition, int] = {}
        for leader, led in self._by_leader(epochs).items():
            for first in range(0, len(led), _PARTITIONS_AT_ONCE):
                some = led[first : first + _PARTITIONS_AT_ONCE]
                try:
                    connection = await self.cluster.connection_to(leader)
                    rows = await ends_of_epochs(connection, {each: epochs[each] for each in some})
                except UpstreamError as error:
                    LINES.write(_log, "warning", "a broker returns no leader epochs", leader,
                                broker=leader, error=str(error))  # fmt: skip
                    self.stale()
                    break
                for place, row in rows.items():
                    if row.error_code.value:
                        self.stale()
                    else:
                        found[place] = int(row.end_offset)
        return found

    def _by_leader(self, places: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Return partitions by their leaders, without those that have none."""
        found: dict[int, list[TopicPartition]] = {}
        for place in places:
            leader = self.cluster.view.leader(*place)
            if leader != NO_LEADER:
                found.setdefault(leader, []).append(place)
        return found

    async def _offsets(
        self,
        leader: int,
        places: Iterable[TopicPartition],
        timestamp: int,
        isolation: int = READ_UNCOMMITTED,
    ) -> dict[TopicPartition, Any]:
        connection = await self.cluster.connection_to(leader)
        found = {}
        rows = await list_offsets(connection, places, timestamp, isolation)
        for place, row in rows.items():
            if row.error_code.value:
                self.stale()
            else:
                found[place] = row
        return found

    def _leader(self, place: TopicPartition) -> int:
        leader = self.cluster.view.leader(*place)
        if leader == NO_LEADER:
            self.stale()
            raise UpstreamAwayError(f"no broker leads {place} now")
        return leader


class _Readers:
    """Connections to one broker, each for one fetch at a time."""

    def __init__(self, cluster: Cluster, broker: int) -> None:
        self._cluster = cluster
        self._broker = broker
        self._free: list[BrokerConnection] = []
        self._room = asyncio.Semaphore(_READING_MAX)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[BrokerConnection]:
        """Borrow a connection."""
        async with self._room:
            connection = self._free.pop() if self._free else None
            if connection is None or not connection.open:
                connection = await connect(
                    self._cluster.config, self._cluster.address(self._broker)
                )
            try:
                yield connection
            except asyncio.CancelledError:
                connection.close()  # a response is still to come
                raise
            finally:
                if connection.open and not connection.in_flight:
                    self._free.append(connection)

    def close(self) -> None:
        """Close all connections that are not in use."""
        for connection in self._free:
            connection.close()
