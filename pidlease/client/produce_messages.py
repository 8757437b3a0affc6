"""Produce requests and their answers, version 8: the first with a text for each error.

By hand, because aiokafka reads answers up to version 7 only, and because this is done for each
request. Source: Kafka's ProduceRequest.json and ProduceResponse.json.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from typing import Final, NamedTuple, Self

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestHeader_v1, ResponseHeader_v0

from pidlease.kafka.api import API_PRODUCE

API_VERSION: Final = 8

_FRONT: Final = struct.Struct(">hhi")  # no transactional id, acks, timeout
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_PART: Final = struct.Struct(">ii")
_RESULT: Final = struct.Struct(">ihqqq")
#: Waits for all replicas.
_ACKS_ALL: Final = -1


class Part(NamedTuple):
    """A batch for a partition."""

    topic: str
    partition: int
    data: bytes | bytearray


class PartAnswer(NamedTuple):
    """What became of it.

    Attributes:
        offset: of its first record; -1: not told.
        message: what the server says about it; empty: nothing.
    """

    topic: str
    partition: int
    code: int
    offset: int
    message: str


class ProduceAnswer:
    """The answer to a request; `decode` is what aiokafka's connection calls."""

    API_KEY: Final = API_PRODUCE
    API_VERSION: Final = API_VERSION

    def __init__(self, parts: list[PartAnswer]) -> None:
        self.parts: Final = parts

    @classmethod
    def decode(cls, stream: BytesIO) -> Self:
        """Read what stands behind the header.

        Raises:
            ValueError: it is no such answer; the connection is closed then.
        """
        try:
            return cls(list(_parts(stream.getbuffer(), stream.tell())))
        except (struct.error, IndexError) as error:
            raise ValueError(f"no answer to a Produce: {error}") from None


def _parts(data: memoryview, at: int) -> Iterator[PartAnswer]:
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
            yield PartAnswer(topic, partition, code, offset, message)


def _string(data: memoryview, at: int) -> tuple[str, int]:
    (length,) = _INT16.unpack_from(data, at)
    at += 2
    end = at + max(length, 0)
    if end > len(data):
        raise IndexError("a text goes beyond the end")
    return str(data[at:end], "utf-8", "replace"), end


class ProduceRequest:
    """What aiokafka's connection asks of a request, and no more.

    Parameters:
        parts: at most one for each partition.
        timeout_ms: how long the server may take.
    """

    API_KEY: Final = API_PRODUCE
    API_VERSION: Final = API_VERSION
    RESPONSE_TYPE: Final = ProduceAnswer

    def __init__(self, parts: Sequence[Part], timeout_ms: int) -> None:
        self._parts: Final = parts
        self._timeout_ms: Final = timeout_ms

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Self:
        """See aiokafka's Request.

        Raises:
            IncompatibleBrokerVersion: the server does not take this version.
        """
        low, high = versions.get(API_PRODUCE, (0, -1))
        if not low <= API_VERSION <= high:
            raise IncompatibleBrokerVersion(f"the server takes no Produce {API_VERSION}")
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> RequestHeader_v1:
        """See aiokafka's RequestStruct."""
        return RequestHeader_v1(self, correlation_id=correlation_id, client_id=client_id)

    def parse_response_header(self, stream: BytesIO) -> ResponseHeader_v0:
        """See aiokafka's RequestStruct."""
        return ResponseHeader_v0.decode(stream)

    def encode(self) -> bytes:
        """The request behind its header."""
        topics: dict[str, list[Part]] = {}
        for part in self._parts:
            topics.setdefault(part.topic, []).append(part)
        front = _FRONT.pack(-1, _ACKS_ALL, self._timeout_ms)
        return b"".join((front, _INT32.pack(len(topics)), *_encoded(topics.items())))

    def __repr__(self) -> str:
        return f"Produce of {len(self._parts)} partitions"


def _encoded(topics: Iterable[tuple[str, list[Part]]]) -> Iterator[bytes | bytearray]:
    for topic, parts in topics:
        name = topic.encode()
        yield _INT16.pack(len(name)) + name + _INT32.pack(len(parts))
        for part in parts:
            yield _PART.pack(part.partition, len(part.data))
            yield part.data
