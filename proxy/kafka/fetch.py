"""Fetch (key 1): records as they stand in the log, with a long poll.

Source: FetchRequest.json / FetchResponse.json of Kafka 4.1, versions 4 to 11. Fetch sessions
(KIP-227) are not kept: the answer's session id 0 tells a client to ask in full each time.
"""

import asyncio
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.storage.errors import DamagedLogError, LogError, OffsetRangeError
from proxy.kafka.budget import MemoryBudget
from proxy.kafka.connection import Slot
from proxy.kafka.messages import read_request
from proxy.kafka.wire import INT32, RequestHeader, write_array, write_string

#: How long a poll may be held, whatever the client asks for.
_WAIT_MS_MAX: Final = 60_000
_PARTITION: Final = struct.Struct(">ihqq")
_INT64: Final = struct.Struct(">q")


@dataclass(slots=True)
class _Wanted:
    """One partition of a request, and what was found for it."""

    topic: str
    index: int
    offset: int
    max_bytes: int
    partition: Partition | None
    data: bytes = b""
    code: ErrorCode = ErrorCode.none


class FetchApi:
    """Answers Fetch requests.

    Parameters:
        engine: where the partitions are.
        budget: memory for the answers.
        fetch_bytes_max: the most that one answer holds, beyond its first batch.
    """

    def __init__(self, engine: Engine, budget: MemoryBudget, fetch_bytes_max: int) -> None:
        self._engine = engine
        self._budget = budget
        self._fetch_bytes_max = fetch_bytes_max

    async def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Answer a request, at once or when there is enough to read.

        Raises:
            MalformedRequestError: it is none.
        """
        request = read_request(header, frame)
        wanted = self._wanted(request)
        await self._wait(request, wanted)
        limit = min(request.max_bytes, self._fetch_bytes_max)
        left = max(limit, 0)
        held = 0
        for each in wanted:
            if left <= 0 and any(other.data for other in wanted):
                break
            await self._read(each, left)
            left -= len(each.data)
            # Held until the answer is flushed: the slot gives it back with the request's own.
            held += len(each.data)
            self._budget.add(len(each.data))
        slot.size += held
        slot.fill(*_encode(slot.correlation_id, header.version, wanted))

    def _wanted(self, request: Any) -> list[_Wanted]:
        return [
            _Wanted(
                topic.topic,
                part.partition,
                part.fetch_offset,
                part.partition_max_bytes,
                self._engine.partition(topic.topic, part.partition),
            )
            for topic in request.topics
            for part in topic.partitions
        ]

    async def _wait(self, request: Any, wanted: list[_Wanted]) -> None:
        """Hold the poll until enough records are there, something is wrong, or time is up."""
        wait_ms = min(int(request.max_wait.total_seconds() * 1000), _WAIT_MS_MAX)
        if wait_ms <= 0 or self._enough(request.min_bytes, wanted):
            return
        event = asyncio.Event()
        partitions = {each.partition for each in wanted if each.partition is not None}
        for partition in partitions:
            partition.watch(event)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    while not self._enough(request.min_bytes, wanted):
                        event.clear()
                        await event.wait()
        finally:
            for partition in partitions:
                partition.unwatch(event)

    @staticmethod
    def _enough(min_bytes: int, wanted: list[_Wanted]) -> bool:
        """Whether there is an error to tell, or about `min_bytes` to read.

        Bytes are estimated by offsets, each record being a few bytes at least: what is there is
        never held back longer than the client allows, and a byte too few is no error.
        """
        records = 0
        for each in wanted:
            if each.partition is None or each.offset > each.partition.readable_end:
                return True
            if each.offset < each.partition.log.start_offset:
                return True
            records += each.partition.readable_end - each.offset
        return records > 0 and records * _RECORD_BYTES_MIN >= min_bytes

    async def _read(self, each: _Wanted, left: int) -> None:
        partition = each.partition
        if partition is None:
            each.code = ErrorCode.unknown_topic_or_partition
            return
        if each.offset > partition.readable_end:
            each.code = ErrorCode.offset_out_of_range
            return
        try:
            each.data = await partition.log.read(each.offset, max(min(each.max_bytes, left), 1))
        except OffsetRangeError:
            each.code = ErrorCode.offset_out_of_range
        except DamagedLogError:
            each.code = ErrorCode.corrupt_message
        except (LogError, OSError):
            each.code = ErrorCode.kafka_storage_error


#: A record is no smaller (attributes, two deltas, two lengths, header count, its own length).
_RECORD_BYTES_MIN: Final = 7


def _encode(correlation_id: int, version: int, wanted: list[_Wanted]) -> list[bytes]:
    parts = [INT32.pack(correlation_id), b"\0\0\0\0"]  # throttle time
    if version >= 7:
        parts.append(b"\0\0\0\0\0\0")  # no error, no session
    topics: dict[str, list[_Wanted]] = {}
    for each in wanted:
        topics.setdefault(each.topic, []).append(each)
    parts.append(write_array(len(topics), flexible=False))
    for name, rows in topics.items():
        parts.append(write_string(name, flexible=False))
        parts.append(write_array(len(rows), flexible=False))
        for row in rows:
            parts.extend(_encode_row(version, row))
    return parts


def _encode_row(version: int, row: _Wanted) -> list[bytes]:
    end = row.partition.readable_end if row.partition else -1
    start = row.partition.log.start_offset if row.partition else -1
    parts = [_PARTITION.pack(row.index, row.code.value, end, end)]
    if version >= 5:
        parts.append(_INT64.pack(start))
    parts.append(write_array(-1, flexible=False))  # aborted transactions: there are none
    if version >= 11:
        parts.append(INT32.pack(-1))  # preferred read replica
    parts.append(INT32.pack(len(row.data)))
    parts.append(row.data)
    return parts
