"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47)."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine
from pidlease.storage.offset_records import (
    NEVER_MS,
    Commit,
    CommittedOffset,
    Forget,
    OffsetsFailedError,
    OffsetsFullError,
    TopicOffsets,
)
from pidlease.storage.offset_table import StoredGroup
from proxy.kafka.groups.coordinator import Coordinator
from proxy.kafka.groups.offsets_wire import (
    CommitRequest,
    FetchGroup,
    read_commit,
    read_fetch,
    write_commit,
    write_fetch,
)
from proxy.kafka.groups.ports import Offsets
from proxy.kafka.groups.rebalance import State
from proxy.kafka.groups.subscription import CONSUMER
from proxy.kafka.messages import Response, read_request
from proxy.kafka.ordered import Answered
from proxy.kafka.wire import RequestHeader

_OFFSET_DELETE: Final = 47

#: The most characters of a client's metadata (Kafka's offset.metadata.max.bytes, which counts them
#: as Java does).
METADATA_MAX: Final = 4096
#: From this version on a commit to a group that is not known has a code of its own.
_GROUP_NOT_FOUND_FROM: Final = 9
#: Partitions that are fetched before others get their turn.
_AT_ONCE: Final = 1000

_log = structlog.get_logger(__name__)

#: Topic name, and its partitions with their codes.
_Codes = list[tuple[str, list[tuple[int, ErrorCode]]]]


class OffsetsApi:
    """Answers the requests named above.

    Parameters:
        engine: tells which topics there are.
        coordinator: the groups.
        offsets: what is stored.
        clock_ms: the time, in ms since 1970.
    """

    def __init__(
        self,
        engine: Engine,
        coordinator: Coordinator,
        offsets: Offsets,
        clock_ms: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._coordinator = coordinator
        self._offsets = offsets
        self._clock_ms = clock_ms

    # ------------------------------------------------------------------ OffsetCommit

    def offset_commit(self, header: RequestHeader, frame: bytearray, _host: str) -> Answered:
        """Answer OffsetCommit, when what it commits is stored."""
        request = read_commit(header, frame)
        codes, topics = self._check_partitions(request)
        if not topics:
            return write_commit(header, codes)
        error = self._may_commit(header, request)
        if error is ErrorCode.none:
            try:
                stored = self._offsets.write(Commit(request.group_id, tuple(topics)))
            except OffsetsFullError as full:
                _log.warning("offsets refused", group=request.group_id, reason=str(full))
                error = ErrorCode.invalid_commit_offset_size
            else:
                return _committed_later(header, codes, stored)
        return write_commit(header, _with_error(codes, error))

    def _check_partitions(self, request: CommitRequest) -> tuple[_Codes, list[TopicOffsets]]:
        """The codes of all partitions so far, and what is to be stored of those without error."""
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
        if len(metadata) > METADATA_MAX:
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

    def offset_fetch(self, header: RequestHeader, frame: bytearray, _host: str) -> Answered:
        """Answer OffsetFetch, behind all commits that came before it."""
        return self._fetched(header, read_fetch(header, frame))

    async def _fetched(self, header: RequestHeader, asked: list[FetchGroup]) -> bytes:
        await self._offsets.settled()
        if self._coordinator.closed:
            # The oldest version tells errors of partitions only.
            nothing = [(group.group_id, _unknown(group)) for group in asked]
            return write_fetch(header, nothing, ErrorCode.coordinator_not_available)
        groups = []
        told = 0
        for group in asked:
            topics = self._fetch(group)
            groups.append((group.group_id, topics))
            told += sum(len(rows) for _, rows in topics)
            if told > _AT_ONCE:
                told = 0
                await asyncio.sleep(0)  # others want to be served, too
        return write_fetch(header, groups, ErrorCode.none)

    def _fetch(
        self, asked: FetchGroup
    ) -> list[tuple[str, list[tuple[int, CommittedOffset | None]]]]:
        stored = self._offsets.table.groups.get(asked.group_id)
        if asked.topics is None:
            return [
                (name, [*self._offsets_of(stored, name).items()])
                for name in (stored.topics if stored is not None else ())
                if self._offsets_of(stored, name)
            ]
        found = []
        for name, partitions in asked.topics:
            offsets = self._offsets_of(stored, name)
            found.append((name, [(each, offsets.get(each)) for each in partitions]))
        return found

    def _offsets_of(self, stored: StoredGroup | None, name: str) -> dict[int, CommittedOffset]:
        """What a group committed for a topic, if it is still that one."""
        part = stored.topics.get(name) if stored is not None else None
        topic = self._engine.topics.get(name)
        if part is None or topic is None or topic.topic_id != part.topic_id:
            return {}
        return part.offsets

    # ------------------------------------------------------------------ OffsetDelete

    def offset_delete(self, header: RequestHeader, frame: bytearray, _host: str) -> Answered:
        """Answer OffsetDelete, when what it deletes is gone for good."""
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


def _unknown(asked: FetchGroup) -> list[tuple[str, list[tuple[int, CommittedOffset | None]]]]:
    """All partitions that are asked for, without offsets."""
    return [
        (name, [(each, None) for each in partitions]) for name, partitions in asked.topics or ()
    ]


async def _committed_later(
    header: RequestHeader, codes: _Codes, stored: "asyncio.Future[None]"
) -> bytes:
    try:
        await stored
    except OffsetsFailedError:
        codes = _with_error(codes, ErrorCode.coordinator_not_available)
    return write_commit(header, codes)


def _with_error(codes: _Codes, error: ErrorCode) -> _Codes:
    """The codes of a request, of which as a whole nothing comes."""
    return [
        (topic, [(number, error if code is ErrorCode.none else code) for number, code in rows])
        for topic, rows in codes
    ]


async def _deleted_later(
    header: RequestHeader, codes: _Codes, stored: "asyncio.Future[None]"
) -> bytes:
    try:
        await stored
    except OffsetsFailedError:
        return _deleted(header, [], ErrorCode.coordinator_not_available)
    return _deleted(header, codes, ErrorCode.none)


def _deleted(header: RequestHeader, codes: _Codes, error: ErrorCode) -> bytes:
    response = Response(_OFFSET_DELETE, header.version)
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
