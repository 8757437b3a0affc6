"""OffsetCommit and OffsetFetch on the wire, encoded by hand because members send them often.

Source: OffsetCommit{Request,Response}.json of Kafka 4.1, versions 2 to 9, and OffsetFetch..., 1 to
9. The tests compare every version with kio, which takes several times as long.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from pidlease.kafka.codec.primitives import (
    INT16,
    INT32,
    INT64,
    MalformedError,
    Reader,
    RequestHeader,
    write_array,
    write_string,
)
from pidlease.storage.offsets.journal_records import CommittedOffset

_COMMIT_FLEXIBLE_FROM: Final = 8
_FETCH_FLEXIBLE_FROM: Final = 6
#: From these versions on, OffsetFetch requests several groups, and has an error for each group.
FETCH_MANY_FROM: Final = 8
FETCH_ERROR_FROM: Final = 2
_OFFSET: Final = struct.Struct(">iq")
_OFFSET_EPOCH: Final = struct.Struct(">iqi")
_CODE: Final = struct.Struct(">ih")
_NO_TIME: Final = INT32.pack(0)


class CommitPartition(NamedTuple):
    """A partition of an OffsetCommit."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommitRequest(NamedTuple):
    """An OffsetCommit; `retention_ms` is -1 if the request has none."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    retention_ms: int
    topics: list[tuple[str, list[CommitPartition]]]


class FetchGroup(NamedTuple):
    """A group of an OffsetFetch; `topics` is None for all its topics."""

    group_id: str
    topics: list[tuple[str, Sequence[int]]] | None


#: A topic's partitions with their committed offsets, if any.
FetchedTopic = tuple[str, Iterable[tuple[int, CommittedOffset | None]]]
#: A topic's partitions with their error codes.
CodedTopic = tuple[str, Sequence[tuple[int, ErrorCode]]]


# ---------------------------------------------------------------------- requests


def read_commit(header: RequestHeader, frame: bytearray) -> CommitRequest:
    """Read an OffsetCommit.

    Raises:
        MalformedError: the bytes are not a request of this version.
    """
    version = header.version
    reader = _reader(header, frame, version >= _COMMIT_FLEXIBLE_FROM)
    group_id = _text(reader)
    generation = reader.int32()
    member_id = _text(reader)
    instance_id = reader.string() if version >= 7 else None
    retention_ms = INT64.unpack(reader.take(8))[0] if version <= 4 else -1
    topics = []
    for _ in range(_array(reader)):
        name = _text(reader)
        partitions = [_commit_partition(reader, version) for _ in range(_array(reader))]
        reader.tags()
        topics.append((name, partitions))
    reader.tags()
    reader.end()
    return CommitRequest(group_id, generation, member_id, instance_id, retention_ms, topics)


def _commit_partition(reader: Reader, version: int) -> CommitPartition:
    if version >= 6:
        partition, offset, leader_epoch = _OFFSET_EPOCH.unpack(reader.take(_OFFSET_EPOCH.size))
    else:
        partition, offset = _OFFSET.unpack(reader.take(_OFFSET.size))
        leader_epoch = -1
    metadata = reader.string() or ""
    reader.tags()
    return CommitPartition(partition, offset, leader_epoch, metadata)


def read_fetch(header: RequestHeader, frame: bytearray) -> list[FetchGroup]:
    """Read an OffsetFetch; before version 8 it has one group.

    Raises:
        MalformedError: the bytes are not a request of this version.
    """
    version = header.version
    reader = _reader(header, frame, version >= _FETCH_FLEXIBLE_FROM)
    if version >= FETCH_MANY_FROM:
        groups = [_fetch_group(reader, version) for _ in range(_array(reader))]
    else:
        groups = [FetchGroup(_text(reader), _fetch_topics(reader, version))]
    if version >= 7:
        # Whether to wait until offsets are stable (of transactions): that is always done.
        reader.take(1)
    reader.tags()
    reader.end()
    return groups


def _fetch_group(reader: Reader, version: int) -> FetchGroup:
    group_id = _text(reader)
    if version >= 9:
        # Member and epoch of the new group protocol (KIP-848).
        reader.string()
        reader.int32()
    group = FetchGroup(group_id, _fetch_topics(reader, version))
    reader.tags()
    return group


def _fetch_topics(reader: Reader, version: int) -> list[tuple[str, Sequence[int]]] | None:
    count = reader.nullable_array()
    if count < 0:
        if version < FETCH_ERROR_FROM:
            raise MalformedError("a null array where there must be one")
        return None
    topics: list[tuple[str, Sequence[int]]] = []
    for _ in range(count):
        name = _text(reader)
        size = _array(reader)
        topics.append((name, struct.unpack(f">{size}i", reader.take(4 * size))))
        reader.tags()
    return topics


def _reader(header: RequestHeader, frame: bytearray, flexible: bool) -> Reader:  # noqa: FBT001
    reader = Reader(frame, header.body, flexible=flexible)
    reader.tags()
    return reader


def _text(reader: Reader) -> str:
    text = reader.string()
    if text is None:
        raise MalformedError("a null string where there must be one")
    return text


def _array(reader: Reader) -> int:
    count = reader.nullable_array()
    if count < 0:
        raise MalformedError("a null array where there must be one")
    return count


# ---------------------------------------------------------------------- responses


def write_commit(header: RequestHeader, topics: Sequence[CodedTopic]) -> bytes:
    """Encode the response to an OffsetCommit."""
    flexible = header.version >= _COMMIT_FLEXIBLE_FROM
    tags = b"\0" if flexible else b""
    parts = [INT32.pack(header.correlation_id), tags]
    if header.version >= 3:
        parts.append(_NO_TIME)
    parts.append(write_array(len(topics), flexible=flexible))
    for name, rows in topics:
        parts += (write_string(name, flexible=flexible), write_array(len(rows), flexible=flexible))
        parts += [_CODE.pack(partition, code) + tags for partition, code in rows]
        parts.append(tags)
    parts.append(tags)
    return b"".join(parts)


def write_tags(version: int) -> bytes:
    """Encode the end of a response to OffsetFetch, and of a topic in it."""
    return b"\0" if version >= _FETCH_FLEXIBLE_FROM else b""


def write_fetch_head(header: RequestHeader, groups: int) -> bytes:
    """Encode what precedes the first of so many groups."""
    parts = [INT32.pack(header.correlation_id), write_tags(header.version)]
    if header.version >= 3:
        parts.append(_NO_TIME)
    if header.version >= FETCH_MANY_FROM:
        parts.append(write_array(groups, flexible=True))
    return b"".join(parts)


def write_group_head(version: int, group_id: str, topics: int) -> bytes:
    """Encode what precedes the first of a group's topics."""
    flexible = version >= _FETCH_FLEXIBLE_FROM
    name = write_string(group_id, flexible=True) if version >= FETCH_MANY_FROM else b""
    return name + write_array(topics, flexible=flexible)


def write_group_tail(version: int, error: ErrorCode) -> bytes:
    """Encode what follows a group's last topic."""
    code = INT16.pack(error) if version >= FETCH_ERROR_FROM else b""
    return code + b"\0" if version >= FETCH_MANY_FROM else code


def write_topic_head(version: int, name: str, rows: int) -> bytes:
    """Encode what precedes the first of a topic's partitions."""
    flexible = version >= _FETCH_FLEXIBLE_FROM
    return write_string(name, flexible=flexible) + write_array(rows, flexible=flexible)


def write_rows(
    version: int, found: Iterable[tuple[int, CommittedOffset | None]], error: ErrorCode
) -> bytes:
    """Encode partitions of a topic, with their committed offsets."""
    flexible = version >= _FETCH_FLEXIBLE_FROM
    # Before version 2 each partition has the error of the group.
    code = INT16.pack(error if version < FETCH_ERROR_FROM else 0)
    tail = code + b"\0" if flexible else code
    nothing = write_string("", flexible=flexible)
    rows = []
    for partition, committed in found:
        offset, epoch, metadata = -1, -1, nothing
        if committed is not None:
            offset, epoch = committed.offset, committed.leader_epoch
            if committed.metadata:
                metadata = write_string(committed.metadata, flexible=flexible)
        if version >= 5:
            rows.append(_OFFSET_EPOCH.pack(partition, offset, epoch) + metadata + tail)
        else:
            rows.append(_OFFSET.pack(partition, offset) + metadata + tail)
    return b"".join(rows)
