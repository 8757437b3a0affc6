"""ListOffsets (key 2): the first offset, the next one, or the first at or after a time."""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.storage.errors import LogError
from proxy.kafka.messages import Response, read_request
from proxy.kafka.wire import RequestHeader

_LIST_OFFSETS: Final = 2
_LATEST: Final = -1
_EARLIEST: Final = -2
_NOT_FOUND: Final = (-1, -1)


async def list_offsets(engine: Engine, header: RequestHeader, frame: bytearray) -> bytes:
    """Answer ListOffsets."""
    request = read_request(header, frame)
    response = Response(_LIST_OFFSETS, header.version)
    topics = []
    for topic in request.topics:
        parts = [await _part(engine, response, topic.name, part) for part in topic.partitions]
        topics.append(
            response.part("ListOffsetsTopicResponse", name=topic.name, partitions=tuple(parts))
        )
    return response.encode(header.correlation_id, topics=tuple(topics))


async def _part(engine: Engine, response: Response, topic: str, asked: Any) -> Any:
    partition = engine.partition(topic, asked.partition_index)
    code, (offset, timestamp) = ErrorCode.none, _NOT_FOUND
    if partition is None:
        code = ErrorCode.unknown_topic_or_partition
    else:
        try:
            offset, timestamp = await _find(partition, asked.timestamp)
        except _UnknownTimestampError:
            code = ErrorCode.unsupported_version
        except (LogError, OSError):
            code = ErrorCode.kafka_storage_error
        if partition.gone:  # its topic was deleted while it was read
            code, (offset, timestamp) = ErrorCode.unknown_topic_or_partition, _NOT_FOUND
    return response.part(
        "ListOffsetsPartitionResponse",
        partition_index=asked.partition_index,
        error_code=code,
        offset=offset,
        timestamp=timestamp,
        leader_epoch=0 if code is ErrorCode.none and offset >= 0 else -1,
    )


class _UnknownTimestampError(Exception):
    """One of the special timestamps that later versions brought."""


async def _find(partition: Partition, timestamp: int) -> tuple[int, int]:
    if timestamp == _LATEST:
        return partition.readable_end, -1
    if timestamp == _EARLIEST:
        return partition.log.start_offset, -1
    if timestamp < 0:
        raise _UnknownTimestampError
    found = await partition.log.find_time(timestamp)
    return _NOT_FOUND if found is None else (found.offset, found.timestamp)
