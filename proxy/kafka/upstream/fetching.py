"""Fetch (key 1) in front of Kafka: each partition from its leader, one answer of all of them.

Fetch sessions (KIP-227) are not kept: the answer's session id 0 tells a client to ask in full each
time. A broker that has nothing yet is not asked again while it still waits: its answer belongs to
the client's next request, if that asks for the same.
"""

import asyncio
import dataclasses
from functools import partial
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from pidlease.storage.upstream.asking import read
from pidlease.storage.upstream.cluster import NO_LEADER, Cluster
from pidlease.storage.upstream.errors import UpstreamError, UpstreamNonsenseError
from pidlease.storage.upstream.link import Link
from pidlease.storage.upstream.messages import FETCH, Request
from pidlease.wire.primitives import RequestHeader
from proxy.kafka.connection import Slot
from proxy.kafka.messages import read_request_slowly
from proxy.kafka.upstream.fetch_rows import FetchRow, Place, empty_row, read_rows, write_answer
from proxy.kafka.upstream.links import ClientLinks

#: How much longer than it was told to wait a broker may take.
_LATE_SECONDS: Final = 30.0
_STALE_CODES: Final = frozenset((3, 5, 6, 56, 72, 74, 75, 76))
_NO_MARKS: Final = (-1, -1, -1)
_NOT_LEADER: Final = ErrorCode.not_leader_or_follower

_log = structlog.get_logger(__name__)

#: What was asked for: version, isolation; and names, numbers and offsets.
_Key = tuple[int, int, tuple[tuple[str, int, int], ...]]
_Rows = dict[Place, FetchRow | ErrorCode]


class _Asked:
    """A request to one broker that has no answer, or one that nobody has taken yet."""

    def __init__(self, key: _Key, link: Link, answer: asyncio.Future[bytearray]) -> None:
        self.key = key
        self.link = link
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
            code, rows = read(self.link, self.answer.result(), partial(read_rows, self.key[0]))
            if code:
                raise UpstreamNonsenseError(f"Kafka answers error {code} to a Fetch")
        except UpstreamError as error:
            _log.info("a leader did not answer a Fetch", broker=str(self.link), error=str(error))
            return {(name, number): _NOT_LEADER for name, number, _ in self.key[2]}
        return dict(rows)

    @property
    def is_of_use(self) -> bool:
        """Whether the answer holds records, or an error."""
        return any(isinstance(row, ErrorCode) or row.size or row.code for row in self.rows.values())


class ClientFetches:
    """One client's.

    Attributes:
        asked: what brokers were asked, by their ids.
        marks: what partitions said of their ends.
    """

    def __init__(self) -> None:
        self.asked: dict[int, _Asked] = {}
        self.marks: dict[Place, tuple[int, int, int]] = {}


class Fetching:
    """See the module's text.

    Parameters:
        cluster: who leads what.
        fetch_bytes_max: the most that one answer holds, beyond its first batch.
    """

    def __init__(self, cluster: Cluster, fetch_bytes_max: int) -> None:
        self._cluster = cluster
        self._fetch_bytes_max = fetch_bytes_max

    async def answer(
        self,
        links: ClientLinks,
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
            by_leader = self._split(request)
            rows = self._without_leader(by_leader.pop(NO_LEADER, []))
            asked: list[_Asked] = []
            for leader, some in by_leader.items():
                part = self._part(request, some, waits=not rows)
                try:
                    asked.append(await self._ask(links, fetches, header, leader, part))
                except UpstreamError as error:
                    _log.info("a leader cannot be reached", broker=leader, error=str(error))
                    self._cluster.stale()
                    rows |= {(name, int(each.partition)): _NOT_LEADER for name, each in some}
            await self._wait(asked, waits=not rows)
            for leader, each in list(fetches.asked.items()):
                if each in asked and each.answer.done():
                    rows |= each.rows
                    del fetches.asked[leader]
            self._fill(slot, header, request, rows, fetches)

    def _split(self, request: Any) -> dict[int, list[tuple[str, Any]]]:
        by_leader: dict[int, list[tuple[str, Any]]] = {}
        for topic in request.topics:
            for part in topic.partitions:
                leader = self._cluster.view.leader(topic.topic, part.partition)
                by_leader.setdefault(leader, []).append((topic.topic, part))
        return by_leader

    def _without_leader(self, parts: list[tuple[str, Any]]) -> _Rows:
        if parts:
            self._cluster.stale()
        known = self._cluster.view.topics
        return {
            (name, int(part.partition)): _NOT_LEADER
            if name in known
            else ErrorCode.unknown_topic_or_partition
            for name, part in parts
        }

    def _part(self, request: Any, some: list[tuple[str, Any]], *, waits: bool) -> Any:
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
        if not waits:
            other["max_wait"] = request.max_wait * 0
        fields = {each.name for each in dataclasses.fields(request)}
        changes = {name: value for name, value in other.items() if name in fields}
        return dataclasses.replace(request, topics=topics, **changes)

    def _limit(self, request: Any) -> int:
        return min(int(request.max_bytes), self._fetch_bytes_max)

    async def _ask(
        self,
        links: ClientLinks,
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
            if before.key == key and (before.link.open or before.answer.done()):
                if not before.answer.done() or before.is_of_use:
                    return before
            elif not before.answer.done():
                before.link.close()  # the client reads elsewhere: what comes is of no use
        request = Request(FETCH, header.version)
        seconds = part.max_wait.total_seconds() + _LATE_SECONDS
        async with links.order:
            link = await links.link(leader, polling=True)
            answer = link.begin(request.encode_entity(part), seconds)
        asked = fetches.asked[leader] = _Asked(key, link, answer)
        return asked

    async def _wait(self, asked: list[_Asked], *, waits: bool) -> None:
        """Return when one of the answers is of use, or all are there."""
        waiting = {each.answer: each for each in asked}
        while waiting:
            done, _ = await asyncio.wait(
                waiting, return_when=asyncio.FIRST_COMPLETED if waits else asyncio.ALL_COMPLETED
            )
            if any(waiting.pop(each).is_of_use for each in list(done)):
                return

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
            told = topics.setdefault(topic.topic, [])
            for part in topic.partitions:
                place = topic.topic, int(part.partition)
                row = rows.get(place, ErrorCode.none)
                code = row.code if isinstance(row, FetchRow) else row.value
                if isinstance(row, FetchRow):
                    fetches.marks[place] = row.marks
                    if not row.size or not size or size + row.size <= limit:
                        told.append(row.data)
                        size += row.size
                        self._note(code)
                        continue
                    code = 0
                self._note(code)
                marks = fetches.marks.get(place, _NO_MARKS)
                told.append(empty_row(header.version, place[1], code, marks))
        slot.count(size)
        slot.fill(*write_answer(header.version, slot.correlation_id, topics))

    def _note(self, code: int) -> None:
        if code in _STALE_CODES:
            self._cluster.stale()
