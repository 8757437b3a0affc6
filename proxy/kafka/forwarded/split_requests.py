"""Splits a request between the brokers in charge of its items, and joins their responses."""

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
from pidlease.kafka.client.cluster import NO_LEADER, View
from pidlease.kafka.client.coordinators import GROUP, TRANSACTION, Coordinators
from pidlease.kafka.client.exchange import read
from pidlease.kafka.client.transactions import SERVED_TOPIC
from pidlease.kafka.codec.messages import Request, Response, read_request_slowly
from pidlease.kafka.codec.primitives import RequestHeader
from pidlease.kafka.error_codes import STALE_LEADER
from pidlease.kafka.errors import UpstreamNonsenseError
from proxy.kafka.forwarded.client_brokers import ClientBrokers

#: Requests about groups or transactional ids: the type of coordinator, the request's field with
#: the ids, and the response's field with the results.
COORDINATED: Final = {
    API_DESCRIBE_GROUPS: (GROUP, "groups", "groups"),
    API_DELETE_GROUPS: (GROUP, "groups_names", "results"),
    API_DESCRIBE_TRANSACTIONS: (TRANSACTION, "transactional_ids", "transaction_states"),
    API_CONSUMER_GROUP_DESCRIBE: (GROUP, "group_ids", "groups"),
}
#: Requests that every broker answers for what it coordinates: the response's field with results.
LISTED: Final = {API_LIST_GROUPS: "groups", API_LIST_TRANSACTIONS: "transaction_states"}
#: Requests about partitions: the schema's names of a topic and a partition in the response, and the
#: other values of a partition with an error.
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
    """Splits requests by broker, and joins the responses."""

    def __init__(self, cluster: AllTopicsCluster, coordinators: Coordinators) -> None:
        self._cluster = cluster
        self._coordinators = coordinators

    async def partitions(
        self, brokers: ClientBrokers, header: RequestHeader, frame: bytearray
    ) -> bytes:
        """Answer a request about partitions, each by its leader.

        Raises:
            MalformedError: the frame is not a valid request.
            UpstreamError: a broker does not answer.
        """
        request = await read_request_slowly(header, frame)
        requested = {
            TopicPartition(str(topic.name), _number(part))
            for topic in request.topics
            for part in _parts(topic)
        }
        missing = await missing_partitions(self._cluster, requested)
        rows: dict[tuple[str, int], Any] = {}
        by_leader: dict[int, list[tuple[str, Any]]] = {}
        for topic in request.topics:
            for part in _parts(topic):
                leader = leader_for_clients(self._cluster.view, topic.name, _number(part))
                by_leader.setdefault(leader, []).append((topic.name, part))
        for name, part in by_leader.pop(NO_LEADER, ()):
            number = _number(part)
            rows[name, number] = self._no_leader(
                header, number, exists=TopicPartition(name, number) not in missing
            )
        requests = [
            (leader, dataclasses.replace(request, topics=_regroup(request, some)))
            for leader, some in by_leader.items()
        ]
        for answer in await self._send(brokers, header, requests):
            for topic in answer.topics:
                for row in topic.partitions:
                    if row.error_code.value in STALE_LEADER:
                        self._cluster.stale()
                    rows[topic.name, row.partition_index] = row
        if not requested <= rows.keys():
            raise UpstreamNonsenseError(f"no answer of Kafka for {requested - rows.keys()}")
        return self._joined(header, request, rows)

    def _no_leader(self, header: RequestHeader, number: int, *, exists: bool) -> Any:
        self._cluster.stale()
        code = ErrorCode.leader_not_available if exists else ErrorCode.unknown_topic_or_partition
        _, kind, values = _PARTITIONS[header.api_key]
        response = Response(header.api_key, header.version)
        return response.part(kind, partition_index=number, error_code=code, **values)

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
        """Answer a request about groups or transactional ids, each by its coordinator.

        Raises:
            MalformedError: the frame is not a valid request.
            UpstreamError: a broker does not answer.
        """
        request = await read_request_slowly(header, frame)
        kind, field, result = COORDINATED[header.api_key]
        split = await self._coordinators.split(kind, getattr(request, field))
        requests = [
            (broker, dataclasses.replace(request, **{field: tuple(keys)}))
            for broker, keys in split.items()
        ]
        answers = await self._send(brokers, header, requests)
        joined = tuple(row for answer in answers for row in getattr(answer, result))
        response = Response(header.api_key, header.version)
        return response.encode(header.correlation_id, **{result: joined})

    async def listed(
        self, brokers: ClientBrokers, header: RequestHeader, frame: bytearray
    ) -> bytes:
        """Answer ListGroups or ListTransactions with the results of all brokers.

        Raises:
            MalformedError: the frame is not a valid request.
            UpstreamError: a broker does not answer.
        """
        request = await read_request_slowly(header, frame)
        requests = [(broker, request) for broker in self._cluster.view.brokers]
        answers = await self._send(brokers, header, requests)
        code = next((each.error_code for each in answers if each.error_code.value), ErrorCode.none)
        result = LISTED[header.api_key]
        values = {result: tuple(row for answer in answers for row in getattr(answer, result))}
        if header.api_key == API_LIST_TRANSACTIONS:
            values["unknown_state_filters"] = answers[0].unknown_state_filters
        response = Response(header.api_key, header.version)
        return response.encode(header.correlation_id, error_code=code, **values)

    async def _send(
        self, brokers: ClientBrokers, header: RequestHeader, requests: Iterable[tuple[int, Any]]
    ) -> list[Any]:
        """Send each broker its request; return the responses."""
        request = Request(header.api_key, header.version)
        connections, futures = [], []
        async with brokers.order:
            for broker, entity in requests:
                connection = await brokers.connection(broker, header)
                connections.append(connection)
                futures.append(connection.begin(request.encode_entity(entity)))
        frames = await asyncio.gather(*futures)
        return [
            read(connection, frame, request.decode)
            for connection, frame in zip(connections, frames, strict=True)
        ]


async def missing_partitions(
    cluster: AllTopicsCluster, requested: Iterable[TopicPartition]
) -> Set[TopicPartition]:
    """Return the partitions that do not exist for clients: ask Kafka for those not seen yet."""
    unseen, own = [], set()
    for each in requested:
        if each.topic == SERVED_TOPIC:
            own.add(each)
        elif not cluster.view.has(*each):
            unseen.append(each)
    return await cluster.missing(unseen) | own if unseen else own


def leader_for_clients(view: View, topic: str, partition: int) -> int:
    """Return the leader of a partition; `NO_LEADER`: it has none, or no client may reach it.

    The coordinator's topic has PIDs, users and rights: whoever writes to it may do everything.
    """
    return NO_LEADER if topic == SERVED_TOPIC else view.leader(topic, partition)


def without_leader_epoch(part: Any) -> Any:
    """Return a request's partition without its leader epoch: pidlease's are not Kafka's."""
    if hasattr(part, "current_leader_epoch"):
        return dataclasses.replace(part, current_leader_epoch=-1)
    return part


def _parts(topic: Any) -> tuple[Any, ...]:
    """Return the partitions of a request's topic, as rows or as numbers."""
    return tuple(getattr(topic, _field(topic)))


def _number(part: Any) -> int:
    return int(part) if isinstance(part, int) else int(part.partition_index)


def _regroup(request: Any, some: list[tuple[str, Any]]) -> tuple[Any, ...]:
    """Return the request's topics with only the given partitions."""
    named: dict[str, list[Any]] = {}
    for name, part in some:
        named.setdefault(name, []).append(without_leader_epoch(part))
    kinds = {topic.name: topic for topic in request.topics}
    return tuple(
        dataclasses.replace(kinds[name], **{_field(kinds[name]): tuple(parts)})
        for name, parts in named.items()
    )


def _field(topic: Any) -> str:
    return "partitions" if hasattr(topic, "partitions") else "partition_indexes"
