"""Produce towards Kafka, by hand: its batches are most of what goes by.

Source: ProduceRequest.json and ProduceResponse.json of Kafka 4.1, versions 3 to 8 (the last one
without compact lengths, and the first one that says why a batch was refused).
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from pidlease.core.buffer import Buffer
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_PRODUCE, CLIENT_ID
from pidlease.kafka.errors import UpstreamNonsenseError

#: API, version, correlation id, client id.
_HEAD: Final = struct.Struct(f">hhih{len(CLIENT_ID)}s")
#: Acks, timeout, topics.
_SETTINGS: Final = struct.Struct(">hii")
_CLIENT_ID: Final = CLIENT_ID.encode()
_NO_STRING: Final = -1
_ALL: Final = -1
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
#: How many partitions follow a topic's name; the partition's number, and the size of its batch.
_PARTITION: Final = struct.Struct(">ii")
#: Both of them, for a batch that goes alone, in no transaction.
_ALONE: Final = struct.Struct(f">hhih{len(CLIENT_ID)}shhii")
#: What answers it, behind the partition's number: error, base offset, time of the append, start of
#: the log, no records that were refused, no message; the throttle time.
_ROW_ALONE: Final = struct.Struct(">hqqqihi")
_ALONE_VERSION: Final = 8
_PLACES_KEPT: Final = 10_000
#: Partition, error, base offset, time of the append.
_ROW_V3: Final = struct.Struct(">ihqq")
#: The same with the start of the log (version 5).
_ROW_V5: Final = struct.Struct(">ihqqq")


class Batch(NamedTuple):
    """A batch, where it goes, and in which transaction; None: in none."""

    place: TopicPartition
    data: Buffer
    transactional_id: str | None = None


class Row(NamedTuple):
    """What became of a batch.

    Attributes:
        code: Kafka's error code; 0: it is in the log.
        offset: of its first record; -1: none.
        message: why it was refused, where Kafka says so.
    """

    code: int
    offset: int
    message: str = ""


def write_produce(
    version: int, correlation_id: int, timeout_ms: int, batches: Sequence[Batch]
) -> list[Buffer]:
    """A request with acks=all, in parts: batches are not copied.

    Parameters:
        version: one of SENT_VERSIONS.
        correlation_id: comes back with the answer.
        timeout_ms: how long the leader waits for the other replicas.
        batches: of different partitions, and all of the same transactional id.
    """
    topics: dict[str, list[Batch]] = {}
    for batch in batches:
        topics.setdefault(batch.place.topic, []).append(batch)
    heads = [
        _HEAD.pack(API_PRODUCE, version, correlation_id, len(CLIENT_ID), _CLIENT_ID),
        _nullable(batches[0].transactional_id),
        _SETTINGS.pack(_ALL, timeout_ms, len(topics)),
    ]
    parts: list[Buffer] = []
    for name, some in topics.items():
        heads += (_nullable(name), _INT32.pack(len(some)))
        for batch in some:
            heads.append(_PARTITION.pack(batch.place.partition, len(batch.data)))
            parts += (b"".join(heads), batch.data)
            heads.clear()
    return parts


def write_alone(
    version: int, correlation_id: int, timeout_ms: int, batch: Batch
) -> tuple[Buffer, Buffer]:
    """What `write_produce` writes of one batch in no transaction, in less time: most are so."""
    data = batch.data
    head = _ALONE.pack(API_PRODUCE, version, correlation_id, len(CLIENT_ID), _CLIENT_ID,
                       _NO_STRING, _ALL, timeout_ms, 1)  # fmt: skip
    return head + _named(batch.place) + _INT32.pack(len(data)), data


@lru_cache(_PLACES_KEPT)
def _named(place: TopicPartition) -> bytes:
    """A topic of which one partition follows, and that one's number."""
    return _nullable(place.topic) + _PARTITION.pack(1, place.partition)


def read_alone(version: int, frame: bytes | bytearray, place: TopicPartition) -> Row | None:
    """What `read_produce` reads, of one batch that was taken; None: read it with that."""
    named = _named(place)
    at = 8 + len(named)
    if (
        version != _ALONE_VERSION
        or len(frame) != at + _ROW_ALONE.size
        or not frame.startswith(named, 8)
        or frame[4:8] != b"\0\0\0\1"
    ):
        return None
    code, offset, _, _, refused, message, _ = _ROW_ALONE.unpack_from(frame, at)
    return None if code or refused or message != _NO_STRING else Row(0, offset)


def _nullable(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(_NO_STRING)
    encoded = text.encode()
    return _INT16.pack(len(encoded)) + encoded


def read_produce(version: int, frame: bytes | bytearray) -> dict[TopicPartition, Row]:
    """The answer, from the correlation id on.

    Raises:
        UpstreamNonsenseError: it is none.
    """
    try:
        return _read(version, frame)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise UpstreamNonsenseError(f"an answer to Produce that is none: {error}") from error


def _read(version: int, frame: bytes | bytearray) -> dict[TopicPartition, Row]:
    layout = _ROW_V5 if version >= 5 else _ROW_V3
    rows: dict[TopicPartition, Row] = {}
    (topics,) = _INT32.unpack_from(frame, 4)
    at = 8
    for _ in range(topics):
        name, at = _string(frame, at)
        (partitions,) = _INT32.unpack_from(frame, at)
        at += 4
        for _ in range(partitions):
            number, code, offset = layout.unpack_from(frame, at)[:3]
            at += layout.size
            message = ""
            if version >= 8:
                message, at = _why(frame, at)
            place = TopicPartition(name, number)
            if place in rows:
                raise IndexError(f"{place} twice")
            rows[place] = Row(code, offset, message)
    if at + 4 != len(frame):  # the throttle time
        raise IndexError(f"{len(frame) - at - 4} bytes too many")
    return rows


def _why(frame: bytes | bytearray, at: int) -> tuple[str, int]:
    """The records that were refused, and why."""
    words = []
    (errors,) = _INT32.unpack_from(frame, at)
    at += 4
    for _ in range(errors):
        (index,) = _INT32.unpack_from(frame, at)
        word, at = _string(frame, at + 4)
        words.append(f"record {index}: {word}")
    message, at = _string(frame, at)
    return "; ".join([message, *words] if message else words), at


def _string(frame: bytes | bytearray, at: int) -> tuple[str, int]:
    (size,) = _INT16.unpack_from(frame, at)
    at += 2
    if size < 0:
        return "", at
    if at + size > len(frame):
        raise IndexError("a string that is longer than the answer")
    return bytes(frame[at : at + size]).decode(), at + size
