"""Requests about many partitions, groups or transactions: a part for each broker, and joined."""

import asyncio
import dataclasses
from collections.abc import Iterable, Set
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import (
    API_CONSUMER_GROUP_DESCRIBE,
    API_DELETE_GROUPS,
    API_DELETE_RECORDS,
    API_DESCRIBE_GROUPS,
    API_DESCRIBE_PRODUCERS,
    API_DESCRIBE_TRANSACTIONS,
    API_LIST_GROUPS,
    API_LIST_OFFSETS,
    API_LIST_TRANSACTIONS,
)
from pidlease.kafka.client.all_topics_cluster import AllTopicsCluster
from pidlease.kafka.client.cluster import NO_LEADER
from pidlease.kafka.client.coordinators import GROUP, TRANSACTION, Coordinators
from pidlease.kafka.client.exchange import read
from pidlease.kafka.codec.messages import Request, Response, read_request_slowly
from pidlease.kafka.codec.primitives import RequestHeader
from pidlease.kafka.error_codes import STALE_LEADER
from pidlease.kafka.errors import UpstreamNonsenseError
from proxy.kafka.forwarded.client_brokers import ClientBrokers

#: Of requests about groups or transactional ids: which of the two, where they stand in the request,
#: and in the answer.
COORDINATED: Final = {
    API_DESCRIBE_GROUPS: (GROUP, "groups", "groups"),
    API_DELETE_GROUPS: (GROUP, "groups_names", "results"),
    API_DESCRIBE_TRANSACTIONS: (TRANSACTION, "transactional_ids", "transaction_states"),
    API_CONSUMER_GROUP_DESCRIBE: (GROUP, "group_ids", "groups"),
}
#: Of requests about whatever each broker coordinates: where that stands in the answer.
LISTED: Final = {API_LIST_GROUPS: "groups", API_LIST_TRANSACTIONS: "transaction_states"}
#: Of requests about partitions: where topics stand in the answer, and a row of an answer that only
#: says what is wrong.
_PARTITIONS: Final[dict[int, tuple[str, str, dict[str, Any]]]] = {
    API_LIST_OFFSETS: (
        "ListOffsetsTopicResponse", "ListOffsetsPartitionResponse",
        {"old_style_offsets": (), "timestamp": -1, "offset": -1, "leader_epoch": -1},
    ),
    API_DELETE_RECORDS: (
        "DeleteRecordsTopicResult", "DeleteRecordsPartitionResult", {"low_watermark": -1},
    ),
    API_DESCRIBE_PRODUCERS: (
        "TopicResponse", "PartitionResponse", {"error_message": None, "active_producers": ()},
    ),
}  # fmt: skip


class SplitRequests:
    """Splits requests by broker, and joins the responses.

    Parameters:
        cluster: the leaders.
        coordinators: of groups and transactional ids.
    """

    def __init__(self, cluster: AllTopicsCluster, coordinators: Coordinators) -> None:
        self._cluster = cluster
        self._coordinators = coordinators

    async def partitions(
        self, brokers: ClientBrokers, header: RequestHeader, frame: bytearray
    ) -> bytes:
        """Answer a request about partitions: each part by its leader.

        Raises:
            MalformedError: it is none.
            UpstreamError: a broker does not answer.
        """
        request = await read_request_slowly(header, frame)
        missing = await self._missing(request)
        rows: dict[tuple[str, int], Any] = {}
        by_leader: dict[int, list[tuple[str, Any]]] = {}
        for topic in request.topics:
            for part in _parts(topic):
                leader = self._cluster.view.leader(topic.name, _number(part))
                by_leader.setdefault(leader, []).append((topic.name, part))
        for name, part in by_leader.pop(NO_LEADER, ()):
            place = TopicPartition(name, _number(part))
            rows[place] = self._no_leader(header, place, exists=place not in missing)
        asked = [
            (leader, dataclasses.replace(request, topics=_regroup(request, some)))
            for leader, some in by_leader.items()
        ]
        for answer in await self._ask(brokers, header, asked):
            for topic in answer.topics:
                for row in topic.partitions:
                    if row.error_code.value in STALE_LEADER:
                        self._cluster.stale()
                    rows[topic.name, row.partition_index] = row
        asked_for = {
            (topic.name, _number(part)) for topic in request.topics for part in _parts(topic)
        }
        if not asked_for <= rows.keys():
            raise UpstreamNonsenseError(f"no answer of Kafka for {asked_for - rows.keys()}")
        return self._joined(header, request, rows)

    async def _missing(self, request: Any) -> Set[TopicPartition]:
        """The partitions that there are not, for certain: Kafka is asked for those not seen yet."""
        view = self._cluster.view
        unseen = [
            TopicPartition(str(topic.name), _number(part))
            for topic in request.topics
            for part in _parts(topic)
            if not view.has(topic.name, _number(part))
        ]
        return await self._cluster.missing(unseen) if unseen else set()

    def _no_leader(self, header: RequestHeader, place: TopicPartition, *, exists: bool) -> Any:
        self._cluster.stale()
        code = ErrorCode.leader_not_available if exists else ErrorCode.unknown_topic_or_partition
        _, kind, values = _PARTITIONS[header.api_key]
        response = Response(header.api_key, header.version)
        return response.part(kind, partition_index=place.partition, error_code=code, **values)

    def _joined(
        self, header: RequestHeader, request: Any, rows: dict[tuple[str, int], Any]
    ) -> bytes:
        response = Response(header.api_key, header.version)
        kind = _PARTITIONS[header.api_key][0]
        topics = tuple(
            response.part(
                kind, name=topic.name,
                partitions=tuple(rows[topic.name, _number(part)] for part in _parts(topic)),
            )
            for topic in request.topics
        )  # fmt: skip
        return response.encode(header.correlation_id, topics=topics)

    async def coordinated(
        self, brokers: ClientBrokers, header: RequestHeader, frame: bytearray
    ) -> bytes:
        """Answer a request about groups or transactional ids: each part by its coordinator.

        Raises:
            MalformedError: it is none.
            UpstreamError: a broker does not answer.
        """
        request = await read_request_slowly(header, frame)
        kind, field, result = COORDINATED[header.api_key]
        split = await self._coordinators.split(kind, getattr(request, field))
        asked = [
            (broker, dataclasses.replace(request, **{field: tuple(keys)}))
            for broker, keys in split.items()
        ]
        answers = await self._ask(brokers, header, asked)
        joined = tuple(row for answer in answers for row in getattr(answer, result))
        response = Response(header.api_key, header.version)
        return response.encode(header.correlation_id, **{result: joined})

    async def listed(
        self, brokers: ClientBrokers, header: RequestHeader, frame: bytearray
    ) -> bytes:
        """Answer ListGroups or ListTransactions: what each broker coordinates.

        Raises:
            MalformedError: it is none.
            UpstreamError: a broker does not answer.
        """
        request = await read_request_slowly(header, frame)
        asked = [(broker, request) for broker in self._cluster.view.brokers]
        answers = await self._ask(brokers, header, asked)
        code = next((each.error_code for each in answers if each.error_code.value), ErrorCode.none)
        result = LISTED[header.api_key]
        values = {result: tuple(row for answer in answers for row in getattr(answer, result))}
        if header.api_key == API_LIST_TRANSACTIONS:
            values["unknown_state_filters"] = answers[0].unknown_state_filters
        response = Response(header.api_key, header.version)
        return response.encode(header.correlation_id, error_code=code, **values)

    async def _ask(
        self, brokers: ClientBrokers, header: RequestHeader, asked: Iterable[tuple[int, Any]]
    ) -> list[Any]:
        request = Request(header.api_key, header.version)
        connections, futures = [], []
        async with brokers.order:
            for broker, entity in asked:
                connection = await brokers.connection(broker)
                connections.append(connection)
                futures.append(connection.begin(request.encode_entity(entity)))
        frames = await asyncio.gather(*futures)
        return [
            read(connection, frame, request.decode)
            for connection, frame in zip(connections, frames, strict=True)
        ]


def _parts(topic: Any) -> tuple[Any, ...]:
    """The partitions of a request's topic, as rows or as numbers."""
    return tuple(getattr(topic, _field(topic)))


def _number(part: Any) -> int:
    return int(part) if isinstance(part, int) else int(part.partition_index)


def _regroup(request: Any, some: list[tuple[str, Any]]) -> tuple[Any, ...]:
    """Topics with only those partitions, without leader epochs: ours are not Kafka's."""
    named: dict[str, list[Any]] = {}
    for name, part in some:
        known = part
        if hasattr(part, "current_leader_epoch"):
            known = dataclasses.replace(part, current_leader_epoch=-1)
        named.setdefault(name, []).append(known)
    kinds = {topic.name: topic for topic in request.topics}
    return tuple(
        dataclasses.replace(kinds[name], **{_field(kinds[name]): tuple(parts)})
        for name, parts in named.items()
    )


def _field(topic: Any) -> str:
    return "partitions" if hasattr(topic, "partitions") else "partition_indexes"
