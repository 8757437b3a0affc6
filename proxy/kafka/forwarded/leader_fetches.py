"""Fetch (key 1) in front of Kafka: each partition from its leader, one answer of all of them.

Fetch sessions (KIP-227) are not kept: the response's session id 0 makes a client send full
requests. A broker that has nothing yet is not asked again while it still waits: its response
belongs to the client's next request, if that asks for the same.

A partition without its leader does not end the wait: its error is held back until the client's
wait is over, its leader is another one, or there is something else to answer. Clients that got it
at once would ask again at once, some hundred times a second.
"""

import asyncio
import dataclasses
import time
from collections.abc import Set
from datetime import timedelta
from functools import partial
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_FETCH
from pidlease.kafka.client.all_topics_cluster import AllTopicsCluster
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.cluster import NO_LEADER, View
from pidlease.kafka.client.exchange import read
from pidlease.kafka.codec.fetch import (
    EncodedPartition,
    PartitionKey,
    empty_partition,
    join_partitions,
    read_partitions,
)
from pidlease.kafka.codec.messages import Request, read_request_slowly
from pidlease.kafka.codec.primitives import RequestHeader
from pidlease.kafka.error_codes import HELD_BACK, STALE_LEADER
from pidlease.kafka.errors import UpstreamError, UpstreamNonsenseError
from pidlease.observability.repeated_lines import LINES
from proxy.kafka.client_connection import Slot
from proxy.kafka.forwarded.client_brokers import ClientBrokers

#: How much longer than its maximum wait a broker may take.
_LATE_SECONDS: Final = 30.0
#: How long errors are held back at most, whatever the client asks for; and how much longer than
#: that for a broker that is about to answer.
_HELD_SECONDS_MAX: Final = 60.0
_GRACE_SECONDS: Final = 0.1
#: How often leaders that are away are asked again, where nothing else is waited for.
_AGAIN_SECONDS: Final = 1.0
_NO_MARKS: Final = (-1, -1, -1)
_NOT_LEADER: Final = ErrorCode.not_leader_or_follower

_log = structlog.get_logger(__name__)

#: What was asked for: version, isolation; and names, numbers and offsets.
_Key = tuple[int, int, tuple[tuple[str, int, int], ...]]
_Rows = dict[PartitionKey, EncodedPartition | ErrorCode]


class _Asked:
    """A request to one broker without a response, or with one that is not used yet."""

    def __init__(
        self, key: _Key, connection: BrokerConnection, answer: asyncio.Future[bytearray]
    ) -> None:
        self.key = key
        self.connection = connection
        self.answer = answer
        self._rows: _Rows | None = None

    @property
    def rows(self) -> _Rows:
        """The answer, taken apart; where it is none, an error for each partition."""
        if self._rows is None:
            self._rows = self._read()
        return self._rows

    def _read(self) -> _Rows:
        try:
            code, rows = read(
                self.connection, self.answer.result(), partial(read_partitions, self.key[0])
            )
            if code:
                raise UpstreamNonsenseError(f"Kafka answers error {code} to a Fetch")
        except UpstreamError as error:
            LINES.write(_log, "info", "a leader did not answer a Fetch", str(self.connection),
                        broker=str(self.connection), error=str(error))  # fmt: skip
            return {(name, number): _NOT_LEADER for name, number, _ in self.key[2]}
        return dict(rows)

    @property
    def is_of_use(self) -> bool:
        """Whether the answer holds records, or an error."""
        return any(isinstance(row, ErrorCode) or row.size or row.code for row in self.rows.values())

    @property
    def has_records(self) -> bool:
        """Whether the answer holds records."""
        return any(isinstance(row, EncodedPartition) and row.size for row in self.rows.values())


def _is_final(row: EncodedPartition | ErrorCode) -> bool:
    """Whether a partition's part is to be answered at once: records, or an error to act on."""
    return bool(isinstance(row, EncodedPartition) and row.size) or (
        _code(row) not in HELD_BACK and bool(_code(row))
    )


def _code(row: EncodedPartition | ErrorCode) -> int:
    return row.code if isinstance(row, EncodedPartition) else row.value


async def _first_of_use(
    waiting: dict[asyncio.Future[Any], _Asked], followed: asyncio.Future[None]
) -> None:
    """Return when one of the answers is of use, all are there, or a request follows."""
    while waiting:
        done, _ = await asyncio.wait({*waiting, followed}, return_when=asyncio.FIRST_COMPLETED)
        if followed in done or any(waiting.pop(each).is_of_use for each in list(done)):
            return


class ClientFetches:
    """One client's.

    Attributes:
        asked: what brokers were asked, by their ids.
        marks: what partitions said of their ends.
        followed: see `Slot.followed`; of the request that is worked on.
    """

    def __init__(self) -> None:
        self.followed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked: dict[int, _Asked] = {}
        self.marks: dict[PartitionKey, tuple[int, int, int]] = {}


class LeaderFetches:
    """Fetches each partition from its leader, and joins the responses.

    Parameters:
        cluster: the leaders.
        fetch_bytes_max: the most that one answer holds, beyond its first batch.
    """

    def __init__(self, cluster: AllTopicsCluster, fetch_bytes_max: int) -> None:
        self._cluster = cluster
        self._fetch_bytes_max = fetch_bytes_max
        #: Requests with errors held back: what to set when a leader has changed.
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
        """Answer a request when a broker has enough, or none has in time.

        Raises:
            MalformedError: it is none.
        """
        async with slot.connection.answering:
            request = await read_request_slowly(header, frame)
            fetches.followed = slot.followed()
            rows = await self._gather(brokers, fetches, header, request)
            self._fill(slot, header, request, rows, fetches)

    async def _gather(
        self, brokers: ClientBrokers, fetches: ClientFetches, header: RequestHeader, request: Any
    ) -> _Rows:
        """What leaders answer, when there is something to answer at once, or the wait is over."""
        missing = await self._missing(request)
        rows: _Rows = dict.fromkeys(missing, ErrorCode.unknown_topic_or_partition)
        deadline = time.monotonic() + min(request.max_wait.total_seconds(), _HELD_SECONDS_MAX)
        idle = False
        while True:
            known = len(rows)
            asked = await self._ask_all(brokers, fetches, header, request, rows, deadline)
            final = any(map(_is_final, rows.values()))
            followed = None if final else fetches.followed
            changed = await self._wait(asked, rows, deadline, followed)
            empty: _Rows = {}
            for leader, each in list(fetches.asked.items()):
                if each in asked and each.answer.done():
                    for place, row in each.rows.items():
                        (rows if _code(row) or _is_final(row) else empty)[place] = row
                    del fetches.asked[leader]
            done = changed or final or any(map(_is_final, rows.values()))
            done = done or fetches.followed.done() or not rows or time.monotonic() >= deadline
            if not done and not asked:
                # A broker that was started again leads what it led: no event reports it.
                rows.clear()
                continue
            # Brokers that have nothing answer when the wait is over, or a little before it.
            if done or (idle and len(rows) == known):
                return empty | rows
            idle = len(rows) == known

    async def _ask_all(
        self,
        brokers: ClientBrokers,
        fetches: ClientFetches,
        header: RequestHeader,
        request: Any,
        rows: _Rows,
        deadline: float,
    ) -> list[_Asked]:
        """Ask the leaders of all partitions of which there is no row; others get one."""
        by_leader = self._split(request, rows)
        rows |= self._without_leader(by_leader.pop(NO_LEADER, []))
        asked: list[_Asked] = []
        for leader, some in by_leader.items():
            part = self._part(request, some)
            if any(map(_is_final, rows.values())):
                part = dataclasses.replace(part, max_wait=timedelta(0))
            elif rows:
                left = max(deadline - time.monotonic(), 0)
                part = dataclasses.replace(part, max_wait=timedelta(seconds=left))
            try:
                asked.append(await self._ask(brokers, fetches, header, leader, part))
            except UpstreamError as error:
                LINES.write(_log, "info", "a leader cannot be reached", leader,
                            broker=leader, error=str(error))  # fmt: skip
                self._cluster.stale()
                rows |= {(name, int(each.partition)): _NOT_LEADER for name, each in some}
        return asked

    async def _missing(self, request: Any) -> Set[PartitionKey]:
        """The partitions that there are not, for certain: Kafka is asked for those not seen yet."""
        view = self._cluster.view
        unseen = [
            TopicPartition(str(topic.topic), int(part.partition))
            for topic in request.topics
            for part in topic.partitions
            if not view.has(topic.topic, part.partition)
        ]
        return await self._cluster.missing(unseen) if unseen else set()

    def _split(self, request: Any, rows: _Rows) -> dict[int, list[tuple[str, Any]]]:
        by_leader: dict[int, list[tuple[str, Any]]] = {}
        for topic in request.topics:
            for part in topic.partitions:
                if rows and (topic.topic, int(part.partition)) in rows:
                    continue
                leader = self._cluster.view.leader(topic.topic, part.partition)
                by_leader.setdefault(leader, []).append((topic.topic, part))
        return by_leader

    def _without_leader(self, parts: list[tuple[str, Any]]) -> _Rows:
        if parts:
            self._cluster.stale()
        return {(name, int(part.partition)): _NOT_LEADER for name, part in parts}

    def _part(self, request: Any, some: list[tuple[str, Any]]) -> Any:
        """A request for some partitions: without session, rack, and epochs that are not Kafka's."""
        kinds = {topic.topic: topic for topic in request.topics}
        named: dict[str, list[Any]] = {}
        for name, part in some:
            known = part
            if hasattr(part, "current_leader_epoch"):
                known = dataclasses.replace(part, current_leader_epoch=-1)
            named.setdefault(name, []).append(known)
        topics = tuple(
            dataclasses.replace(kinds[name], partitions=tuple(parts))
            for name, parts in named.items()
        )
        other: dict[str, Any] = {
            "session_id": 0, "session_epoch": -1, "forgotten_topics_data": (), "rack_id": "",
            "max_bytes": type(request.max_bytes)(self._limit(request)),
        }  # fmt: skip
        fields = {each.name for each in dataclasses.fields(request)}
        changes = {name: value for name, value in other.items() if name in fields}
        return dataclasses.replace(request, topics=topics, **changes)

    def _limit(self, request: Any) -> int:
        return min(int(request.max_bytes), self._fetch_bytes_max)

    async def _ask(
        self,
        brokers: ClientBrokers,
        fetches: ClientFetches,
        header: RequestHeader,
        leader: int,
        part: Any,
    ) -> _Asked:
        """Ask a broker, unless it was asked the same already."""
        places = tuple(
            (topic.topic, int(each.partition), int(each.fetch_offset))
            for topic in part.topics
            for each in topic.partitions
        )
        key = (header.version, int(part.isolation_level), places)
        before = fetches.asked.get(leader)
        if before is not None:
            # What it had to say is taken where it is of use; that there was nothing is not news.
            if before.key == key and (before.connection.open or before.answer.done()):
                if not before.answer.done() or before.has_records:
                    return before
            elif not before.answer.done():
                before.connection.close()  # the client reads elsewhere: what comes is of no use
        request = Request(API_FETCH, header.version)
        seconds = part.max_wait.total_seconds() + _LATE_SECONDS
        async with brokers.order:
            connection = await brokers.connection(leader, polling=True)
            answer = connection.begin(request.encode_entity(part), seconds)
        asked = fetches.asked[leader] = _Asked(key, connection, answer)
        return asked

    async def _wait(
        self,
        asked: list[_Asked],
        rows: _Rows,
        deadline: float,
        followed: asyncio.Future[None] | None,
    ) -> bool:
        """Return when one of the answers is of use, or all are there.

        Where errors are held back, also when the wait is over, or a leader has changed.

        Parameters:
            asked: the requests to brokers.
            rows: errors that are held back, by partition.
            deadline: when the wait is over, by time.monotonic.
            followed: ends the wait, too; None: brokers answer at once, and are waited for.

        Returns:
            Whether a leader has changed.
        """
        waiting: dict[asyncio.Future[Any], _Asked] = {each.answer: each for each in asked}
        if followed is None:
            if waiting:
                await asyncio.wait(waiting)
            return False
        if not rows:
            await _first_of_use(waiting, followed)
            return False
        event = asyncio.Event()
        self._held[event] = list(rows)
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait())]
        if waiting:
            tasks.append(asyncio.create_task(_first_of_use(waiting, followed)))
        try:
            left = max(deadline - time.monotonic(), 0)
            left = left + _GRACE_SECONDS if waiting else min(left, _AGAIN_SECONDS)
            await asyncio.wait(
                {*tasks, followed}, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            del self._held[event]
            for task in tasks:
                task.cancel()
        return event.is_set()

    def _changed(self, before: View, after: View) -> None:
        """The cluster looks another way: see `Cluster.on_change`."""
        for event, places in self._held.items():
            if any(after.leader(*each) not in (NO_LEADER, before.leader(*each)) for each in places):
                event.set()

    def _fill(
        self,
        slot: Slot,
        header: RequestHeader,
        request: Any,
        rows: _Rows,
        fetches: ClientFetches,
    ) -> None:
        """Give the answer; what is beyond the limit is left for the next request."""
        topics: dict[str, list[bytes | memoryview]] = {}
        size, limit = 0, self._limit(request)
        for topic in request.topics:
            parts = topics.setdefault(topic.topic, [])
            for part in topic.partitions:
                place = topic.topic, int(part.partition)
                row = rows.get(place, ErrorCode.none)
                code = _code(row)
                if isinstance(row, EncodedPartition):
                    fetches.marks[place] = row.offsets
                    if not row.size or not size or size + row.size <= limit:
                        parts.append(row.data)
                        size += row.size
                        self._note(code)
                        continue
                    code = 0
                self._note(code)
                marks = fetches.marks.get(place, _NO_MARKS)
                parts.append(empty_partition(header.version, place[1], code, marks))
        slot.count(size)
        slot.fill(*join_partitions(header.version, slot.correlation_id, topics))

    def _note(self, code: int) -> None:
        if code in STALE_LEADER:
            self._cluster.stale()
