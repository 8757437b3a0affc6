"""Requests for offsets of partitions (ListOffsets, OffsetForLeaderEpoch)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_LIST_OFFSETS, API_OFFSET_FOR_LEADER_EPOCH
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.exchange import ask, request_for
from pidlease.kafka.codec.fetch import READ_UNCOMMITTED

#: Timestamps that stand for the first offset, and for the end of the log.
EARLIEST: Final = -2
LATEST: Final = -1
#: The replica id of a client.
_NO_REPLICA: Final = -1


class LeaderLog(NamedTuple):
    """A partition's log, as its leader reports it.

    Attributes:
        topic_id: the topic's id, as hex; a later topic of the same name has another.
        leader: the leader's broker id.
        epoch: its leader epoch.
        start: the first offset.
        end: the high watermark.
        reached: up to where it is as it was under a given leader epoch; -1: none was given.
    """

    topic_id: str
    leader: int
    epoch: int
    start: int
    end: int
    reached: int = -1


async def list_offsets(
    connection: BrokerConnection,
    places: Iterable[TopicPartition],
    timestamp: int,
    isolation: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, Any]:
    """Return a row for each partition, with its error code, offset and timestamp.

    Parameters:
        connection: to the partitions' leader.
        places: the partitions.
        timestamp: EARLIEST, LATEST, or ms since 1970: the first record from then on.
        isolation: READ_UNCOMMITTED: the end is the high watermark; READ_COMMITTED: the last stable
            offset.

    Raises:
        UpstreamError: there is no response.
    """
    request = request_for(connection, API_LIST_OFFSETS)
    topics: dict[str, list[Any]] = {}
    for place in places:
        row = request.part(
            "ListOffsetsPartition", partition_index=place.partition,
            current_leader_epoch=-1, timestamp=timestamp,
        )  # fmt: skip
        topics.setdefault(place.topic, []).append(row)
    requested = tuple(
        request.part("ListOffsetsTopic", name=name, partitions=tuple(rows))
        for name, rows in topics.items()
    )
    body = request.encode(replica_id=_NO_REPLICA, isolation_level=isolation, topics=requested)
    response = await ask(connection, request, body)
    return {
        TopicPartition(topic.name, row.partition_index): row
        for topic in response.topics
        for row in topic.partitions
    }


async def ends_of_epochs(
    connection: BrokerConnection, epochs: Mapping[TopicPartition, int], current: int = -1
) -> dict[TopicPartition, Any]:
    """Return a row for each partition, with its error code and end offset.

    The end offset is that of the largest leader epoch up to the given one in the leader's log: up
    to there the log is as it was under that epoch. -1: the leader knows only lower epochs.

    Parameters:
        connection: to the partitions' leader.
        epochs: a leader epoch of each partition.
        current: the leader's own epoch, with another one it returns an error; -1: any.

    Raises:
        UpstreamError: there is no response.
    """
    request = request_for(connection, API_OFFSET_FOR_LEADER_EPOCH)
    topics: dict[str, list[Any]] = {}
    for place, epoch in epochs.items():
        row = request.part(
            "OffsetForLeaderPartition", partition=place.partition,
            current_leader_epoch=current, leader_epoch=epoch,
        )  # fmt: skip
        topics.setdefault(place.topic, []).append(row)
    requested = tuple(
        request.part("OffsetForLeaderTopic", topic=name, partitions=tuple(rows))
        for name, rows in topics.items()
    )
    body = request.encode(replica_id=_NO_REPLICA, topics=requested)
    response = await ask(connection, request, body)
    return {
        TopicPartition(topic.topic, row.partition): row
        for topic in response.topics
        for row in topic.partitions
    }
