"""Metadata on the wire, encoded by hand because clusters may be large.

Source: MetadataRequest.json / MetadataResponse.json of Kafka 4.1, versions 0 to 13. The tests
compare every version with kio, which takes 90 ms to encode the response for 10,000 partitions.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from pidlease.core.topic_partition import INTERNAL_TOPICS
from pidlease.kafka.codec.primitives import (
    INT16,
    INT32,
    MalformedError,
    Reader,
    write_array,
    write_string,
)

#: The id of the only broker.
NODE_ID: Final = 1
FLEXIBLE_FROM: Final = 9
#: From this version on a topic may be requested by its id alone.
BY_ID_FROM: Final = 12
NO_ID: Final = bytes(16)
_NO_OPERATIONS: Final = INT32.pack(-(2**31))
_NO_LEADER: Final = INT32.pack(-1)
#: Stands for a leader without the listener on which the request came.
NO_LISTENER: Final = -2
#: From this version on clients know the error of a leader without the listener.
_LISTENER_NOT_FOUND_FROM: Final = 6
#: Versions that changed the encoding of a topic, or of a partition, or an error.
_TOPIC_LAYOUTS: Final = (10, 9, 8, 7, 6, 5, 1, 0)
_PARTITION_LAYOUTS: Final = (9, 7, 5, 0)
#: The fewest rows encoded at once.
_ROWS_MIN: Final = 64


class RequestedTopic(NamedTuple):
    """A requested topic; `topic_id` is all zero if the request has a name."""

    name: str | None
    topic_id: bytes


class BrokerAddress(NamedTuple):
    """A broker, as clients see it."""

    node_id: int
    host: str
    port: int


class MetadataRequest(NamedTuple):
    """A request; `topics` is None for all topics."""

    topics: list[RequestedTopic] | None
    create: bool


# ---------------------------------------------------------------------- requests


class MetadataReader:
    """Reads a request's body, some topics at a time: there may be very many.

    Parameters:
        at: the position of its body.
    """

    def __init__(self, frame: bytearray, at: int, version: int) -> None:
        self._version = version
        self._reader = Reader(frame, at, flexible=version >= FLEXIBLE_FROM)
        self._reader.tags()
        count = self._reader.nullable_array()
        # Null means all topics; in version 0, which has no null, an empty array does.
        if count < 0 and version == 0:
            raise MalformedError("a null array where there must be one")
        self._topics: list[RequestedTopic] | None = (
            [] if count > 0 or (count == 0 and version) else None
        )
        #: How many topics are not read yet.
        self.left = max(count, 0)

    def read_topics(self, count: int) -> None:
        """Read up to so many more topics."""
        reader, by_id, topics = self._reader, self._version >= 10, self._topics
        if topics is None:
            return
        for _ in range(min(count, self.left)):
            topic_id = reader.take(16) if by_id else NO_ID
            name = reader.string()
            if name is None and not by_id:
                raise MalformedError("a null string where there must be one")
            reader.tags()
            topics.append(RequestedTopic(name, topic_id))
        self.left -= min(count, self.left)

    def end(self) -> MetadataRequest:
        """Read the rest after the topics.

        Raises:
            MalformedError: the bytes are not a request of this version.
        """
        reader, version = self._reader, self._version
        create = version < 4 or reader.take(1) != b"\0"
        if version >= 8:
            # Whether to return the client's permissions: everything is permitted here.
            reader.take(2 if version <= 10 else 1)
        reader.tags()
        if self._topics is not None or version < FLEXIBLE_FROM:
            # librdkafka's request for all topics has three bytes too many from version 9 on: it
            # writes the null array as four bytes (librdkafka #5049). Kafka ignores the rest.
            reader.end()
        return MetadataRequest(self._topics, create)


# ---------------------------------------------------------------------- responses


@cache
def topic_layout(version: int) -> int:
    """Return the lowest version that encodes a topic like this one."""
    return next(each for each in _TOPIC_LAYOUTS if each <= version)


def write_topic(layout: int, name: str, topic_id: str, rows: bytes, partitions: int) -> bytes:
    """Encode a topic with its partitions.

    Parameters:
        layout: from `topic_layout`.
        topic_id: as hex.
        rows: its partitions, encoded by `MetadataPartitions`.
    """
    head = _topic_head(layout, 0, name, bytes.fromhex(topic_id))
    array = write_array(partitions, flexible=layout >= FLEXIBLE_FROM)
    return b"".join((head, array, rows, _topic_tail(layout)))


def write_no_topic(layout: int, asked: RequestedTopic, code: int) -> bytes:
    """Encode a topic with an error, and without partitions.

    layout: from `topic_layout`.
    asked: the requested topic; a null name is only allowed in versions that have one.
    code: the error.
    """
    array = write_array(0, flexible=layout >= FLEXIBLE_FROM)
    return _topic_head(layout, code, asked.name, asked.topic_id) + array + _topic_tail(layout)


def _topic_head(layout: int, code: int, name: str | None, topic_id: bytes) -> bytes:
    flexible = layout >= FLEXIBLE_FROM
    return b"".join(
        (
            INT16.pack(code),
            write_string(name, flexible=flexible),
            topic_id if layout >= 10 else b"",
            (b"\1" if name in INTERNAL_TOPICS else b"\0") if layout >= 1 else b"",
        )
    )


@cache
def _topic_tail(layout: int) -> bytes:
    operations = _NO_OPERATIONS if layout >= 8 else b""
    return operations + (b"\0" if layout >= FLEXIBLE_FROM else b"")


class MetadataPartitions:
    """The encoded partitions of a topic. Those of different topics differ only in their number.

    They are kept once for each layout, as many as the largest topic needs.

    Parameters:
        leader_epoch: of all partitions; -1: unknown.
        led: whether they have a leader; if not, clients wait for one.
    """

    def __init__(self, leader_epoch: int = 0, *, led: bool = True) -> None:
        self._leader_epoch = leader_epoch
        self._led = led
        self._rows: dict[int, bytes] = {}

    def of(self, layout: int, count: int) -> bytes:
        """Return the encoded partitions 0 to `count` - 1.

        Parameters:
            layout: the topic's.
            count: how many partitions.
        """
        own = next(each for each in _PARTITION_LAYOUTS if each <= layout)
        head, tail = _row(own, self._leader_epoch, led=self._led)
        size = len(head) + INT32.size + len(tail)
        rows = self._rows.get(own, b"")
        if len(rows) < count * size:
            rows = _make_rows(head, tail, max(count, _ROWS_MIN))
            self._rows[own] = rows
        return rows[: count * size]


@cache
def _row(
    layout: int,
    leader_epoch: int,
    *,
    led: bool,
    node_id: int = NODE_ID,
    no_leader: ErrorCode = ErrorCode.leader_not_available,
) -> tuple[bytes, bytes]:
    """Return the bytes before and after the number in a partition's row.

    Parameters:
        no_leader: the error of a partition without a leader.
    """
    flexible = layout >= FLEXIBLE_FROM
    node = INT32.pack(node_id)
    only = (
        write_array(1, flexible=flexible) + node
        if node_id >= 0
        else write_array(0, flexible=flexible)
    )
    epoch = INT32.pack(leader_epoch) if layout >= 7 else b""
    # The leader, the replicas, and those in sync.
    tail = [node if led else _NO_LEADER, epoch, only, only]
    if layout >= 5:
        tail.append(write_array(0, flexible=flexible))  # none is offline
    if flexible:
        tail.append(b"\0")
    code = 0 if led else no_leader.value
    return INT16.pack(code), b"".join(tail)


def _make_rows(head: bytes, tail: bytes, count: int) -> bytes:
    """Make many rows: repeat one row, then set the numbers, byte by byte for all rows."""
    rows = bytearray((head + bytes(INT32.size) + tail) * count)
    size = len(rows) // count
    numbers = struct.pack(f">{count}i", *range(count))
    for byte in range(INT32.size):
        rows[len(head) + byte :: size] = numbers[byte :: INT32.size]
    return bytes(rows)


def write_led_partitions(layout: int, leaders: Sequence[int], leader_epoch: int) -> bytes:
    """Encode the partitions of a topic with several leaders.

    Parameters:
        layout: the topic's.
        leaders: the leader of each partition; -1: it has none; `NO_LISTENER`: clients of the
            listener cannot connect to it.
        leader_epoch: of all partitions; -1: unknown.
    """
    own = next(each for each in _PARTITION_LAYOUTS if each <= layout)
    # As in Kafka.
    not_found = ErrorCode.leader_not_available
    if layout >= _LISTENER_NOT_FOUND_FROM:
        not_found = ErrorCode.listener_not_found
    parts: list[bytes] = []
    for number, leader in enumerate(leaders):
        if leader == NO_LISTENER:
            head, tail = _row(own, leader_epoch, led=False, node_id=leader, no_leader=not_found)
        else:
            head, tail = _row(own, leader_epoch, led=leader >= 0, node_id=leader)
        parts += (head, INT32.pack(number), tail)
    return b"".join(parts)


def write_head(
    version: int,
    correlation_id: int,
    *,
    cluster_id: str,
    brokers: Sequence[BrokerAddress],
    controller: int,
) -> bytes:
    """Encode everything before the topics' array, from the response header on.

    Parameters:
        controller: the node id of the controller.
    """
    flexible = version >= FLEXIBLE_FROM
    tags = b"\0" if flexible else b""
    parts = [INT32.pack(correlation_id), tags]
    if version >= 3:
        parts.append(INT32.pack(0))  # throttle time
    parts.append(write_array(len(brokers), flexible=flexible))
    for node_id, host, port in brokers:
        parts += [
            INT32.pack(node_id),
            write_string(host, flexible=flexible),
            INT32.pack(port),
            write_string(None, flexible=flexible) if version >= 1 else b"",  # rack
            tags,
        ]
    if version >= 2:
        parts.append(write_string(cluster_id, flexible=flexible))
    if version >= 1:
        parts.append(INT32.pack(controller))
    return b"".join(parts)


@cache
def write_tail(version: int) -> bytes:
    """Encode everything after the topics' array."""
    operations = _NO_OPERATIONS if 8 <= version <= 10 else b""
    code = INT16.pack(0) if version >= 13 else b""  # KIP-1102: no need to bootstrap again
    return operations + code + (b"\0" if version >= FLEXIBLE_FROM else b"")
