"""Requests for offsets of partitions (ListOffsets)."""

from collections.abc import Iterable
from typing import Any, Final

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_LIST_OFFSETS
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.exchange import ask, request_for
from pidlease.kafka.codec.fetch import READ_UNCOMMITTED

#: Timestamps that stand for the first offset, and for the end of the log.
EARLIEST: Final = -2
LATEST: Final = -1


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
    body = request.encode(replica_id=-1, isolation_level=isolation, topics=requested)
    response = await ask(connection, request, body)
    return {
        TopicPartition(topic.name, row.partition_index): row
        for topic in response.topics
        for row in topic.partitions
    }
