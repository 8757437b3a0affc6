"""Encodes and decodes Produce by hand, for clients and for Kafka, because it is the hot path.

Source: ProduceRequest.json and ProduceResponse.json of Kafka 4.1. Clients send versions 3 to 12;
pidlease sends versions 3 to 8 to Kafka (8 is the last one without compact lengths, and the first
one with the reason for a refused batch). The tests compare every version with kio. Lengths are
read in place, without an object for each: at some ten thousand requests a second that matters.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from pidlease.core.buffer import Buffer
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_PRODUCE, CLIENT_ID
from pidlease.kafka.codec.primitives import (
    INT16,
    INT32,
    MalformedError,
    Reader,
    compact_length,
    write_array,
    write_string,
)
from pidlease.kafka.errors import UpstreamNonsenseError

FLEXIBLE_FROM: Final = 9
_RECORD_ERRORS_FROM: Final = 8
_LOG_START_FROM: Final = 5
#: Partition, error, base offset, time of the append.
_RESULT: Final = struct.Struct(">ihqq")
#: Partition, error, base offset, time of the append, start of the log.
_RESULT_LOG_START: Final = struct.Struct(">ihqqq")
#: The time of an append for which the log has set no time.
NO_TIME: Final = -1
_NO_STRING: Final = -1

# From clients.
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
#: In flexible versions, for an appended batch: no record errors, no message, no tags.
_NO_ERRORS_FLEXIBLE: Final = b"\x01\x00\x00"
#: The longest message of an error, in characters.
_MESSAGE_MAX: Final = 1000
#: In version 8, for an appended batch: no record errors, no message.
_NO_ERRORS: Final = b"\0\0\0\0\xff\xff"
#: The beginning of a response with one topic and one partition: correlation id, tags, one topic.
_SIMPLE_HEAD: Final = struct.Struct(">ibb")
#: The throttle time.
_END: Final = b"\0\0\0\0"
#: The throttle time, and the tags after it.
_END_FLEXIBLE: Final = b"\0\0\0\0\0"
#: Before the only partition, their number; after it, the topic's tags and the end.
_SIMPLE_ONE: Final = b"\x02"
_SIMPLE_END: Final = b"\0" + _END_FLEXIBLE

#: The most bits of a length: without a bound, reading a megabyte of them would take minutes.
_LENGTH_BITS: Final = 35
#: The position of a request's correlation id.
_CORRELATION_AT: Final = 4
_CORRELATION_BYTES: Final = 4
_CORRELATION_END: Final = _CORRELATION_AT + _CORRELATION_BYTES
#: The bytes after a flexible request's batch: no tags of the partition, the topic, the request.
_TAGS_AFTER: Final = 3
#: Base offset, time of the append, start of the log.
_OFFSETS: Final = struct.Struct(">qqq")
#: A placeholder for an offset in a template: no topic name can contain its bytes.
_MARK: Final = 0x0102030405060708

# To Kafka.
#: API, version, correlation id.
_HEADER: Final = struct.Struct(">hhi")
_CLIENT_ID: Final = CLIENT_ID.encode()
#: Acks, timeout, topics.
_SETTINGS: Final = struct.Struct(">hii")
_ALL: Final = -1
#: The number of a topic's partitions and the partition, or the partition and its batch's size.
_PARTITION: Final = struct.Struct(">ii")
#: Length, header and settings of a request with one batch, outside of transactions.
_SINGLE: Final = struct.Struct(f">ihhih{len(CLIENT_ID)}shhii")
#: The bytes of such a request but for the names and the batch: without its own length, with the
#: length of the batch.
_SINGLE_BYTES: Final = _SINGLE.size
#: The response to it, after the partition: error, base offset, time of the append, start of the
#: log, no record errors, no message; the throttle time.
_SINGLE_RESULT: Final = struct.Struct(">hqqqihi")
_SINGLE_VERSION: Final = 8
_ANOTHER_RESPONSE: Final = (-1, -1)
_NAMES_KEPT: Final = 10_000


class RecordError(NamedTuple):
    """Why a record caused its batch to be refused (KIP-467).

    Attributes:
        record: its index in the batch, from 0 on.
        message: the reason; empty: there is none.
    """

    record: int
    message: str


class PartitionResponse(NamedTuple):
    """The outcome of one partition's batch.

    Attributes:
        code: Kafka's error code; 0: the batch is in the log.
        offset: the offset of its first record; -1: unknown.
        log_start: the first offset of the log; -1: unknown.
        message: the reason for an error; empty: there is none.
        append_time: when the log appended it, in ms since 1970; -1: the records keep their times.
        record_errors: the records that caused an error; the batch's other records are valid.
    """

    code: int
    offset: int = -1
    log_start: int = -1
    message: str = ""
    append_time: int = NO_TIME
    record_errors: tuple[RecordError, ...] = ()

    @property
    def reason(self) -> str:
        """The reason for an error, and those of its records."""
        words = [f"record {record}: {word}" for record, word in self.record_errors]
        return "; ".join([self.message, *words] if self.message else words)


# ---------------------------------------------------------------------- requests of clients


class PartitionData(NamedTuple):
    """A partition's part of a request; `data` is a view into the request, empty for null."""

    topic: str
    number: int
    data: memoryview


class ProduceRequest(NamedTuple):
    """A client's request.

    Attributes:
        transactional_id: None: the request is of no transaction.
        acks: how many replicas must have the batches; -1: all in sync.
        timeout_ms: how long the client waits for that.
        topics: pairs of a topic's name and the number of its `parts`.
        parts: the batches.
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, int]]
    parts: list[PartitionData]


def read_produce_request(frame: bytearray, at: int, version: int) -> ProduceRequest:
    """Read a request's body.

    Raises:
        MalformedError: the bytes are not a body of this version.
    """
    if version >= FLEXIBLE_FROM:
        simple = _read_simple(frame, at)
        if simple is not None:
            return simple
    return _read_any(Reader(frame, at, flexible=version >= FLEXIBLE_FROM))


def _read_simple(frame: bytearray, at: int) -> ProduceRequest | None:
    """Read the request of nearly every client: one topic, one partition, no tags; else None."""
    try:
        # Header tags, transactional id (1: an empty string; 0: null), acks, timeout, topics.
        if frame[at] or frame[at + 1]:
            return None
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, at + 2)
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
        while (byte := frame[at]) >= 0x80 and shift < _LENGTH_BITS:
            length |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        length |= byte << shift
        begin = at + 1
        end = begin + length - 1
    except (IndexError, struct.error, UnicodeDecodeError):
        return None
    # Tags of the partition, the topic and the request, and nothing after them.
    if length < 1 or end + 3 != len(frame) or frame[end] or frame[end + 1] or frame[end + 2]:
        return None
    part = PartitionData(name, index, memoryview(frame)[begin:end])
    return ProduceRequest(None, acks, timeout_ms, [(name, 1)], [part])


def _read_any(reader: Reader) -> ProduceRequest:
    reader.tags()
    transactional_id = reader.string()
    acks = reader.int16()
    timeout_ms = reader.int32()
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
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, parts)


class ProduceTemplate:
    """Holds the bytes that a client's requests for one partition have in common.

    If a request differs only in the correlation id and the batch, neither the request is decoded
    field by field, nor the response encoded so.
    """

    __slots__ = (
        "_after", "_flexible", "_front", "_head", "_length_at", "_rest", "_size", "_tail",
        "response_bytes",
    )  # fmt: skip

    def __init__(self, front: bytes, rest: bytes, head: bytes, tail: bytes, after: int) -> None:
        self._front = front
        self._rest = rest
        self._length_at = _CORRELATION_END + len(rest)
        self._after = after
        self._flexible = bool(after)
        self._head = head
        self._tail = tail
        #: The size of each response, without its length.
        self.response_bytes: Final = _CORRELATION_BYTES + len(head) + _OFFSETS.size + len(tail)
        self._size = INT32.pack(self.response_bytes)

    @classmethod
    def of(
        cls, frame: bytearray, version: int, request: ProduceRequest
    ) -> "ProduceTemplate | None":
        """Return the template of a request; None: requests like it must be decoded.

        Parameters:
            frame: the request's bytes, with its header.
            version: the request's API version.
            request: the request, decoded.
        """
        if (
            len(request.parts) != 1
            or not request.acks
            or request.transactional_id is not None
            or version < _LOG_START_FROM
        ):
            return None
        flexible = version >= FLEXIBLE_FROM
        after = _TAGS_AFTER if flexible else 0
        data = request.parts[0].data
        length = compact_length(len(data)) if flexible else INT32.pack(len(data))
        begin = len(frame) - after - len(data)
        length_at = begin - len(length)
        # If not, the request has tags, or a length with more bytes than necessary.
        if frame[length_at:begin] != length or any(frame[len(frame) - after :]):
            return None
        marked = PartitionResponse(0, _MARK, _MARK)
        response = write_produce_response(version, 0, request, [marked])
        head, _, tail = response[_CORRELATION_BYTES:].partition(
            _OFFSETS.pack(_MARK, NO_TIME, _MARK)
        )
        front, rest = bytes(frame[:_CORRELATION_AT]), bytes(frame[_CORRELATION_END:length_at])
        return cls(front, rest, head, tail, after)

    def batch(self, frame: bytearray) -> memoryview | None:
        """Return the batch in a request; None: other bytes of the request differ, too."""
        at = self._length_at
        if not (frame.startswith(self._front) and frame.startswith(self._rest, _CORRELATION_END)):
            return None
        end = len(frame) - self._after
        try:
            if self._flexible:
                length = shift = 0
                while (byte := frame[at]) >= 0x80 and shift < _LENGTH_BITS:
                    length |= (byte & 0x7F) << shift
                    shift += 7
                    at += 1
                length |= byte << shift
                at += 1
                if length != end - at + 1 or frame[end] or frame[end + 1] or frame[end + 2]:
                    return None
            else:
                (length,) = INT32.unpack_from(frame, at)
                at += 4
                if length != end - at:
                    return None
        except (IndexError, struct.error):
            return None
        return memoryview(frame)[at:end]

    def response(
        self, correlation_id: int, offset: int, log_start: int, append_time: int = NO_TIME
    ) -> bytes:
        """Encode the response to a batch that is in the log, with its length and header."""
        offsets = _OFFSETS.pack(offset, append_time, log_start)
        return b"".join((self._size, INT32.pack(correlation_id), self._head, offsets, self._tail))


# ---------------------------------------------------------------------- responses to clients


def write_produce_response(
    version: int,
    correlation_id: int,
    request: ProduceRequest,
    results: list[PartitionResponse],
) -> bytes:
    """Encode the response to a client's request, with its header.

    Parameters:
        version: the request's API version.
        correlation_id: the request's correlation id.
        request: the request.
        results: one result for each of the request's parts, in order.
    """
    flexible = version >= FLEXIBLE_FROM
    if flexible and len(results) == len(request.topics) == 1 and not results[0].message:
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
    version: int, correlation_id: int, part: PartitionData, result: PartitionResponse
) -> bytes:
    """Encode the most frequent response: one topic, one partition, no message."""
    head = _SIMPLE_HEAD.pack(correlation_id, 0, 2) + write_string(part.topic, flexible=True)
    return head + _SIMPLE_ONE + _write_partition(version, part.number, result) + _SIMPLE_END


def _write_partition(version: int, index: int, result: PartitionResponse) -> bytes:
    code, offset, log_start, message, append_time, errors = result
    if version < _LOG_START_FROM:
        return _RESULT.pack(index, code, offset, append_time)
    part = _RESULT_LOG_START.pack(index, code, offset, append_time, log_start)
    if version < _RECORD_ERRORS_FROM:
        return part
    flexible = version >= FLEXIBLE_FROM
    if not message and not errors:
        return part + (_NO_ERRORS_FLEXIBLE if flexible else _NO_ERRORS)
    out = [part, write_array(len(errors), flexible=flexible)]
    end = b"\0" if flexible else b""
    for each in errors:
        out += (INT32.pack(each.record), _write_message(each.message, flexible=flexible), end)
    out += (_write_message(message, flexible=flexible), end)
    return b"".join(out)


def _write_message(message: str, *, flexible: bool) -> bytes:
    # A message may repeat a name from the request, as long as Kafka's strings can be.
    return write_string(message[:_MESSAGE_MAX] or None, flexible=flexible)


# ---------------------------------------------------------------------- requests to Kafka


class ProduceBatch(NamedTuple):
    """A batch, its partition, and its transactional id; None: it is not transactional."""

    place: TopicPartition
    data: Buffer
    transactional_id: str | None = None


def write_produce_request(
    version: int,
    correlation_id: int,
    timeout_ms: int,
    batches: Sequence[ProduceBatch],
    client_id: str = CLIENT_ID,
) -> list[Buffer]:
    """Encode a request to Kafka with acks=all, in parts, so that batches are not copied.

    Parameters:
        version: one of SENT_VERSIONS.
        correlation_id: Kafka returns it in the response.
        timeout_ms: how long the leader may wait for the other replicas.
        batches: the batches, each of another partition, all with the same transactional id.
        client_id: the name of this client in the brokers' logs.
    """
    topics: dict[str, list[ProduceBatch]] = {}
    for batch in batches:
        topics.setdefault(batch.place.topic, []).append(batch)
    heads = [
        _HEADER.pack(API_PRODUCE, version, correlation_id),
        write_string(client_id, flexible=False),
        write_string(batches[0].transactional_id, flexible=False),
        _SETTINGS.pack(_ALL, timeout_ms, len(topics)),
    ]
    parts: list[Buffer] = []
    for name, some in topics.items():
        heads += (write_string(name, flexible=False), INT32.pack(len(some)))
        for batch in some:
            heads.append(_PARTITION.pack(batch.place.partition, len(batch.data)))
            parts += (b"".join(heads), batch.data)
            heads.clear()
    return parts


def write_single_request(
    version: int, correlation_id: int, timeout_ms: int, place: TopicPartition, data: Buffer
) -> tuple[Buffer, Buffer]:
    """Encode a request with one batch outside of transactions, the most frequent one, fast.

    Parameters as in `write_produce_request`; the request's length comes first here.
    """
    names, size = _names(place), len(data)
    head = _SINGLE.pack(_SINGLE_BYTES + len(names) + size, API_PRODUCE, version, correlation_id,
                       len(CLIENT_ID), _CLIENT_ID, _NO_STRING, _ALL, timeout_ms, 1)  # fmt: skip
    return head + names + INT32.pack(size), data


@lru_cache(_NAMES_KEPT)
def _names(place: TopicPartition) -> bytes:
    """Encode a topic, the number of its partitions (one), and the partition number."""
    return write_string(place.topic, flexible=False) + _PARTITION.pack(1, place.partition)


# ---------------------------------------------------------------------- responses of Kafka


def read_single_response(
    version: int, frame: bytes | bytearray, place: TopicPartition
) -> tuple[int, int]:
    """Return the offset and the time in the response to one appended batch.

    Offset -1: it is another response; call `read_produce_response` instead.
    """
    names = _names(place)
    at = 8 + len(names)
    if (
        version != _SINGLE_VERSION
        or len(frame) != at + _SINGLE_RESULT.size
        or not frame.startswith(names, 8)
        or not frame.startswith(b"\0\0\0\1", 4)
    ):
        return _ANOTHER_RESPONSE
    code, offset, append_time, _, refused, message, _ = _SINGLE_RESULT.unpack_from(frame, at)
    if code or refused or message != _NO_STRING:
        return _ANOTHER_RESPONSE
    return offset, append_time


def read_produce_response(
    version: int, frame: bytes | bytearray
) -> dict[TopicPartition, PartitionResponse]:
    """Decode Kafka's response, from the correlation id on.

    Raises:
        UpstreamNonsenseError: the bytes are not a response of this version.
    """
    try:
        return _read_response(version, frame)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise UpstreamNonsenseError(f"an invalid response to Produce: {error}") from error


def _read_response(
    version: int, frame: bytes | bytearray
) -> dict[TopicPartition, PartitionResponse]:
    has_start = version >= _LOG_START_FROM
    layout = _RESULT_LOG_START if has_start else _RESULT
    rows: dict[TopicPartition, PartitionResponse] = {}
    (topics,) = INT32.unpack_from(frame, 4)
    at = 8
    for _ in range(topics):
        name, at = _read_string(frame, at)
        (partitions,) = INT32.unpack_from(frame, at)
        at += 4
        for _ in range(partitions):
            number, code, offset, append_time, *starts = layout.unpack_from(frame, at)
            at += layout.size
            start = starts[0] if has_start else -1
            errors: tuple[RecordError, ...] = ()
            message = ""
            if version >= _RECORD_ERRORS_FROM:
                errors, at = _read_record_errors(frame, at)
                message, at = _read_string(frame, at)
            partition = TopicPartition(name, number)
            if partition in rows:
                raise IndexError(f"{partition} twice")
            rows[partition] = PartitionResponse(code, offset, start, message, append_time, errors)
    if at + 4 != len(frame):  # the throttle time
        raise IndexError(f"{len(frame) - at - 4} bytes too many")
    return rows


def _read_record_errors(frame: bytes | bytearray, at: int) -> tuple[tuple[RecordError, ...], int]:
    errors = []
    (count,) = INT32.unpack_from(frame, at)
    at += 4
    for _ in range(count):
        (index,) = INT32.unpack_from(frame, at)
        message, at = _read_string(frame, at + 4)
        errors.append(RecordError(index, message))
    return tuple(errors), at


def _read_string(frame: bytes | bytearray, at: int) -> tuple[str, int]:
    (size,) = INT16.unpack_from(frame, at)
    at += 2
    if size < 0:
        return "", at
    if at + size > len(frame):
        raise IndexError("a string that is longer than the response")
    return bytes(frame[at : at + size]).decode(), at + size
