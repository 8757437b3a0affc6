"""Fetch towards Kafka, by hand, for one partition: to replay it, and to read on.

Source: FetchRequest.json and FetchResponse.json of Kafka 4.1, versions 4 to 11 (the last one
without compact lengths).
"""

import struct
from typing import Final, NamedTuple

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_FETCH, CLIENT_ID
from pidlease.kafka.codec.messages import next_id
from pidlease.kafka.errors import UpstreamAwayError, UpstreamNonsenseError

#: API, version, correlation id, client id.
_HEADER: Final = struct.Struct(f">hhih{len(CLIENT_ID)}s")
#: No replica, how long to wait, least and most bytes, isolation (read uncommitted).
_WAIT: Final = struct.Struct(">iiiib")
#: No session.
_SESSION: Final = struct.Struct(">ii")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
#: Partition, offset, most bytes.
_ASK_V4: Final = struct.Struct(">iqi")
#: Partition, offset, start of the log (a follower's), most bytes.
_ASK_V5: Final = struct.Struct(">iqqi")
#: Partition, no leader epoch, offset, start of the log, most bytes.
_ASK_V9: Final = struct.Struct(">iiqqi")
_ROW_V4: Final = struct.Struct(">ihqq")
_ROW_V5: Final = struct.Struct(">ihqqq")
_ABORTED: Final = 16
#: What a batch begins with: its offset, and its length from there on.
_BATCH: Final = struct.Struct(">qi")


class Fetched(NamedTuple):
    """What a partition answered.

    Attributes:
        code: Kafka's error code.
        end_offset: the first offset that is not acknowledged by all replicas.
        start_offset: the first one that there is; -1: not said.
        data: whole batches, and perhaps the beginning of one.
    """

    code: int
    end_offset: int
    start_offset: int
    data: bytes


def write_fetch(
    version: int, place: TopicPartition, offset: int, bytes_max: int, wait_ms: int
) -> bytes:
    """A request for one partition, under a correlation id of its own.

    Parameters:
        version: one of SENT_VERSIONS.
        place: topic and partition.
        offset: from where on.
        bytes_max: so much at most, but at least a batch.
        wait_ms: how long the broker may wait for a record.
    """
    name = place.topic.encode()
    parts = [
        _HEADER.pack(API_FETCH, version, next_id(), len(CLIENT_ID), CLIENT_ID.encode()),
        _WAIT.pack(-1, wait_ms, 1, bytes_max, 0),
    ]
    if version >= 7:
        parts.append(_SESSION.pack(0, -1))
    parts += (_INT32.pack(1), _INT16.pack(len(name)), name, _INT32.pack(1))
    if version >= 9:
        parts.append(_ASK_V9.pack(place.partition, -1, offset, -1, bytes_max))
    elif version >= 5:
        parts.append(_ASK_V5.pack(place.partition, offset, -1, bytes_max))
    else:
        parts.append(_ASK_V4.pack(place.partition, offset, bytes_max))
    if version >= 7:
        parts.append(_INT32.pack(0))  # nothing leaves a session
    if version >= 11:
        parts.append(_INT16.pack(0))  # no rack: the leader is to answer
    return b"".join(parts)


def read_fetch(version: int, place: TopicPartition, frame: bytes | bytearray) -> Fetched:
    """The answer, from the correlation id on.

    Parameters:
        version: of the request.
        place: the partition that was asked for.
        frame: the answer.

    Raises:
        UpstreamNonsenseError: it is none.
        UpstreamAwayError: there are no partitions in it, as where Kafka has us wait (a quota).
    """
    try:
        return _read(version, place, frame)
    except (struct.error, IndexError) as error:
        raise UpstreamNonsenseError(f"an answer to Fetch that is none: {error}") from error


def _read(version: int, place: TopicPartition, frame: bytes | bytearray) -> Fetched:
    at = 8  # behind the throttle time
    if version >= 7:
        (code,) = _INT16.unpack_from(frame, at)
        if code:
            return Fetched(code, -1, -1, b"")
        at += 6
    (topics,) = _INT32.unpack_from(frame, at)
    if topics == 0 and at + 4 == len(frame):
        raise UpstreamAwayError(f"Kafka has nothing to say of {place} for now")
    (length,) = _INT16.unpack_from(frame, at + 4)
    name = bytes(frame[at + 6 : at + 6 + max(length, 0)])
    at += 6 + length
    (partitions,) = _INT32.unpack_from(frame, at)
    at += 4
    if topics != 1 or partitions != 1:
        raise IndexError(f"{topics} topics and {partitions} partitions, where one was asked for")
    layout = _ROW_V5 if version >= 5 else _ROW_V4
    row = layout.unpack_from(frame, at)
    if (name, row[0]) != (place.topic.encode(), place.partition):
        raise IndexError(f"{name!r}, partition {row[0]}, where {place} was asked for")
    start = row[4] if version >= 5 else -1
    at += layout.size
    (aborted,) = _INT32.unpack_from(frame, at)
    at += 4 + max(aborted, 0) * _ABORTED + (4 if version >= 11 else 0)
    (size,) = _INT32.unpack_from(frame, at)
    at += 4
    size = max(size, 0)
    if at + size != len(frame):
        raise IndexError(f"{size} bytes of records where there are {len(frame) - at}")
    return Fetched(row[1], row[2], start, bytes(frame[at : at + size]))


def first_offset(data: bytes) -> int | None:
    """The offset that the first batch begins with; None: there is no whole batch."""
    if len(data) < _BATCH.size:
        return None
    offset, length = _BATCH.unpack_from(data)
    return int(offset) if 0 <= length <= len(data) - _BATCH.size else None
