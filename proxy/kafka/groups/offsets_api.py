"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47)."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine
from pidlease.kafka.api import API_OFFSET_DELETE
from pidlease.kafka.codec.messages import Response, read_request
from pidlease.kafka.codec.offsets import (
    CommitRequest,
    FetchGroup,
    read_commit,
    read_fetch,
    write_commit,
    write_fetch_head,
    write_group_head,
    write_group_tail,
    write_rows,
    write_tags,
    write_topic_head,
)
from pidlease.kafka.codec.primitives import RequestHeader
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.offsets.journal_records import (
    NEVER_MS,
    Commit,
    CommittedOffset,
    Forget,
    OffsetsFullError,
    TopicOffsets,
)
from pidlease.storage.offsets.offset_store import OffsetStore
from pidlease.storage.offsets.offset_table import StoredGroup
from proxy.kafka.client_connection import Slot
from proxy.kafka.groups.group import State
from proxy.kafka.groups.group_coordinator import GroupCoordinator, stored_code
from proxy.kafka.groups.subscription import CONSUMER
from proxy.kafka.growing_response import GrowingResponse
from proxy.kafka.request_order import Answered

#: The longest metadata of a commit, in UTF-16 units (Kafka's offset.metadata.max.bytes, which
#: counts Java's characters).
METADATA_MAX: Final = 4096
#: From this version on OffsetCommit has an error for an unknown group.
_GROUP_NOT_FOUND_FROM: Final = 9
#: Partitions that are encoded before other tasks run.
_AT_ONCE: Final = 500

_log = structlog.get_logger(__name__)

#: Topic name, and its partitions with their codes.
_Codes = list[tuple[str, list[tuple[int, ErrorCode]]]]
#: Topic name, the partitions to return, and what the group committed for the topic.
_Asked = tuple[str, Sequence[int], dict[int, CommittedOffset]]


class OffsetsApi:
    """Handles the requests about committed offsets.

    Parameters:
        clock_ms: returns the time, in ms since 1970.
    """

    def __init__(
        self,
        engine: Engine,
        coordinator: GroupCoordinator,
        offsets: OffsetStore,
        clock_ms: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._coordinator = coordinator
        self._offsets = offsets
        self._clock_ms = clock_ms

    # ------------------------------------------------------------------ OffsetCommit

    def offset_commit(self, header: RequestHeader, frame: bytearray, _slot: Slot) -> Answered:
        """Answer OffsetCommit when the offsets are stored."""
        request = read_commit(header, frame)
        codes, topics = self._check_partitions(request)
        if not topics:
            return write_commit(header, codes)
        error = self._may_commit(header, request)
        if error is ErrorCode.none:
            try:
                stored = self._offsets.write(Commit(request.group_id, tuple(topics)))
            except OffsetsFullError as full:
                LINES.write(_log, "warning", "offsets refused", kind_of(full),
                            group=request.group_id, reason=str(full))  # fmt: skip
                error = ErrorCode.invalid_commit_offset_size
            else:
                self._coordinator.known.expect(request.group_id, stored)
                return _committed_later(header, codes, stored)
        return write_commit(header, _with_error(codes, error))

    def _check_partitions(self, request: CommitRequest) -> tuple[_Codes, list[TopicOffsets]]:
        """Return the error codes of all partitions, and the offsets to store."""
        now_ms = self._clock_ms()
        expire_ms = NEVER_MS
        if request.retention_ms >= 0:
            expire_ms = min(now_ms + request.retention_ms, 2**63 - 1)
        codes: _Codes = []
        topics = []
        for name, partitions in request.topics:
            rows: list[tuple[int, ErrorCode]] = []
            good: dict[int, CommittedOffset] = {}
            for partition, offset, leader_epoch, metadata in partitions:
                code = self._check_partition(name, partition, metadata)
                rows.append((partition, code))
                if code is ErrorCode.none:
                    good[partition] = CommittedOffset(
                        offset, leader_epoch, metadata, now_ms, expire_ms
                    )
            codes.append((name, rows))
            if good:
                topics.append(TopicOffsets(name, self._engine.topics[name].topic_id, good))
        return codes, topics

    def _check_partition(self, topic: str, partition: int, metadata: str) -> ErrorCode:
        if self._engine.partition(topic, partition) is None:
            return ErrorCode.unknown_topic_or_partition
        if _java_length(metadata) > METADATA_MAX:
            return ErrorCode.offset_metadata_too_large
        return ErrorCode.none

    def _may_commit(self, header: RequestHeader, request: CommitRequest) -> ErrorCode:
        error = self._coordinator.check_commit(
            request.group_id, request.member_id, request.instance_id, request.generation
        )
        if error is ErrorCode.group_id_not_found and header.version < _GROUP_NOT_FOUND_FROM:
            return ErrorCode.illegal_generation
        return error

    # ------------------------------------------------------------------ OffsetFetch

    def offset_fetch(self, header: RequestHeader, frame: bytearray, slot: Slot) -> Answered:
        """Answer OffsetFetch when all earlier commits are stored."""
        return self._fetched(header, read_fetch(header, frame), slot)

    async def _fetched(self, header: RequestHeader, asked: list[FetchGroup], slot: Slot) -> None:
        await self._offsets.settled()
        # One large response of a connection at a time.
        await slot.turn()
        once = _each_once(asked)
        growing = GrowingResponse(slot)
        parts = [write_fetch_head(header, len(once))]
        for group in once:
            parts += await self._group(header.version, group, growing)
        parts.append(write_tags(header.version))
        slot.fill(b"".join(parts))

    async def _group(
        self, version: int, asked: FetchGroup, growing: GrowingResponse
    ) -> list[bytes]:
        """Encode a group's part of the response."""
        error = ErrorCode.coordinator_not_available
        if not self._coordinator.closed:
            topics = self._fetch(asked)
            found = await _topics(version, asked.group_id, topics, growing)
            if found is not None:
                return found
            LINES.write(_log, "warning", "offsets not returned: too many at once", asked.group_id,
                        group=asked.group_id)  # fmt: skip
            error = ErrorCode.invalid_request
        # Errors of partitions, too: the oldest version has no other.
        parts = [write_group_head(version, asked.group_id, len(asked.topics or ()))]
        for name, partitions in asked.topics or ():
            parts.append(write_topic_head(version, name, len(partitions)))
            parts.append(write_rows(version, ((each, None) for each in partitions), error))
            parts.append(write_tags(version))
        parts.append(write_group_tail(version, error))
        return parts

    def _fetch(self, asked: FetchGroup) -> list[_Asked]:
        """Return the topics with the partitions to return, and their offsets."""
        stored = self._offsets.table.groups.get(asked.group_id)
        if asked.topics is not None:
            return [(name, each, self._offsets_of(stored, name)) for name, each in asked.topics]
        names = stored.topics if stored is not None else ()
        found = [(name, self._offsets_of(stored, name)) for name in names]
        return [(name, list(offsets), offsets) for name, offsets in found if offsets]

    def _offsets_of(self, stored: StoredGroup | None, name: str) -> dict[int, CommittedOffset]:
        """Return a group's offsets for a topic, unless another topic has its name now.

        Also for a topic that is being deleted: the deletion may fail.
        """
        part = stored.topics.get(name) if stored is not None else None
        topic = self._engine.topics.get(name)
        if part is None or (topic is not None and topic.topic_id != part.topic_id):
            return {}
        return part.offsets

    # ------------------------------------------------------------------ OffsetDelete

    def offset_delete(self, header: RequestHeader, frame: bytearray, _slot: Slot) -> Answered:
        """Answer OffsetDelete when the deletion is stored."""
        request = read_request(header, frame)
        error = self._may_delete(request.group_id)
        if error is not ErrorCode.none:
            return _deleted(header, [], error)
        codes: _Codes = []
        leaving: list[tuple[str, tuple[int, ...]]] = []
        for asked in request.topics:
            numbers = [part.partition_index for part in asked.partitions]
            rows = [
                (each, self._check_delete(request.group_id, asked.name, each)) for each in numbers
            ]
            codes.append((asked.name, rows))
            leaving.append(
                (asked.name, tuple(each for each, code in rows if code is ErrorCode.none))
            )
        if not any(numbers for _, numbers in leaving):
            return _deleted(header, codes, ErrorCode.none)
        stored = self._offsets.write(Forget(request.group_id, tuple(leaving)))
        return _deleted_later(header, codes, stored)

    def _may_delete(self, group_id: str) -> ErrorCode:
        if self._coordinator.closed:
            return ErrorCode.coordinator_not_available
        state = self._coordinator.state(group_id)
        if state is State.DEAD:
            return ErrorCode.group_id_not_found
        if state is not State.EMPTY and self._coordinator.protocol_type(group_id) != CONSUMER:
            return ErrorCode.non_empty_group
        return ErrorCode.none

    def _check_delete(self, group_id: str, topic: str, partition: int) -> ErrorCode:
        if self._engine.partition(topic, partition) is None:
            return ErrorCode.unknown_topic_or_partition
        group = self._coordinator.active.get(group_id)
        if group is not None and group.reads(topic):
            return ErrorCode.group_subscribed_to_topic
        return ErrorCode.none


def _java_length(text: str) -> int:
    """Return a text's length in UTF-16 units, as Java counts."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def _each_once(asked: list[FetchGroup]) -> list[FetchGroup]:
    """Drop repeated requests for the same group and partitions."""
    seen: dict[tuple[object, ...], FetchGroup] = {}
    for each in asked:
        topics = each.topics
        key = None if topics is None else tuple((name, tuple(ns)) for name, ns in topics)
        seen.setdefault((each.group_id, key), each)
    return list(seen.values())


async def _topics(
    version: int, group_id: str, topics: list[_Asked], growing: GrowingResponse
) -> list[bytes] | None:
    """Encode a group's topics; return None if they are too many."""
    parts = [write_group_head(version, group_id, len(topics))]
    for name, partitions, offsets in topics:
        parts.append(write_topic_head(version, name, len(partitions)))
        for start in range(0, len(partitions), _AT_ONCE):
            some = partitions[start : start + _AT_ONCE]
            rows = ((each, offsets.get(each)) for each in some)
            parts.append(write_rows(version, rows, ErrorCode.none))
            if not await growing.grow(len(parts[-1])):
                return None
        parts.append(write_tags(version))
        if not await growing.grow(len(name) + 8):
            return None
    parts.append(write_group_tail(version, ErrorCode.none))
    await growing.grow(len(group_id) + 8)
    return parts


async def _committed_later(
    header: RequestHeader, codes: _Codes, stored: "asyncio.Future[None]"
) -> bytes:
    return write_commit(header, _with_error(codes, await stored_code(stored)))


def _with_error(codes: _Codes, error: ErrorCode) -> _Codes:
    """Set an error for all partitions that have none of their own."""
    return [
        (topic, [(number, error if code is ErrorCode.none else code) for number, code in rows])
        for topic, rows in codes
    ]


async def _deleted_later(
    header: RequestHeader, codes: _Codes, stored: "asyncio.Future[None]"
) -> bytes:
    error = await stored_code(stored)
    return _deleted(header, codes if error is ErrorCode.none else [], error)


def _deleted(header: RequestHeader, codes: _Codes, error: ErrorCode) -> bytes:
    response = Response(API_OFFSET_DELETE, header.version)
    topics = _code_rows(response, codes)
    return response.encode(header.correlation_id, error_code=error, topics=topics)


def _code_rows(response: Response, codes: _Codes) -> tuple[Any, ...]:
    return tuple(
        response.part(
            "Topic",
            name=topic,
            partitions=tuple(
                response.part("Partition", partition_index=number, error_code=code)
                for number, code in rows
            ),
        )
        for topic, rows in codes
    )
