"""Fetch (key 1) in front of Kafka: each partition from its leader, one answer of all of them.

Fetch sessions (KIP-227) are not kept: the answer's session id 0 tells a client to ask in full each
time. A broker that has nothing yet is not asked again while it still waits: its answer belongs to
the client's next request, which is the same for its partitions.
"""

import asyncio
import dataclasses
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.storage.upstream.cluster import NO_LEADER, Cluster
from pidlease.storage.upstream.errors import UpstreamError
from pidlease.storage.upstream.link import Link
from pidlease.storage.upstream.messages import FETCH, Request
from proxy.kafka.connection import Slot
from proxy.kafka.messages import read_request_slowly
from proxy.kafka.upstream.fetch_rows import FetchRow, Place, empty_row, read_rows, write_answer
from proxy.kafka.upstream.links import ClientLinks, send
from proxy.kafka.wire import RequestHeader

#: How much longer than it was told to wait a broker may take.
_LATE_SECONDS: Final = 30.0
_STALE_CODES: Final = frozenset((3, 5, 6, 56, 72, 74, 75, 76))
_NO_MARKS: Final = (-1, -1, -1)

#: What of a partition was asked for: its name, number, and the offset.
_Key = tuple[tuple[str, int, int], ...]


class _Asked:
    """A request to one broker that has no answer, or one that nobody has taken yet."""

    def __init__(self, key: _Key, link: Link, answer: asyncio.Future[bytearray]) -> None:
        self.key = key
        self.link = link
        self.answer = answer


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
            MalformedRequestError: it is none.
            UpstreamError: a broker does not answer.
        """
        async with slot.connection.answering:
            request = await read_request_slowly(header, frame)
            by_leader = self._split(request)
            rows: dict[Place, FetchRow | ErrorCode] = self._without_leader(
                by_leader.pop(NO_LEADER, [])
            )
            waits = not rows
            asked = [
                await self._ask(links, fetches, header, leader, self._part(request, some, waits))
                for leader, some in by_leader.items()
            ]
            for answered in await self._first(asked, header.version, waits=waits):
                rows.update(answered)
            for leader in by_leader:
                if fetches.asked[leader].answer.done():
                    del fetches.asked[leader]
            self._fill(slot, header, request, rows, fetches)

    def _split(self, request: Any) -> dict[int, list[tuple[str, Any]]]:
        by_leader: dict[int, list[tuple[str, Any]]] = {}
        for topic in request.topics:
            for part in topic.partitions:
                leader = self._cluster.view.leader(topic.topic, part.partition)
                by_leader.setdefault(leader, []).append((topic.topic, part))
        return by_leader

    def _without_leader(self, parts: list[tuple[str, Any]]) -> dict[Place, FetchRow | ErrorCode]:
        if parts:
            self._cluster.stale()
        return {
            (name, int(part.partition)): ErrorCode.not_leader_or_follower
            if name in self._cluster.view.topics
            else ErrorCode.unknown_topic_or_partition
            for name, part in parts
        }

    def _part(self, request: Any, some: list[tuple[str, Any]], waits: bool) -> Any:  # noqa: FBT001
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
            "max_bytes": type(request.max_bytes)(min(request.max_bytes, self._fetch_bytes_max)),
        }  # fmt: skip
        if not waits:
            other["max_wait"] = request.max_wait * 0
        fields = {each.name for each in dataclasses.fields(request)}
        changes = {name: value for name, value in other.items() if name in fields}
        return dataclasses.replace(request, topics=topics, **changes)

    async def _ask(
        self,
        links: ClientLinks,
        fetches: ClientFetches,
        header: RequestHeader,
        leader: int,
        part: Any,
    ) -> _Asked:
        """Ask a broker, unless it was asked the same already."""
        key = tuple(
            (topic.topic, int(each.partition), int(each.fetch_offset))
            for topic in part.topics
            for each in topic.partitions
        )
        before = fetches.asked.get(leader)
        if before is not None:
            if before.key == key and before.link.open:
                return before
            if not before.answer.done():
                before.link.close()  # the client reads elsewhere: what comes is of no use
        request = Request(FETCH, header.version)
        seconds = part.max_wait.total_seconds() + _LATE_SECONDS
        async with links.order:
            link = await links.link(leader)
            answer = send(link, request.encode_entity(part), seconds)
        asked = fetches.asked[leader] = _Asked(key, link, answer)
        return asked

    async def _first(
        self, asked: list[_Asked], version: int, *, waits: bool
    ) -> list[dict[Place, FetchRow]]:
        """The answers that are there when one of them is of use, or all are there."""
        waiting = {each.answer for each in asked}
        found: list[dict[Place, FetchRow]] = []
        useful = not waits and not asked
        while waiting and not useful:
            done, waiting = await asyncio.wait(
                waiting, return_when=asyncio.FIRST_COMPLETED if waits else asyncio.ALL_COMPLETED
            )
            for each in done:
                code, rows = read_rows(version, each.result())
                if code:
                    raise UpstreamError(f"Kafka answers error {code} to a Fetch")
                found.append(rows)
                useful = useful or any(row.size or row.code for row in rows.values())
        return found

    def _fill(
        self,
        slot: Slot,
        header: RequestHeader,
        request: Any,
        rows: dict[Place, FetchRow | ErrorCode],
        fetches: ClientFetches,
    ) -> None:
        topics: dict[str, list[bytes | memoryview]] = {}
        size = 0
        for topic in request.topics:
            told = topics.setdefault(topic.topic, [])
            for part in topic.partitions:
                place = topic.topic, int(part.partition)
                row = rows.get(place, ErrorCode.none)
                if isinstance(row, ErrorCode):
                    marks = fetches.marks.get(place, _NO_MARKS)
                    told.append(empty_row(header.version, place[1], row.value, marks))
                    continue
                if row.code in _STALE_CODES:
                    self._cluster.stale()
                fetches.marks[place] = row.marks
                told.append(row.data)
                size += row.size
        slot.count(size)
        slot.fill(*write_answer(header.version, slot.correlation_id, topics))
