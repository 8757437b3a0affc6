"""DeleteTopics (20) and DeleteRecords (21).

The errors are those of Kafka (ControllerApis, KafkaApis).
"""

import asyncio
import struct
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine, UnknownTopicError
from pidlease.engine.partition import Partition
from pidlease.kafka.codec.primitives import write_array, write_string
from pidlease.kafka.codec.time_slices import TimeSlices, counted
from pidlease.storage.errors import LogError, OffsetRangeError
from pidlease.storage.topics.topic_store import Topic
from proxy.kafka.admin.admin_changes import AdminChanges, deadline_of
from proxy.kafka.admin.change_outcome import DONE, TIMED_OUT, Verdict, not_stored
from proxy.kafka.admin.response_rows import Rows
from proxy.kafka.metadata_cache import TopicIds

#: Returned instead of the first offset if records could not be deleted
#: (DeleteRecordsResponse.INVALID_LOW_WATERMARK).
_NO_OFFSET: Final = -1
#: Deletions of a partition's records that run at once for one request.
_PARTITIONS_AT_ONCE: Final = 8
#: Partitions after which other tasks run; a multiple of the above.
_PARTITIONS_AT_A_TURN: Final = 256
#: A partition's number, its first offset, and a code.
_PARTITION: Final = struct.Struct(">iqh")
_TWICE: Final = Verdict(ErrorCode.invalid_request, "the topic is named twice")

_Asked = tuple[str | None, uuid.UUID | None]


class _Doomed(NamedTuple):
    """A topic to delete, or the reason why it is not deleted."""

    name: str | None
    topic_id: uuid.UUID | None
    verdict: Verdict = DONE


class _Found(NamedTuple):
    """A partition's first offset, or the error of its deletion."""

    offset: int
    code: ErrorCode = ErrorCode.none


_UNKNOWN: Final = _Found(_NO_OFFSET, ErrorCode.unknown_topic_or_partition)


class DeletingApi:
    """Deletes topics and records.

    Parameters:
        changes: runs the deletions of topics.
        deletions: runs the deletions of records.
    """

    def __init__(self, engine: Engine, changes: AdminChanges, deletions: AdminChanges) -> None:
        self._engine = engine
        self._changes = changes
        self._deletions = deletions
        self._ids = TopicIds(engine)

    # ------------------------------------------------------------------ DeleteTopics

    async def delete_topics(self, request: Any, rows: Rows) -> None:
        """Answer DeleteTopics: by name, from version 6 on also by id."""
        deadline = deadline_of(request.timeout)
        times = await counted(_asked(request))
        # Look up all topics before the first deletion: each deletion changes the topics.
        for doomed in await self._resolve_all(times):
            verdict = doomed.verdict
            if verdict is DONE:
                work = partial(self._delete, doomed)
                verdict = await self._changes.run(work, deadline, TIMED_OUT)
            await rows.add(
                "DeletableTopicResult",
                name=doomed.name,
                topic_id=doomed.topic_id,
                error_code=verdict.code,
                error_message=verdict.message,
            )

    async def _resolve_all(self, times: Counter[_Asked]) -> list[_Doomed]:
        turns = TimeSlices()
        found = []
        for each in times:
            found.append(self._resolve(each, times))
            if turns.due():
                await asyncio.sleep(0)
        return found

    def _resolve(self, asked: _Asked, times: Counter[_Asked]) -> _Doomed:
        name, topic_id = asked
        if (name is None) == (topic_id is None):
            reason = "name a topic to delete by either its name or its id"
            return _Doomed(name, topic_id, Verdict(ErrorCode.invalid_request, reason))
        if times[asked] > 1:
            return _Doomed(name, topic_id, _TWICE)
        topic: Topic | None = None
        if topic_id is not None:
            topic = self._ids.find(topic_id.hex)
            unknown = ErrorCode.unknown_topic_id
        elif name is not None:
            topic = self._engine.topics.get(name)
            unknown = ErrorCode.unknown_topic_or_partition
        if topic is None:
            return _Doomed(name, topic_id, Verdict(unknown, "there is no such topic"))
        whole = topic.name, uuid.UUID(topic.topic_id)
        both = (whole[0], None) in times and (None, whole[1]) in times
        return _Doomed(*whole, _TWICE if both else DONE)

    async def _delete(self, doomed: _Doomed) -> Verdict:
        name = doomed.name or ""
        topic = self._engine.topics.get(name)
        if topic is None or doomed.topic_id is None or topic.topic_id != doomed.topic_id.hex:
            reason = "the topic was deleted meanwhile"
            return Verdict(ErrorCode.unknown_topic_or_partition, reason)
        try:
            await self._engine.delete_topic(name)
        except UnknownTopicError as error:
            return Verdict(ErrorCode.unknown_topic_or_partition, str(error))
        except OSError as error:
            return not_stored(error)
        return DONE

    # ------------------------------------------------------------------ DeleteRecords

    async def delete_records(self, request: Any, rows: Rows) -> None:
        """Answer DeleteRecords. If a partition is named twice, its last offset counts."""
        deadline = deadline_of(request.timeout)
        topics = await _offsets_by_topic(request)
        for name, offsets in topics.items():
            found: dict[int, _Found] = {}
            numbers = list(offsets)
            for first in range(0, len(numbers), _PARTITIONS_AT_ONCE):
                some = numbers[first : first + _PARTITIONS_AT_ONCE]
                found |= await self._delete_some(name, {n: offsets[n] for n in some}, deadline)
                if first % _PARTITIONS_AT_A_TURN == 0:
                    await asyncio.sleep(0)
            row = await _row(name, found, flexible=rows.response.flexible)
            await rows.grow(len(row))
            rows.write(row)
            await rows.end_row()

    async def _delete_some(
        self, topic: str, offsets: dict[int, int], deadline: float
    ) -> dict[int, _Found]:
        """Delete the records of some partitions of a topic, concurrently."""
        found = dict.fromkeys(offsets, _UNKNOWN)
        there: dict[int, Partition] = {}
        for number in offsets:
            partition = self._engine.partition(topic, number)
            if partition is not None:
                there[number] = partition
        work = [self._delete_before(each, offsets[n], deadline) for n, each in there.items()]
        if work:
            found.update(zip(there, await asyncio.gather(*work), strict=True))
        return found

    async def _delete_before(self, partition: Partition, before: int, deadline: float) -> _Found:
        timed_out = _Found(_NO_OFFSET, ErrorCode.request_timed_out)
        return await self._deletions.run(partial(_delete, partition, before), deadline, timed_out)


def _asked(request: Any) -> Iterator[_Asked]:
    """Return the topics to delete; before version 6, they have names only."""
    if hasattr(request, "topics"):
        return ((topic.name, topic.topic_id) for topic in request.topics)
    return ((name, None) for name in request.topic_names)


async def _offsets_by_topic(request: Any) -> dict[str, dict[int, int]]:
    turns = TimeSlices()
    topics: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        named = topics.setdefault(topic.name, {})
        for each in topic.partitions:
            named[each.partition_index] = each.offset
            if turns.due():
                await asyncio.sleep(0)
    return topics


async def _delete(partition: Partition, before: int) -> _Found:
    """Delete the records before an offset; -1: up to the high watermark."""
    try:
        return _Found(await partition.delete_records(before))
    except OffsetRangeError:
        code = ErrorCode.offset_out_of_range
    except (LogError, OSError):
        code = ErrorCode.kafka_storage_error
    if partition.gone:
        code = ErrorCode.unknown_topic_or_partition
    return _Found(_NO_OFFSET, code)


async def _row(topic: str, found: dict[int, _Found], *, flexible: bool) -> bytes:
    """Encode a topic of the DeleteRecords response; by hand, since it may have many partitions."""
    turns = TimeSlices()
    tags = b"\0" if flexible else b""
    parts = []
    for number, each in found.items():
        parts.append(_PARTITION.pack(number, *each) + tags)
        if turns.due():
            await asyncio.sleep(0)
    name, array = write_string(topic, flexible=flexible), write_array(len(parts), flexible=flexible)
    return b"".join((name, array, *parts, tags))
