"""Fetch (key 1) with Kafka as the log: fetches each partition from its leader, joins the responses.

There are no fetch sessions (KIP-227): session id 0 in the response makes a client send full
requests. A broker without records yet may still hold its request when the client gets a response;
the broker's response is then used for the client's next request, if that is for the same offsets.

A leader that is away does not end the client's wait. The partition's error is held back until the
wait is over, the partition has another leader, or there is something else to return. A client that
got the error at once would repeat the request at once, some hundred times a second.
"""

import asyncio
import time
from functools import partial
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.all_topics_cluster import AllTopicsCluster
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.cluster import NO_LEADER, View
from pidlease.kafka.client.exchange import read
from pidlease.kafka.codec.fetch import (
    EncodedPartition,
    FetchPosition,
    FetchRequest,
    PartitionKey,
    empty_partition,
    join_partitions,
    read_fetch_request,
    read_partitions,
    write_forwarded_fetch,
)
from pidlease.kafka.codec.primitives import RequestHeader
from pidlease.kafka.error_codes import HELD_BACK, STALE_LEADER
from pidlease.kafka.errors import UpstreamError, UpstreamLostError, UpstreamNonsenseError
from pidlease.observability.repeated_lines import LINES
from proxy.kafka.client_connection import Slot
from proxy.kafka.forwarded.client_brokers import ClientBrokers
from proxy.kafka.forwarded.response_memory import ResponseMemory
from proxy.kafka.forwarded.split_requests import leader_for_clients, missing_partitions

#: How long a broker may take beyond the request's maximum wait.
_LATE_SECONDS: Final = 30.0
#: How long nothing of a large response may come before it is given up: others wait for it.
_HANGS_SECONDS: Final = 2.0
#: How long errors are held back at most, whatever wait the client requests.
_HELD_SECONDS_MAX: Final = 60.0
#: How much longer to wait for brokers, which respond at the end of the same wait.
_GRACE_SECONDS: Final = 0.1
#: How often leaders that are away are tried again, if no broker has a request.
_AGAIN_SECONDS: Final = 1.0
_NO_MARKS: Final = (-1, -1, -1)
_NOT_LEADER: Final = ErrorCode.not_leader_or_follower

_log = structlog.get_logger(__name__)

#: Identifies a request: version, isolation level, and (topic, partition, offset) of its partitions.
_Key = tuple[int, int, tuple[tuple[str, int, int], ...]]
#: A topic's name, and the position in one of its partitions.
_Position = tuple[str, FetchPosition]
_Rows = dict[PartitionKey, EncodedPartition | ErrorCode]


class _BrokerFetch:
    """A request to one broker, until its response is used."""

    def __init__(
        self, key: _Key, connection: BrokerConnection, answer: asyncio.Future[bytearray]
    ) -> None:
        self.key = key
        self.connection = connection
        self.answer = answer
        self._rows: _Rows | None = None

    @property
    def rows(self) -> _Rows:
        """The decoded response; an error for each partition if it is invalid or absent."""
        if self._rows is None:
            self._rows = self._read()
        return self._rows

    def _read(self) -> _Rows:
        try:
            code, rows = read(
                self.connection, self.answer.result(), partial(read_partitions, self.key[0])
            )
            if code:
                raise UpstreamNonsenseError(f"Kafka returned error {code} for a Fetch")
        except UpstreamError as error:
            LINES.write(_log, "info", "a leader did not answer a Fetch", str(self.connection),
                        broker=str(self.connection), error=str(error))  # fmt: skip
            return {(name, number): _NOT_LEADER for name, number, _ in self.key[2]}
        return dict(rows)

    @property
    def has_news(self) -> bool:
        """Whether the response has records or an error."""
        return any(isinstance(row, ErrorCode) or row.size or row.code for row in self.rows.values())

    @property
    def has_records(self) -> bool:
        """Whether the response has records."""
        return any(isinstance(row, EncodedPartition) and row.size for row in self.rows.values())


def _is_final(row: EncodedPartition | ErrorCode) -> bool:
    """Whether to respond at once: the partition has records, or an error not to hold back."""
    return bool(isinstance(row, EncodedPartition) and row.size) or (
        _code(row) not in HELD_BACK and bool(_code(row))
    )


def _code(row: EncodedPartition | ErrorCode) -> int:
    return row.code if isinstance(row, EncodedPartition) else row.value


async def _first_news(
    waiting: dict[asyncio.Future[Any], _BrokerFetch],
    ends: set[asyncio.Future[None]],
    *,
    every: bool = False,
) -> None:
    """Return when a response has news, all responses are there, or one of `ends` has completed.

    Parameters:
        every: wait for all responses.
    """
    while waiting:
        done, _ = await asyncio.wait({*waiting, *ends}, return_when=asyncio.FIRST_COMPLETED)
        news = [waiting.pop(each).has_news for each in done if each in waiting]
        if not ends.isdisjoint(done) or (any(news) and not every):
            return


class ClientFetches:
    """One client's fetches.

    Attributes:
        followed: the future of `Slot.followed` of the present request.
        pending: requests to brokers, by broker id.
        marks: the last known high watermark, last stable offset and log start of each partition.
        memory: of the present request; None: there is none, and no large response is read.
    """

    def __init__(self) -> None:
        self.followed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pending: dict[int, _BrokerFetch] = {}
        self.marks: dict[PartitionKey, tuple[int, int, int]] = {}
        self.memory: ResponseMemory | None = None

    def admits(self, connection: BrokerConnection, size: int) -> bool:
        """Return whether to read a large response now."""
        return self.memory is not None and self.memory.admits(connection, size)

    async def arrived(self) -> None:
        """Wait until each large response that was admitted is there; give up one that hangs."""
        while arriving := {
            each.answer: (each.connection, each.connection.received)
            for each in self.pending.values()
            if each.connection.arriving and not each.answer.done()
        }:
            await asyncio.wait(arriving, timeout=_HANGS_SECONDS)
            for answer, (connection, before) in arriving.items():
                if not answer.done() and connection.received == before:
                    connection.close(UpstreamLostError(f"{connection}: a response hangs"))


class LeaderFetches:
    """Fetches each partition from its leader, and joins the responses.

    Parameters:
        fetch_bytes_max: the largest response; its first batch may be larger.
    """

    def __init__(self, cluster: AllTopicsCluster, fetch_bytes_max: int) -> None:
        self._cluster = cluster
        self._fetch_bytes_max = fetch_bytes_max
        #: The event to set when one of the partitions has a new leader.
        self._held: dict[asyncio.Event, list[PartitionKey]] = {}
        cluster.on_change.append(self._changed)

    async def answer(
        self,
        brokers: ClientBrokers,
        fetches: ClientFetches,
        slot: Slot,
        header: RequestHeader,
        frame: bytearray,
    ) -> None:
        """Answer a request when a broker has enough bytes, or the wait is over.

        Raises:
            MalformedError: the frame is not a valid request.
        """
        async with slot.connection.answering:
            request = read_fetch_request(frame, header.body, header.version)
            fetches.followed = slot.followed()
            # A client that reads nothing gets no more responses: records are fetched only now.
            await slot.connection.writable.wait()
            limit = min(request.bytes_max, self._fetch_bytes_max)
            deadline = time.monotonic() + min(request.wait_ms / 1000, _HELD_SECONDS_MAX)
            memory = fetches.memory = ResponseMemory(slot, limit, deadline)
            try:
                rows = await self._gather(brokers, fetches, memory, header, request)
            finally:
                fetches.memory = None
                memory.close()
            self._fill(slot, header, request, rows, fetches, memory)

    async def _gather(
        self,
        brokers: ClientBrokers,
        fetches: ClientFetches,
        memory: ResponseMemory,
        header: RequestHeader,
        request: FetchRequest,
    ) -> _Rows:
        """Return the partitions' parts when one is final, or the wait is over."""
        requested = (
            TopicPartition(topic, position.number)
            for topic, positions in request.topics
            for position in positions
        )
        missing = await missing_partitions(self._cluster, requested)
        rows: _Rows = dict.fromkeys(missing, ErrorCode.unknown_topic_or_partition)
        idle = False
        while True:
            known = len(rows)
            sent = await self._ask_all(brokers, fetches, memory, header, request, rows)
            final = any(map(_is_final, rows.values()))
            followed = None if final else fetches.followed
            changed = await self._wait(sent, rows, memory, followed)
            await fetches.arrived()
            empty: _Rows = {}
            for leader, each in list(fetches.pending.items()):
                if each.answer.done():
                    for partition, row in each.rows.items() if each in sent else ():
                        (rows if _code(row) or _is_final(row) else empty)[partition] = row
                    del fetches.pending[leader]
            done = changed or final or any(map(_is_final, rows.values()))
            done = done or fetches.followed.done() or memory.over.done() or not rows
            done = done or time.monotonic() >= memory.deadline
            if not done and not sent:
                # Try all leaders again: a restarted broker leads the same partitions, so there is
                # no event of a changed leader.
                rows.clear()
                continue
            # Brokers without records respond when the wait is over, or a little earlier.
            if done or (idle and len(rows) == known):
                return empty | rows
            idle = len(rows) == known

    async def _ask_all(
        self,
        brokers: ClientBrokers,
        fetches: ClientFetches,
        memory: ResponseMemory,
        header: RequestHeader,
        request: FetchRequest,
        rows: _Rows,
    ) -> list[_BrokerFetch]:
        """Send requests for all partitions without a row; add a row for those without a leader."""
        by_leader = self._split(request, rows)
        rows |= self._without_leader(by_leader.pop(NO_LEADER, []))
        sent: list[_BrokerFetch] = []
        share = memory.share(len(by_leader))
        for leader, some in by_leader.items():
            wait_ms = request.wait_ms
            if any(map(_is_final, rows.values())):
                wait_ms = 0
            elif rows:
                wait_ms = int(max(memory.deadline - time.monotonic(), 0) * 1000)
            part = request._replace(wait_ms=wait_ms, bytes_max=share)
            try:
                sent.append(await self._ask(brokers, fetches, header, leader, part, some))
            except UpstreamError as error:
                LINES.write(_log, "info", "a leader cannot be reached", leader,
                            broker=leader, error=str(error))  # fmt: skip
                self._cluster.stale()
                rows |= {(name, each.number): _NOT_LEADER for name, each in some}
        return sent

    def _split(self, request: FetchRequest, rows: _Rows) -> dict[int, list[_Position]]:
        by_leader: dict[int, list[_Position]] = {}
        for topic, positions in request.topics:
            for position in positions:
                if rows and (topic, position.number) in rows:
                    continue
                leader = leader_for_clients(self._cluster.view, topic, position.number)
                by_leader.setdefault(leader, []).append((topic, position))
        return by_leader

    def _without_leader(self, positions: list[_Position]) -> _Rows:
        if positions:
            self._cluster.stale()
        return {(name, position.number): _NOT_LEADER for name, position in positions}

    async def _ask(
        self,
        brokers: ClientBrokers,
        fetches: ClientFetches,
        header: RequestHeader,
        leader: int,
        request: FetchRequest,
        positions: list[_Position],
    ) -> _BrokerFetch:
        """Send a broker a request for some partitions, unless it still has the same one."""
        partitions = tuple((topic, each.number, each.offset) for topic, each in positions)
        key = (header.version, request.isolation, partitions)
        before = fetches.pending.get(leader)
        if before is not None:
            # Use a response with records; one without is out of date.
            if before.key == key and (before.connection.open or before.answer.done()):
                if not before.answer.done() or before.has_records:
                    waits = before.connection.announced
                    if waits and fetches.admits(before.connection, waits):
                        before.connection.read_on()
                    return before
            elif not before.answer.done():
                before.connection.close()  # the client now reads other offsets
        seconds = request.wait_ms / 1000 + _LATE_SECONDS
        async with brokers.order:
            connection = await brokers.connection(leader, header, polling=True)
            connection.admits = partial(fetches.admits, connection)
            part = write_forwarded_fetch(header.version, request, positions)
            answer = connection.begin(part, seconds)
        sent = fetches.pending[leader] = _BrokerFetch(key, connection, answer)
        return sent

    async def _wait(
        self,
        sent: list[_BrokerFetch],
        rows: _Rows,
        memory: ResponseMemory,
        followed: asyncio.Future[None] | None,
    ) -> bool:
        """Return when a response has news, or all are there; True: a leader has changed.

        Return also if there is no memory for a response. If errors are held back, return also at
        the deadline, or when a leader has changed.

        Parameters:
            sent: the requests to brokers.
            rows: errors that are held back, by partition.
            followed: also ends the wait; None: wait for all brokers, which respond at once.
        """
        waiting: dict[asyncio.Future[Any], _BrokerFetch] = {each.answer: each for each in sent}
        ends = {memory.over} if followed is None else {memory.over, followed}
        if followed is None or not rows:
            await _first_news(waiting, ends, every=followed is None)
            return False
        event = asyncio.Event()
        self._held[event] = list(rows)
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait())]
        if waiting:
            tasks.append(asyncio.create_task(_first_news(waiting, ends)))
        try:
            again = time.monotonic() + _AGAIN_SECONDS
            deadline = memory.deadline
            until = deadline + _GRACE_SECONDS if waiting else min(deadline, again)
            done: set[asyncio.Future[Any]] = set()
            # A loop's timer may fire a little early, and a leader asked again would wait as long.
            while not done and (left := until - time.monotonic()) > 0:
                done, _ = await asyncio.wait(
                    {*tasks, *ends}, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            del self._held[event]
            for task in tasks:
                task.cancel()
        return event.is_set()

    def _changed(self, before: View, after: View) -> None:
        """Wake the requests with a partition that has a new leader."""
        for event, held in self._held.items():
            if any(after.leader(*each) not in (NO_LEADER, before.leader(*each)) for each in held):
                event.set()

    def _fill(
        self,
        slot: Slot,
        header: RequestHeader,
        request: FetchRequest,
        rows: _Rows,
        fetches: ClientFetches,
        memory: ResponseMemory,
    ) -> None:
        """Send the response; records beyond the limit are left for the next request."""
        topics: dict[str, list[bytes | memoryview]] = {}
        size, limit = 0, memory.bytes_max
        for topic, positions in request.topics:
            parts = topics.setdefault(topic, [])
            for position in positions:
                partition = topic, position.number
                row = rows.get(partition, ErrorCode.none)
                code = _code(row)
                if isinstance(row, EncodedPartition):
                    fetches.marks[partition] = row.offsets
                    if not row.size or not size or size + row.size <= limit:
                        parts.append(row.data)
                        size += row.size
                        self._note(code)
                        continue
                    code = 0
                self._note(code)
                marks = fetches.marks.get(partition, _NO_MARKS)
                parts.append(empty_partition(header.version, partition[1], code, marks))
        size = max(size, memory.admitted)
        if slot.reserved:
            slot.resize(size)
        else:
            slot.count(size)
        slot.fill(*join_partitions(header.version, slot.correlation_id, topics))

    def _note(self, code: int) -> None:
        if code in STALE_LEADER:
            self._cluster.stale()
