"""Produce requests and responses, version 8, and what a response means for its batch.

Version 8 is the first with a text for each error. The codec is written by hand: aiokafka reads
responses up to version 7 only, and it runs for each request. Source: Kafka's ProduceRequestV8.json
and ProduceResponse.json.
"""

import enum
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from typing import Final, NamedTuple, Self

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestHeader_v1, ResponseHeader_v0

from pidlease.client.pending_batch import SequenceRange
from pidlease.kafka.api import API_PRODUCE
from pidlease.kafka.error_codes import (
    DUPLICATE_SEQUENCE_NUMBER,
    INVALID_PRODUCER_EPOCH,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    RESEND,
    STALE_LEADER,
    UNKNOWN_PRODUCER_ID,
)

API_VERSION: Final = 8

_FRONT: Final = struct.Struct(">hhi")  # no transactional id, acks, timeout
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_PART: Final = struct.Struct(">ii")
_RESULT: Final = struct.Struct(">ihqqq")
#: Waits for all replicas.
_ACKS_ALL: Final = -1

_EXPECTED: Final = re.compile(r"expected sequence (\d+)")
#: The server's text for a duplicate that it returns with its offset.
_DUPLICATE_TEXT: Final = "duplicate"


class PartitionBatch(NamedTuple):
    """An encoded batch for a partition."""

    topic: str
    partition: int
    data: bytes | bytearray


class BatchResult(NamedTuple):
    """The result of a partition's batch in a Produce response.

    Attributes:
        offset: of the batch's first record; -1: not returned.
        message: the server's text; may be empty.
    """

    topic: str
    partition: int
    code: int
    offset: int
    message: str


class ProduceResponseV8:
    """A Produce response; aiokafka's connection calls `decode`."""

    API_KEY: Final = API_PRODUCE
    API_VERSION: Final = API_VERSION

    def __init__(self, parts: list[BatchResult]) -> None:
        self.parts: Final = parts

    @classmethod
    def decode(cls, stream: BytesIO) -> Self:
        """Decode a response from its header's end on.

        Raises:
            ValueError: it is no Produce response; aiokafka then closes the connection.
        """
        try:
            return cls(list(_parts(stream.getbuffer(), stream.tell())))
        except (struct.error, IndexError) as error:
            raise ValueError(f"not a Produce response: {error}") from None


def _parts(data: memoryview, at: int) -> Iterator[BatchResult]:
    (topics,) = _INT32.unpack_from(data, at)
    at += 4
    for _ in range(topics):
        topic, at = _string(data, at)
        (count,) = _INT32.unpack_from(data, at)
        at += 4
        for _ in range(count):
            partition, code, offset, _, _ = _RESULT.unpack_from(data, at)
            (errors,) = _INT32.unpack_from(data, at + _RESULT.size)
            at += _RESULT.size + 4
            for _ in range(errors):
                _, at = _string(data, at + 4)
            message, at = _string(data, at)
            yield BatchResult(topic, partition, code, offset, message)


def _string(data: memoryview, at: int) -> tuple[str, int]:
    (length,) = _INT16.unpack_from(data, at)
    at += 2
    end = at + max(length, 0)
    if end > len(data):
        raise IndexError("a string exceeds the response")
    return str(data[at:end], "utf-8", "replace"), end


class ProduceRequestV8:
    """A Produce request, with the methods that aiokafka's connection calls.

    Parameters:
        parts: at most one for each partition.
        timeout_ms: how long the server may take.
    """

    API_KEY: Final = API_PRODUCE
    API_VERSION: Final = API_VERSION
    RESPONSE_TYPE: Final = ProduceResponseV8

    def __init__(self, parts: Sequence[PartitionBatch], timeout_ms: int) -> None:
        self._parts: Final = parts
        self._timeout_ms: Final = timeout_ms

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Self:
        """Return the request in a version that the server supports; aiokafka calls this.

        Raises:
            IncompatibleBrokerVersion: the server does not support version 8.
        """
        low, high = versions.get(API_PRODUCE, (0, -1))
        if not low <= API_VERSION <= high:
            raise IncompatibleBrokerVersion(f"the server does not support Produce {API_VERSION}")
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> RequestHeader_v1:
        """Return the request's header; aiokafka calls this."""
        return RequestHeader_v1(self, correlation_id=correlation_id, client_id=client_id)

    def parse_response_header(self, stream: BytesIO) -> ResponseHeader_v0:
        """Decode the response's header; aiokafka calls this."""
        return ResponseHeader_v0.decode(stream)

    def encode(self) -> bytes:
        """Encode the request, without its header."""
        topics: dict[str, list[PartitionBatch]] = {}
        for part in self._parts:
            topics.setdefault(part.topic, []).append(part)
        front = _FRONT.pack(-1, _ACKS_ALL, self._timeout_ms)
        return b"".join((front, _INT32.pack(len(topics)), *_encoded(topics.items())))

    def __repr__(self) -> str:
        return f"Produce of {len(self._parts)} partitions"


def _encoded(topics: Iterable[tuple[str, list[PartitionBatch]]]) -> Iterator[bytes | bytearray]:
    for topic, parts in topics:
        name = topic.encode()
        yield _INT16.pack(len(name)) + name + _INT32.pack(len(parts))
        for part in parts:
            yield _PART.pack(part.partition, len(part.data))
            yield part.data


@enum.unique
class ResponseAction(enum.Enum):
    """What the producer does after a response."""

    STORED = "stored"
    DUPLICATE = "stored by an earlier request"
    RETRY = "send it again"
    CUT = "a part of it is stored: cut that off, and send the rest"
    RETRY_IN_ORDER = "a preceding batch is missing: send this one again after it"
    FENCED = "another producer continues"
    LEASE_ENDED = "the lease has ended"
    REFUSED = "it can never be stored"


class ResponseMeaning(NamedTuple):
    """What a response means.

    Attributes:
        expected: with CUT: the first sequence number that is not stored.
        moved: another server may lead the partition.
    """

    action: ResponseAction
    expected: int = -1
    moved: bool = False


_STORED: Final = ResponseMeaning(ResponseAction.STORED)


def meaning_of(result: BatchResult, span: SequenceRange, *, after_failed: bool) -> ResponseMeaning:
    """Classify the result of a batch.

    Parameters:
        span: the batch's sequence numbers.
        after_failed: whether a preceding batch has failed, and was not sent again since.
    """
    code = result.code
    if code == 0:
        duplicate = result.message == _DUPLICATE_TEXT
        return ResponseMeaning(ResponseAction.DUPLICATE) if duplicate else _STORED
    if code == DUPLICATE_SEQUENCE_NUMBER:
        return ResponseMeaning(ResponseAction.DUPLICATE)
    if code in RESEND:
        return ResponseMeaning(ResponseAction.RETRY, moved=code in STALE_LEADER)
    if code == OUT_OF_ORDER_SEQUENCE_NUMBER:
        return _out_of_order(result, span, after_failed=after_failed)
    if code == INVALID_PRODUCER_EPOCH:
        return ResponseMeaning(ResponseAction.FENCED)
    ended = code == UNKNOWN_PRODUCER_ID
    return ResponseMeaning(ResponseAction.LEASE_ENDED if ended else ResponseAction.REFUSED)


def _out_of_order(
    result: BatchResult, span: SequenceRange, *, after_failed: bool
) -> ResponseMeaning:
    if after_failed:
        return ResponseMeaning(ResponseAction.RETRY_IN_ORDER)
    found = _EXPECTED.search(result.message)
    expected = int(found[1]) if found is not None else -1
    if span.first < expected <= span.last:
        return ResponseMeaning(ResponseAction.CUT, expected)
    return ResponseMeaning(ResponseAction.REFUSED)
