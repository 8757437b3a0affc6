"""Fetch on the wire: requests to Kafka, joined responses of several leaders, responses to clients.

Source: FetchRequest.json and FetchResponse.json of Kafka 4.1, versions 4 to 11 (the last one
without compact lengths). The tests compare every version with kio. Records are not decoded.
"""

import asyncio
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pidlease.core.buffer import Buffer
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_FETCH, CLIENT_ID
from pidlease.kafka.codec.messages import next_id
from pidlease.kafka.codec.primitives import (
    INT16,
    INT32,
    MalformedError,
    Reader,
    write_array,
    write_string,
)
from pidlease.kafka.codec.time_slices import TimeSlices
from pidlease.kafka.errors import UpstreamAwayError, UpstreamNonsenseError

_LOG_START_FROM: Final = 5
_SESSION_FROM: Final = 7
_LEADER_EPOCH_FROM: Final = 9
_RACK_FROM: Final = 11

#: API, version, correlation id.
_HEADER: Final = struct.Struct(">hhi")
#: No replica, maximum wait, least and most bytes, isolation.
_WAIT: Final = struct.Struct(">iiiib")
#: Of a client's request: replica, maximum wait, least and most bytes, isolation.
_CLIENT_WAIT: Final = struct.Struct(">iiiib")
#: No session.
_SESSION: Final = struct.Struct(">ii")
#: Partition, offset, most bytes.
_REQUEST: Final = struct.Struct(">iqi")
#: Partition, offset, log start offset (of a follower), most bytes.
_REQUEST_LOG_START: Final = struct.Struct(">iqqi")
#: Partition, no leader epoch, offset, log start offset, most bytes.
_REQUEST_LEADER_EPOCH: Final = struct.Struct(">iiqqi")

#: A partition of a response: number, error, high watermark, last stable offset.
_ROW: Final = struct.Struct(">ihqq")
#: The same with the log start offset.
_ROW_LOG_START: Final = struct.Struct(">ihqqq")
#: The whole row up to its records: also no aborted transactions, and the size of the records.
_WHOLE_ROW: Final = struct.Struct(">ihqqii")
_WHOLE_ROW_LOG_START: Final = struct.Struct(">ihqqqii")
#: The same with no preferred replica.
_WHOLE_ROW_RACK: Final = struct.Struct(">ihqqqiii")
#: Of an aborted transaction: its producer id, and its first offset.
_ABORTED: Final = struct.Struct(">qq")
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
_NONE: Final = -1
_NO_THROTTLE: Final = b"\0\0\0\0"
#: No error, no session.
_NO_SESSION: Final = b"\0\0\0\0\0\0"
#: A batch begins with its offset, and the length of the rest.
_BATCH: Final = struct.Struct(">qi")
#: The position of its format, and that of batches.
_FORMAT_AT: Final = 16
_FORMAT_OF_BATCHES: Final = 2

#: A topic's name and a partition's number.
PartitionKey = tuple[str, int]


class FetchedRecords(NamedTuple):
    """A leader's response for one partition.

    Attributes:
        code: Kafka's error code.
        end_offset: the high watermark: all replicas have acknowledged the records before it.
        start_offset: the first offset of the log; -1: unknown.
        data: whole batches, and possibly the beginning of another one.
        stable_offset: the last stable offset: all transactions before it have ended; -1: unknown.
        aborted: aborted transactions with records in the data, if only committed records were
            requested: of each its producer id and its first offset.
    """

    code: int
    end_offset: int
    start_offset: int
    data: bytes
    stable_offset: int = -1
    aborted: Sequence[tuple[int, int]] = ()


class EncodedPartition(NamedTuple):
    """A partition's part of a leader's response, as encoded by Kafka.

    Attributes:
        code: Kafka's error code.
        size: bytes of records.
        data: the whole part, records included.
        offsets: high watermark, last stable offset, and log start offset.
    """

    code: int
    size: int
    data: memoryview
    offsets: tuple[int, int, int]


class PartitionRecords(NamedTuple):
    """A partition's part of a response to a client; unknown offsets are -1."""

    number: int
    code: int
    end_offset: int
    start_offset: int
    data: Buffer


# ---------------------------------------------------------------------- requests of clients


class FetchPosition(NamedTuple):
    """A partition of a client's request: its number, the first offset, and the most bytes."""

    number: int
    offset: int
    bytes_max: int


class FetchRequest(NamedTuple):
    """A client's request.

    Attributes:
        wait_ms: how long to wait for `bytes_min`.
        bytes_min: respond when there are so many bytes.
        bytes_max: the most bytes of all partitions; one batch may be larger.
        isolation: READ_UNCOMMITTED or READ_COMMITTED.
        topics: each topic's name with its partitions, in order.
    """

    wait_ms: int
    bytes_min: int
    bytes_max: int
    isolation: int
    topics: list[tuple[str, list[FetchPosition]]]


def read_fetch_request(frame: bytearray, at: int, version: int) -> FetchRequest:
    """Read the body of a client's request.

    Parameters:
        at: where the body begins.
        version: 4 to 11.

    Raises:
        MalformedError: the bytes are not a body of this version.
    """
    reader = Reader(frame, at, flexible=False)
    _, wait_ms, bytes_min, bytes_max, isolation = reader.fields(_CLIENT_WAIT)
    if version >= _SESSION_FROM:
        reader.fields(_SESSION)
    topics: list[tuple[str, list[FetchPosition]]] = []
    for _ in range(reader.array()):
        name = reader.string()
        if name is None:
            raise MalformedError("a topic without a name")
        topics.append((name, _read_positions(reader, version)))
    if version >= _SESSION_FROM:
        for _ in range(reader.array()):  # partitions to forget: there is no session
            reader.string()
            for _ in range(reader.array()):
                reader.int32()
    if version >= _RACK_FROM:
        reader.string()
    reader.end()
    return FetchRequest(wait_ms, bytes_min, bytes_max, isolation, topics)


def _read_positions(reader: Reader, version: int) -> list[FetchPosition]:
    if version >= _LEADER_EPOCH_FROM:
        rows = reader.rows(_REQUEST_LEADER_EPOCH)
        return [FetchPosition(number, offset, size) for number, _, offset, _, size in rows]
    if version >= _LOG_START_FROM:
        rows = reader.rows(_REQUEST_LOG_START)
        return [FetchPosition(number, offset, size) for number, offset, _, size in rows]
    return list(map(FetchPosition._make, reader.rows(_REQUEST)))


# ---------------------------------------------------------------------- requests to Kafka


class FetchLimits(NamedTuple):
    """How much a Fetch returns, and when.

    Attributes:
        wait_ms: how long the broker may wait for a record.
        bytes_max: the most bytes of all partitions; one batch may be larger.
        partition_bytes_max: the most bytes of one partition; one batch may be larger.
        isolation: READ_UNCOMMITTED or READ_COMMITTED.
    """

    wait_ms: int
    bytes_max: int
    partition_bytes_max: int
    isolation: int = READ_UNCOMMITTED


def write_fetch_request(
    version: int,
    offsets: Mapping[TopicPartition, int],
    limits: FetchLimits,
    client_id: str = CLIENT_ID,
) -> bytes:
    """Write a request to Kafka, under a correlation id of its own.

    Parameters:
        version: one of SENT_VERSIONS.
        offsets: of the first record of each partition.
        limits: how much to return, and when.
        client_id: the name of this client in the brokers' logs.
    """
    bytes_max = limits.partition_bytes_max
    positions = [
        (place.topic, FetchPosition(place.partition, offset, bytes_max))
        for place, offset in offsets.items()
    ]
    wait = _WAIT.pack(-1, limits.wait_ms, 1, limits.bytes_max, limits.isolation)
    return _write_request(version, client_id, wait, positions)


def write_forwarded_fetch(
    version: int, request: FetchRequest, positions: Iterable[tuple[str, FetchPosition]]
) -> bytes:
    """Write a part of a client's request to Kafka, under a correlation id of its own.

    Sessions, the rack, the replica id, log starts and leader epochs are left out.

    Parameters:
        positions: the partitions of the part, each with its topic's name.
    """
    wait = _WAIT.pack(-1, request.wait_ms, request.bytes_min, request.bytes_max, request.isolation)
    return _write_request(version, CLIENT_ID, wait, positions)


def _write_request(
    version: int, client_id: str, wait: bytes, positions: Iterable[tuple[str, FetchPosition]]
) -> bytes:
    topics: dict[str, list[bytes]] = {}
    for topic, position in positions:
        topics.setdefault(topic, []).append(_write_position(version, *position))
    parts = [
        _HEADER.pack(API_FETCH, version, next_id()),
        write_string(client_id, flexible=False),
        wait,
    ]
    if version >= _SESSION_FROM:
        parts.append(_SESSION.pack(0, -1))
    parts.append(INT32.pack(len(topics)))
    for name, rows in topics.items():
        parts += (write_string(name, flexible=False), INT32.pack(len(rows)), *rows)
    if version >= _SESSION_FROM:
        parts.append(INT32.pack(0))  # no forgotten partitions: there is no session
    if version >= _RACK_FROM:
        parts.append(INT16.pack(0))  # no rack: the leader must respond
    return b"".join(parts)


def _write_position(version: int, number: int, offset: int, bytes_max: int) -> bytes:
    if version >= _LEADER_EPOCH_FROM:
        return _REQUEST_LEADER_EPOCH.pack(number, -1, offset, -1, bytes_max)
    if version >= _LOG_START_FROM:
        return _REQUEST_LOG_START.pack(number, offset, -1, bytes_max)
    return _REQUEST.pack(number, offset, bytes_max)


# ---------------------------------------------------------------------- Kafka's responses


def read_fetch_response(
    version: int, partition: TopicPartition, frame: bytes | bytearray
) -> FetchedRecords:
    """Read Kafka's response to a request for one partition, from the correlation id on.

    Parameters:
        partition: the requested partition.

    Raises:
        UpstreamNonsenseError: the bytes are not a response of this version.
        UpstreamAwayError: the response has no partitions, as when a quota throttles this client.
    """
    try:
        return _read_one(version, partition, frame)
    except (struct.error, IndexError) as error:
        raise UpstreamNonsenseError(f"an invalid response to Fetch: {error}") from error


def _read_one(version: int, partition: TopicPartition, frame: bytes | bytearray) -> FetchedRecords:
    at = 8  # after the throttle time
    if version >= _SESSION_FROM:
        (code,) = INT16.unpack_from(frame, at)
        if code:
            return FetchedRecords(code, -1, -1, b"")
        at += len(_NO_SESSION)
    (topics,) = INT32.unpack_from(frame, at)
    if topics == 0 and at + 4 == len(frame):
        raise UpstreamAwayError(f"Kafka returns nothing for {partition} now")
    (length,) = INT16.unpack_from(frame, at + 4)
    name = bytes(frame[at + 6 : at + 6 + max(length, 0)])
    at += 6 + length
    (partitions,) = INT32.unpack_from(frame, at)
    at += 4
    if topics != 1 or partitions != 1:
        raise IndexError(f"{topics} topics and {partitions} partitions; one was requested")
    begin = at
    number, code, offsets, size, at = _read_row(version, frame, begin)
    if (name, number) != (partition.topic.encode(), partition.partition):
        raise IndexError(f"{name!r}, partition {number}; {partition} was requested")
    if at + size != len(frame):
        raise IndexError(f"{size} bytes of records where there are {len(frame) - at}")
    end, stable, start = offsets
    row = EncodedPartition(code, size, memoryview(frame)[begin:], offsets)
    aborted = aborted_transactions(version, row)
    return FetchedRecords(code, end, start, bytes(frame[at : at + size]), stable, aborted)


def first_offset(data: bytes) -> int | None:
    """Return the base offset of the first batch; None: there is no whole batch.

    A message of an old format may begin at any offset up to its own: 0 is returned.
    """
    if len(data) <= _FORMAT_AT:
        return None
    offset, length = _BATCH.unpack_from(data)
    if not 0 <= length <= len(data) - _BATCH.size:
        return None
    return int(offset) if data[_FORMAT_AT] >= _FORMAT_OF_BATCHES else 0


def read_partitions(
    version: int, frame: bytes | bytearray
) -> tuple[int, dict[PartitionKey, EncodedPartition]]:
    """Split Kafka's response into its error code and its encoded partitions.

    Raises:
        UpstreamNonsenseError: the bytes are not a response of this version.
    """
    try:
        return _read_many(version, frame)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise UpstreamNonsenseError(f"an invalid response to Fetch: {error}") from error


def _read_many(
    version: int, frame: bytes | bytearray
) -> tuple[int, dict[PartitionKey, EncodedPartition]]:
    view = memoryview(frame)
    at, code = 8, 0
    if version >= _SESSION_FROM:
        (code,) = INT16.unpack_from(frame, at)
        at += len(_NO_SESSION)
    (topics,) = INT32.unpack_from(frame, at)
    at += 4
    partitions: dict[PartitionKey, EncodedPartition] = {}
    for _ in range(topics):
        (length,) = INT16.unpack_from(frame, at)
        name = bytes(view[at + 2 : at + 2 + length]).decode()
        at += 2 + length
        (count,) = INT32.unpack_from(frame, at)
        at += 4
        for _ in range(count):
            begin = at
            number, error, offsets, size, at = _read_row(version, frame, begin)
            at += size
            if at > len(frame):
                raise IndexError("records that are longer than the response")
            partitions[name, number] = EncodedPartition(error, size, view[begin:at], offsets)
    if at != len(frame):
        raise IndexError(f"{len(frame) - at} bytes too many")
    return code, partitions


def _read_row(
    version: int, frame: bytes | bytearray, at: int
) -> tuple[int, int, tuple[int, int, int], int, int]:
    """Read a partition up to its records: number, code, offsets, records' size and position."""
    if version >= _LOG_START_FROM:
        number, code, end, stable, start = _ROW_LOG_START.unpack_from(frame, at)
        at += _ROW_LOG_START.size
    else:
        number, code, end, stable = _ROW.unpack_from(frame, at)
        start = -1
        at += _ROW.size
    (aborted,) = INT32.unpack_from(frame, at)
    at += 4 + max(aborted, 0) * _ABORTED.size + (4 if version >= _RACK_FROM else 0)
    (size,) = INT32.unpack_from(frame, at)
    return number, code, (end, stable, start), max(size, 0), at + 4


def aborted_transactions(version: int, partition: EncodedPartition) -> list[tuple[int, int]]:
    """Return the aborted transactions of a partition: producer id and first offset of each."""
    at = (_ROW_LOG_START if version >= _LOG_START_FROM else _ROW).size
    (count,) = INT32.unpack_from(partition.data, at)
    begin = at + INT32.size
    return list(_ABORTED.iter_unpack(partition.data[begin : begin + max(count, 0) * _ABORTED.size]))


# ---------------------------------------------------------------------- joining leaders' responses


def empty_partition(version: int, number: int, code: int, offsets: tuple[int, int, int]) -> bytes:
    """Encode a partition without records; `offsets` as in `EncodedPartition`."""
    return _write_row(version, number, code, offsets, 0)


def join_partitions(
    version: int, correlation_id: int, topics: Mapping[str, Sequence[bytes | memoryview]]
) -> list[bytes]:
    """Encode the response to a client, from the response header on, in parts.

    Parameters:
        topics: topic name -> encoded partitions.
    """
    parts = _head(version, correlation_id, len(topics))
    for name, rows in topics.items():
        parts += (write_string(name, flexible=False), write_array(len(rows), flexible=False))
        parts += rows  # type: ignore[arg-type]  # a transport takes views as well
    return parts


# ---------------------------------------------------------------------- responses to clients


async def write_fetch_response(
    version: int,
    correlation_id: int,
    topics: Mapping[str, tuple[int, Iterable[PartitionRecords]]],
) -> list[bytes]:
    """Encode the response to a client, from the response header on, in parts.

    Records are not copied. With many partitions, other tasks run in between.

    Parameters:
        topics: topic name -> number of partitions, and the partitions.
    """
    turns = TimeSlices()
    parts: list[bytes] = []
    heads = _head(version, correlation_id, len(topics))
    for name, (count, rows) in topics.items():
        heads += (write_string(name, flexible=False), write_array(count, flexible=False))
        for number, code, end, start, data in rows:
            heads.append(_write_row(version, number, code, (end, end, start), len(data)))
            if data:
                parts += (b"".join(heads), data)  # type: ignore[arg-type]  # as above
                heads.clear()
            if turns.due():
                await asyncio.sleep(0)
    parts.append(b"".join(heads))
    return parts


def _head(version: int, correlation_id: int, topics: int) -> list[bytes]:
    parts = [INT32.pack(correlation_id), _NO_THROTTLE]
    if version >= _SESSION_FROM:
        parts.append(_NO_SESSION)
    parts.append(write_array(topics, flexible=False))
    return parts


def _write_row(
    version: int, number: int, code: int, offsets: tuple[int, int, int], size: int
) -> bytes:
    """Encode a partition up to its records; `offsets` as in `EncodedPartition`."""
    end, stable, start = offsets
    if version < _LOG_START_FROM:
        return _WHOLE_ROW.pack(number, code, end, stable, _NONE, size)
    if version < _RACK_FROM:
        return _WHOLE_ROW_LOG_START.pack(number, code, end, stable, start, _NONE, size)
    return _WHOLE_ROW_RACK.pack(number, code, end, stable, start, _NONE, _NONE, size)
