"""Fetch (key 1): records as they stand in the log, with a long poll.

Source: FetchRequest.json / FetchResponse.json of Kafka 4.1, versions 4 to 11. Fetch sessions
(KIP-227) are not kept: the answer's session id 0 tells a client to ask in full each time.
"""

import asyncio
import struct
import time
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
#: How long records gather for a poll that asks for more than the first.
_GATHER_SECONDS: Final = 0.005
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

    @property
    def has_records(self) -> bool:
        """Whether something would be read."""
        return self.partition is not None and self.offset < self.partition.readable_end


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
        self._polls: set[asyncio.Event] = set()
        self._closing = False

    def close(self) -> None:
        """Let all polls end with what there is."""
        self._closing = True
        for event in self._polls:
            event.set()

    async def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Answer a request, at once or when there is enough to read.

        Raises:
            MalformedRequestError: it is none.
        """
        request = read_request(header, frame)
        wanted = self._wanted(request)
        wait_ms = min(int(request.max_wait.total_seconds() * 1000), _WAIT_MS_MAX)
        deadline = time.monotonic() + wait_ms / 1000
        event = asyncio.Event()
        partitions = {each.partition for each in wanted if each.partition is not None}
        self._polls.add(event)
        for partition in partitions:
            partition.watch(event)
        try:
            # One answer of a connection at a time, and none while it does not take them.
            async with slot.connection.answering:
                while not await self._read_all(slot, request, wanted, deadline):
                    if not wanted or not await self._wait(event, deadline, request.min_bytes):
                        break
        finally:
            self._polls.discard(event)
            for partition in partitions:
                partition.unwatch(event)
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

    async def _wait(self, event: asyncio.Event, deadline: float, min_bytes: int) -> bool:
        """Hold the poll until records came; False when time is up."""
        left = deadline - time.monotonic()
        if left <= 0 or self._closing:
            return False
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), left)
        event.clear()
        if min_bytes > 1:
            # Not for every record that comes: what is there is read again each time.
            await asyncio.sleep(max(min(_GATHER_SECONDS, deadline - time.monotonic()), 0))
        return True

    async def _read_all(
        self, slot: Slot, request: Any, wanted: list[_Wanted], deadline: float
    ) -> bool:
        """Read what is there; whether it is enough, or there is an error to tell.

        The memory counts as the request's own until the answer is out.
        """
        # A part of the memory at most: the first batch is given whole in any case.
        limit = min(request.max_bytes, self._fetch_bytes_max, self._budget.limit // 4)
        limit = max(limit, 0)
        if any(each.has_records for each in wanted):
            await slot.connection.writable.wait()
            # Not longer than the poll lasts (and a little, if it lasts not).
            if not await slot.hold(limit, max(deadline - time.monotonic(), _GATHER_SECONDS)):
                return True
        found = await self._read_each(wanted, limit)
        if slot.reserved:
            # The first batch is given whole, and may be more than was asked for.
            slot.resize(found)
        failed = any(each.code is not ErrorCode.none for each in wanted)
        enough = found >= max(request.min_bytes, 0)
        if enough or failed or self._closing or time.monotonic() >= deadline:
            return True
        slot.resize(0)
        return False

    async def _read_each(self, wanted: list[_Wanted], limit: int) -> int:
        """Read what there is for each, up to a limit; how many bytes that was."""
        left = limit
        for each in wanted:
            each.data = b""
            if left > 0 or left == limit:
                await self._read(each, left)
                left -= len(each.data)
        return limit - left

    async def _read(self, each: _Wanted, left: int) -> None:
        partition = each.partition
        if partition is None or partition.gone:
            each.code = ErrorCode.unknown_topic_or_partition
            return
        if each.offset > partition.readable_end:
            each.code = ErrorCode.offset_out_of_range
            return
        if each.offset == partition.readable_end:
            return
        try:
            each.data = await partition.log.read(each.offset, max(min(each.max_bytes, left), 1))
        except OffsetRangeError:
            each.code = ErrorCode.offset_out_of_range
        except DamagedLogError:
            each.code = ErrorCode.corrupt_message
        except (LogError, OSError):
            each.code = ErrorCode.kafka_storage_error
        if partition.gone:  # its topic was deleted while it was read
            each.data, each.code = b"", ErrorCode.unknown_topic_or_partition


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
