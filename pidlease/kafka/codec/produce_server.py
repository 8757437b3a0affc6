"""Produce on the wire: requests read and answers written by hand, for this is the hot path.

Source: ProduceRequest.json / ProduceResponse.json of Kafka 4.1, versions 3 to 12. The tests hold
every version against kio. Lengths are read in place, without an object for each: at some ten
thousand requests a second that is what counts.
"""

import struct
from typing import Final, NamedTuple

from pidlease.kafka.codec.primitives import (
    INT32,
    MalformedError,
    Reader,
    compact_length,
    write_array,
    write_string,
)

FLEXIBLE_FROM: Final = 9
_RECORD_ERRORS_FROM: Final = 8
_LOG_START_FROM: Final = 5
_NO_TIME: Final = -1
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_PARTITION: Final = struct.Struct(">ihqq")
_PARTITION_WITH_START: Final = struct.Struct(">ihqqq")
#: In flexible versions, for what succeeded: no record errors, no message, no tags.
_NO_ERRORS_FLEXIBLE: Final = b"\x01\x00\x00"
#: The same in version 8.
_NO_ERRORS: Final = b"\0\0\0\0\xff\xff"
#: Of an answer with one topic and one partition: correlation id, tags, how many topics and one.
_SIMPLE_HEAD: Final = struct.Struct(">ibb")
#: Throttle time, and tags behind it.
_END: Final = b"\0\0\0\0"
_END_FLEXIBLE: Final = b"\0\0\0\0\0"
#: In front of the only partition, how many there are and one; the topic's tags and the end behind.
_SIMPLE_ONE: Final = b"\x02"
_SIMPLE_END: Final = b"\0" + _END_FLEXIBLE


class PartitionData(NamedTuple):
    """One partition's part of a request; `data` is a view into the request, empty for null."""

    topic: str
    number: int
    data: memoryview


class ProduceRequest(NamedTuple):
    """A request. `topics` has each topic's name with how many of `parts` are its own."""

    transactional_id: str | None
    acks: int
    topics: list[tuple[str, int]]
    parts: list[PartitionData]


def read_produce(frame: bytearray, at: int, version: int) -> ProduceRequest:
    """Read a request's body.

    Raises:
        MalformedError: it is none of this version.
    """
    if version >= FLEXIBLE_FROM:
        simple = _read_simple(frame, at)
        if simple is not None:
            return simple
    return _read_any(Reader(frame, at, flexible=version >= FLEXIBLE_FROM))


def _read_simple(frame: bytearray, at: int) -> ProduceRequest | None:
    """The request of nearly every client: one topic, one partition, no tags; None for others."""
    try:
        # Header tags, transactional id (1: an empty string; 0: null), acks, timeout, topics.
        if frame[at] or frame[at + 1]:
            return None
        acks, _ = _ACKS_TIMEOUT.unpack_from(frame, at + 2)
        name_length = frame[at + 9] - 1
        if frame[at + 8] != 2 or not 0 < name_length < 0x7F:
            return None
        at += 10
        name_end = at + name_length
        name = frame[at:name_end].decode()
        if frame[name_end] != 2:
            return None
        (index,) = INT32.unpack_from(frame, name_end + 1)
        at = name_end + 5
        length = shift = 0
        while (byte := frame[at]) >= 0x80:
            length |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        length |= byte << shift
        begin = at + 1
        end = begin + length - 1
    except (IndexError, struct.error, UnicodeDecodeError):
        return None
    # Tags of the partition, the topic and the request, and nothing behind them.
    if length < 1 or end + 3 != len(frame) or frame[end] or frame[end + 1] or frame[end + 2]:
        return None
    part = PartitionData(name, index, memoryview(frame)[begin:end])
    return ProduceRequest(None, acks, [(name, 1)], [part])


def _read_any(reader: Reader) -> ProduceRequest:
    reader.tags()
    transactional_id = reader.string()
    acks = reader.int16()
    reader.int32()  # timeout: an append is as fast as the disk
    topics: list[tuple[str, int]] = []
    parts: list[PartitionData] = []
    for _ in range(reader.array()):
        name = reader.string()
        if name is None:
            raise MalformedError("a topic without a name")
        count = reader.array()
        for _ in range(count):
            index = reader.int32()
            parts.append(PartitionData(name, index, reader.data() or memoryview(b"")))
            reader.tags()
        topics.append((name, count))
        reader.tags()
    reader.tags()
    reader.end()
    return ProduceRequest(transactional_id, acks, topics, parts)


class PartitionResult(NamedTuple):
    """What becomes of one partition's batch, in Kafka's words."""

    code: int
    offset: int = -1
    log_start: int = -1
    message: str | None = None


def write_produce(
    version: int,
    correlation_id: int,
    request: ProduceRequest,
    results: list[PartitionResult],
) -> bytes:
    """Write the answer to a request, with its header.

    Parameters:
        version: of the request.
        correlation_id: of the request.
        request: what was asked.
        results: one for each of the request's parts, in order.
    """
    flexible = version >= FLEXIBLE_FROM
    if flexible and len(results) == len(request.topics) == 1 and results[0].message is None:
        return _write_simple(version, correlation_id, request.parts[0], results[0])
    tags = b"\0" if flexible else b""
    out = [INT32.pack(correlation_id), tags, write_array(len(request.topics), flexible=flexible)]
    at = 0
    for name, count in request.topics:
        out.append(write_string(name, flexible=flexible))
        out.append(compact_length(count) if flexible else INT32.pack(count))
        for part, result in zip(
            request.parts[at : at + count], results[at : at + count], strict=True
        ):
            out.append(_write_partition(version, part.number, result))
        at += count
        out.append(tags)
    out.append(_END_FLEXIBLE if flexible else _END)
    return b"".join(out)


def _write_simple(
    version: int, correlation_id: int, part: PartitionData, result: PartitionResult
) -> bytes:
    """The answer to nearly every request: one topic, one partition, and nothing to explain."""
    head = _SIMPLE_HEAD.pack(correlation_id, 0, 2) + write_string(part.topic, flexible=True)
    return head + _SIMPLE_ONE + _write_partition(version, part.number, result) + _SIMPLE_END


def _write_partition(version: int, index: int, result: PartitionResult) -> bytes:
    code, offset, log_start, message = result
    if version < _LOG_START_FROM:
        return _PARTITION.pack(index, code, offset, _NO_TIME)
    part = _PARTITION_WITH_START.pack(index, code, offset, _NO_TIME, log_start)
    if version < _RECORD_ERRORS_FROM:
        return part
    flexible = version >= FLEXIBLE_FROM
    if message is None:
        return part + (_NO_ERRORS_FLEXIBLE if flexible else _NO_ERRORS)
    part += write_array(0, flexible=flexible) + write_string(message, flexible=flexible)
    return part + b"\0" if flexible else part
