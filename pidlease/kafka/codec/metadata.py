"""Metadata on the wire: requests read and answers written by hand, for clusters that are large.

Source: MetadataRequest.json / MetadataResponse.json of Kafka 4.1, versions 0 to 13. The tests hold
every version against kio, which takes 90 ms to write the answer for 10,000 partitions.
"""

import struct
from functools import cache
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from pidlease.kafka.codec.primitives import (
    INT16,
    INT32,
    MalformedError,
    Reader,
    write_array,
    write_string,
)

#: Topics of Kafka's own, by their names as there (org.apache.kafka.common.internals.Topic).
INTERNAL_TOPICS: Final = frozenset(
    ("__consumer_offsets", "__transaction_state", "__share_group_state")
)
#: The id of the one broker.
NODE_ID: Final = 1
FLEXIBLE_FROM: Final = 9
#: From this version on a topic may be asked for by its id alone.
BY_ID_FROM: Final = 12
NO_ID: Final = bytes(16)
_NO_OPERATIONS: Final = INT32.pack(-(2**31))
_NO_LEADER: Final = INT32.pack(-1)
#: The versions that write a topic, or a partition, in another way than the one before.
_TOPIC_LAYOUTS: Final = (10, 9, 8, 7, 5, 1, 0)
_PARTITION_LAYOUTS: Final = (9, 7, 5, 0)
#: The fewest rows that are made at once.
_ROWS_MIN: Final = 64


class RequestedTopic(NamedTuple):
    """A topic that is asked for; `topic_id` is all zero where it is asked for by name."""

    name: str | None
    topic_id: bytes


class MetadataRequest(NamedTuple):
    """A request; `topics` is None for all there are."""

    topics: list[RequestedTopic] | None
    create: bool


# ---------------------------------------------------------------------- requests


class MetadataReader:
    """Reads a request's body, some topics at a time: it may name very many.

    Parameters:
        frame: the request.
        at: where its body begins.
        version: of the request.
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
        #: How many topics are still to be read.
        self.left = max(count, 0)

    def read_topics(self, count: int) -> None:
        """Read so many more of the topics, if there are as many."""
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
            MalformedError: it is no request of this version.
        """
        reader, version = self._reader, self._version
        create = version < 4 or reader.take(1) != b"\0"
        if version >= 8:
            # Whether to return what the client may do: nothing is forbidden here.
            reader.take(2 if version <= 10 else 1)
        reader.tags()
        if self._topics is not None or version < FLEXIBLE_FROM:
            # librdkafka asks for all topics with three bytes too many, from version 9 on: it writes
            # the null array as four bytes (librdkafka #5049). Kafka ignores what follows.
            reader.end()
        return MetadataRequest(self._topics, create)


# ---------------------------------------------------------------------- answers


@cache
def topic_layout(version: int) -> int:
    """The lowest version that writes a topic in the same way as this one."""
    return next(each for each in _TOPIC_LAYOUTS if each <= version)


def write_topic(layout: int, name: str, topic_id: str, rows: bytes, partitions: int) -> bytes:
    """A topic, with its partitions.

    Parameters:
        layout: see `topic_layout`.
        name: the topic's.
        topic_id: as hex.
        rows: its partitions, see `PartitionRows`.
        partitions: how many.
    """
    head = _topic_head(layout, 0, name, bytes.fromhex(topic_id))
    array = write_array(partitions, flexible=layout >= FLEXIBLE_FROM)
    return b"".join((head, array, rows, _topic_tail(layout)))


def write_no_topic(layout: int, asked: RequestedTopic, code: int) -> bytes:
    """Encode a topic with an error, and without partitions.

    Parameters:
        layout: see `topic_layout`.
        asked: what was asked for; a null name goes only into versions that have one.
        code: why.
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


class PartitionRows:
    """The partitions of a topic, encoded: they differ from one topic to the next in number only.

    Kept once for each way to write them, as many as the largest topic asked for.

    Parameters:
        leader_epoch: of all of them; -1: not said.
        led: whether they have a leader; without one they are there, and clients wait for it.
    """

    def __init__(self, leader_epoch: int = 0, *, led: bool = True) -> None:
        self._leader_epoch = leader_epoch
        self._led = led
        self._rows: dict[int, bytes] = {}

    def of(self, layout: int, count: int) -> bytes:
        """The rows of partitions 0 to `count` - 1.

        Parameters:
            layout: of the topic.
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
def _row(layout: int, leader_epoch: int, *, led: bool) -> tuple[bytes, bytes]:
    """The bytes before and after the number in a partition's row."""
    flexible = layout >= FLEXIBLE_FROM
    node = INT32.pack(NODE_ID)
    only = write_array(1, flexible=flexible) + node
    epoch = INT32.pack(leader_epoch) if layout >= 7 else b""
    # The leader, replicas, those in sync.
    tail = [node if led else _NO_LEADER, epoch, only, only]
    if layout >= 5:
        tail.append(write_array(0, flexible=flexible))  # none is offline
    if flexible:
        tail.append(b"\0")
    code = 0 if led else ErrorCode.leader_not_available.value
    return INT16.pack(code), b"".join(tail)


def _make_rows(head: bytes, tail: bytes, count: int) -> bytes:
    """All rows at once: the same one again and again, and then the numbers, byte by byte."""
    rows = bytearray((head + bytes(INT32.size) + tail) * count)
    size = len(rows) // count
    numbers = struct.pack(f">{count}i", *range(count))
    for place in range(INT32.size):
        rows[len(head) + place :: size] = numbers[place :: INT32.size]
    return bytes(rows)


def write_head(
    version: int, correlation_id: int, *, cluster_id: str, host: str, port: int
) -> bytes:
    """Everything before the topics' array, from the response header on.

    Parameters:
        version: of the request.
        correlation_id: of the request.
        cluster_id: the id of the cluster.
        host: the host that clients connect to.
        port: its port.
    """
    flexible = version >= FLEXIBLE_FROM
    tags = b"\0" if flexible else b""
    parts = [INT32.pack(correlation_id), tags]
    if version >= 3:
        parts.append(INT32.pack(0))  # throttle time
    parts += [
        write_array(1, flexible=flexible),
        INT32.pack(NODE_ID),
        write_string(host, flexible=flexible),
        INT32.pack(port),
        write_string(None, flexible=flexible) if version >= 1 else b"",  # rack
        tags,
    ]
    if version >= 2:
        parts.append(write_string(cluster_id, flexible=flexible))
    if version >= 1:
        parts.append(INT32.pack(NODE_ID))  # the controller
    return b"".join(parts)


@cache
def write_tail(version: int) -> bytes:
    """Everything after the topics' array."""
    operations = _NO_OPERATIONS if 8 <= version <= 10 else b""
    code = INT16.pack(0) if version >= 13 else b""  # KIP-1102: no need to bootstrap again
    return operations + code + (b"\0" if version >= FLEXIBLE_FROM else b"")
