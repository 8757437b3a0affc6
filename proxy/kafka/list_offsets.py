"""ListOffsets (key 2): a partition's start, its end, or the first offset at or after a time.

Source: ListOffsets{Request,Response}.json of Kafka 4.1, versions 1 to 6. The response is encoded
by hand, since a client may name all partitions. The tests compare every version with kio.
"""

import asyncio
import struct
from typing import Final

from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.kafka.codec.messages import read_request_slowly
from pidlease.kafka.codec.primitives import INT32, RequestHeader, write_array, write_string
from pidlease.kafka.codec.time_slices import TimeSlices
from pidlease.storage.errors import LogError

_FLEXIBLE_FROM: Final = 6
_EPOCH_FROM: Final = 4
_THROTTLED_FROM: Final = 2
_LATEST: Final = -1
_EARLIEST: Final = -2
_NOT_FOUND: Final = (-1, -1)
#: Partition, code, timestamp, offset; the leader epoch follows from version 4 on.
_ROW: Final = struct.Struct(">ihqq")
_NO_EPOCH: Final = INT32.pack(-1)
_EPOCH: Final = INT32.pack(0)


async def list_offsets(engine: Engine, header: RequestHeader, frame: bytearray) -> bytes:
    """Answer ListOffsets."""
    request = await read_request_slowly(header, frame)
    flexible = header.version >= _FLEXIBLE_FROM
    tags = b"\0" if flexible else b""
    turns = TimeSlices()
    parts = [INT32.pack(header.correlation_id), tags]
    if header.version >= _THROTTLED_FROM:
        parts.append(INT32.pack(0))
    parts.append(write_array(len(request.topics), flexible=flexible))
    for topic in request.topics:
        parts.append(write_string(topic.name, flexible=flexible))
        parts.append(write_array(len(topic.partitions), flexible=flexible))
        for asked in topic.partitions:
            number = asked.partition_index
            code, found = await _list(engine.partition(topic.name, number), asked.timestamp)
            parts.append(_row(header.version, number, code, found) + tags)
            if turns.due():
                await asyncio.sleep(0)
        parts.append(tags)
    parts.append(tags)
    return b"".join(parts)


def _row(version: int, number: int, code: ErrorCode, found: tuple[int, int]) -> bytes:
    offset, timestamp = found
    row = _ROW.pack(number, code, timestamp, offset)
    if version < _EPOCH_FROM:
        return row
    return row + (_EPOCH if offset >= 0 else _NO_EPOCH)


async def _list(partition: Partition | None, timestamp: int) -> tuple[ErrorCode, tuple[int, int]]:
    """Return an error code, and the offset with its record's timestamp."""
    if partition is None:
        return ErrorCode.unknown_topic_or_partition, _NOT_FOUND
    code, found = ErrorCode.none, _NOT_FOUND
    try:
        found = await _find(partition, timestamp)
    except _UnknownTimestampError:
        code = ErrorCode.unsupported_version
    except (LogError, OSError):
        code = ErrorCode.kafka_storage_error
    if partition.gone:  # the topic was deleted during the search
        return ErrorCode.unknown_topic_or_partition, _NOT_FOUND
    return code, found


class _UnknownTimestampError(Exception):
    """One of the special timestamps of later versions."""


async def _find(partition: Partition, timestamp: int) -> tuple[int, int]:
    """Return the requested offset, and its record's timestamp.

    Raises:
        LogStoppedError: the offset is, or may be, among records that cannot be read.
    """
    if timestamp == _LATEST:
        if partition.incomplete:
            raise partition.stopped_error()
        return partition.readable_end, -1
    if timestamp == _EARLIEST:
        start = partition.log.start_offset
        if start >= partition.readable_end and partition.incomplete:
            raise partition.stopped_error()
        return start, -1
    if timestamp < 0:
        raise _UnknownTimestampError
    found = await partition.log.find_time(timestamp)
    if found is None and partition.incomplete:
        raise partition.stopped_error()
    return _NOT_FOUND if found is None else (found.offset, found.timestamp)
