"""Dispatches Kafka requests with Kafka as the log: to pidlease, or to the broker in charge."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode
from typing_extensions import override

from pidlease.core.backoff import Backoff
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.append_outcome import UNKNOWN_OUTCOME
from pidlease.engine.engine import Engine
from pidlease.engine.topic_admin import TopicAdmin
from pidlease.engine.topic_counts import Counts
from pidlease.kafka.api import (
    API_ADD_OFFSETS_TO_TXN,
    API_ADD_PARTITIONS_TO_TXN,
    API_ALTER_CONFIGS,
    API_CONSUMER_GROUP_HEARTBEAT,
    API_CREATE_PARTITIONS,
    API_CREATE_TOPICS,
    API_DELETE_RECORDS,
    API_DELETE_TOPICS,
    API_DESCRIBE_CLUSTER,
    API_DESCRIBE_CONFIGS,
    API_DESCRIBE_PRODUCERS,
    API_END_TXN,
    API_FETCH,
    API_FIND_COORDINATOR,
    API_HEARTBEAT,
    API_INCREMENTAL_ALTER_CONFIGS,
    API_INIT_PRODUCER_ID,
    API_JOIN_GROUP,
    API_LEAVE_GROUP,
    API_LIST_OFFSETS,
    API_METADATA,
    API_OFFSET_COMMIT,
    API_OFFSET_DELETE,
    API_OFFSET_FETCH,
    API_SYNC_GROUP,
    API_TXN_OFFSET_COMMIT,
)
from pidlease.kafka.client.all_topics_cluster import AllTopicsCluster
from pidlease.kafka.client.cluster import UpstreamTopic
from pidlease.kafka.client.coordinators import GROUP, TRANSACTION, NoCoordinatorError
from pidlease.kafka.client.kafka_client import Upstream
from pidlease.kafka.client.produce_channels import ProduceSend
from pidlease.kafka.client.transactions import SERVED_TOPIC, WRITERS_PREFIX
from pidlease.kafka.codec.messages import Response, is_flexible, read_request, read_request_slowly
from pidlease.kafka.codec.primitives import MalformedError, Reader, RequestHeader
from pidlease.kafka.codec.produce import PartitionResponse
from pidlease.kafka.errors import (
    UpstreamError,
    UpstreamLostError,
    UpstreamNonsenseError,
)
from pidlease.log.kafka.kafka_writers import KafkaWriters
from pidlease.observability.repeated_lines import LINES, kind_of
from proxy.kafka.access.refused_responses import refused_response
from proxy.kafka.brokers import Brokers
from proxy.kafka.client_connection import KafkaConnection, Slot
from proxy.kafka.cluster_api import ClusterApi
from proxy.kafka.forwarded.broker_configs import OF_BROKERS, refuse_brokers
from proxy.kafka.forwarded.client_brokers import BrokersOfClients
from proxy.kafka.forwarded.find_coordinator import FindCoordinatorApi
from proxy.kafka.forwarded.kafka_topic_admin import KafkaTopicAdmin
from proxy.kafka.forwarded.leader_fetches import ClientFetches, LeaderFetches
from proxy.kafka.forwarded.offset_fetch_moves import has_moved
from proxy.kafka.forwarded.split_requests import COORDINATED, LISTED, SplitRequests
from proxy.kafka.forwarded.topic_changes import TOPIC_CHANGES, TopicChanges
from proxy.kafka.init_producer_id import init_producer_id
from proxy.kafka.listener_config import KafkaListenerConfig
from proxy.kafka.metadata_api import MetadataApi
from proxy.kafka.produce_api import OWN_PIDS_FROM, ProduceApi
from proxy.kafka.request_order import Answered
from proxy.kafka.served_versions import Versions, advertised, forwarded_versions

# Requests with a group id or a transactional id as the first field.
_OF_GROUPS: Final = (
    API_OFFSET_COMMIT,
    API_OFFSET_FETCH,
    API_JOIN_GROUP,
    API_HEARTBEAT,
    API_LEAVE_GROUP,
    API_SYNC_GROUP,
    API_OFFSET_DELETE,
    API_CONSUMER_GROUP_HEARTBEAT,
)
_OF_TRANSACTIONS: Final = (
    API_INIT_PRODUCER_ID,
    API_ADD_PARTITIONS_TO_TXN,
    API_ADD_OFFSETS_TO_TXN,
    API_END_TXN,
)
#: Requests about partitions, answered by their leaders.
_OF_LEADERS: Final = (API_LIST_OFFSETS, API_DELETE_RECORDS, API_DESCRIBE_PRODUCERS)
#: Requests for the controller, or for any broker.
_OF_ANY_BROKER: Final = (
    API_CREATE_TOPICS,
    API_DELETE_TOPICS,
    API_DESCRIBE_CONFIGS,
    API_ALTER_CONFIGS,
    API_CREATE_PARTITIONS,
    API_INCREMENTAL_ALTER_CONFIGS,
)

#: Requests that name topics, of those that are forwarded unchanged.
_NAMES_TOPICS: Final = (*_OF_ANY_BROKER, API_ADD_PARTITIONS_TO_TXN)

#: How often a request is sent while the coordinator moves, and the delays in between.
_COORDINATORS_MAX: Final = 10
_COORDINATOR_BACKOFF: Final = Backoff(0.05, 0.5)
#: How long a broker may hold a group's request: members wait for one another.
_GROUP_SECONDS: Final = 3600.0

_log = structlog.get_logger(__name__)


class ForwardedApis:
    """Handles requests with Kafka as the log, or forwards them.

    Parameters:
        engine: validates batches with PIDs leased by pidlease.
        writers: those of the partitions; no client may send under their producer ids.
    """

    def __init__(
        self,
        engine: Engine,
        config: KafkaListenerConfig,
        upstream: Upstream,
        writers: KafkaWriters,
    ) -> None:
        self._writers = writers
        self._engine = engine
        self._upstream = upstream
        self._cluster: Final[AllTopicsCluster] = upstream.cluster
        #: What all brokers serve, and what this server serves for that.
        self._versions: tuple[Versions, Versions] = ({}, forwarded_versions({}))
        self._clients = BrokersOfClients(self._cluster)
        self._fetches: dict[KafkaConnection, ClientFetches] = {}
        brokers = Brokers(config.cluster, engine.shared_cluster)
        self._describing = ClusterApi(config.cluster, lambda: advertised(self.versions), brokers)
        self._changing = TopicChanges(self._cluster, engine)
        self.topics: TopicAdmin = KafkaTopicAdmin(
            engine, self._cluster, self._changing, auto_create=config.cluster.auto_create
        )
        # Without Kafka's leader epochs: the epochs in this server's other responses differ.
        self._metadata = MetadataApi(
            engine, config.cluster, self.topics.create_on_use, leader_epoch=-1,
            look=self._cluster.refresh, brokers=brokers,
        )  # fmt: skip
        self.look = self._metadata.look
        self._coordinators = upstream.coordinators
        self._finding = FindCoordinatorApi(self._coordinators, brokers)
        self._joining = SplitRequests(self._cluster, self._coordinators)
        self._fetching = LeaderFetches(self._cluster, config.fetch_bytes_max)
        produce = ProduceApi(engine, config.batch_bytes_max, self._pass)
        self.produce = produce.handle
        self.restrict_produce = produce.restrict
        self.api_versions = self._describing.api_versions

    @property
    def versions(self) -> Versions:
        """The versions served now: what is forwarded, all live brokers must serve."""
        of_kafka, served = self._versions
        if of_kafka is not self._cluster.versions:
            of_kafka = self._cluster.versions
            served = forwarded_versions(of_kafka)
            self._versions = of_kafka, served
        return served

    def start(self) -> None:
        """Start serving."""

    async def close(self) -> None:
        """Stop serving; requests that wait for Kafka end with the connection."""

    def closed(self, connection: KafkaConnection) -> None:
        """Close the client's own connections to brokers."""
        self._clients.closed(connection)
        self._fetches.pop(connection, None)

    def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> Answered:
        """Answer a request other than Produce and ApiVersions."""
        if header.api_key == API_DESCRIBE_CLUSTER:
            return self._describing.describe_cluster(header, frame, slot.connection.listener)
        if header.api_key == API_METADATA:
            return self._metadata.answer(slot, header, frame)
        if header.api_key == API_INIT_PRODUCER_ID:
            transactional_id = read_request(header, frame).transactional_id
            # A client that used a writer's transactional id would fence the writer.
            if transactional_id is None or transactional_id.startswith(WRITERS_PREFIX):
                return init_producer_id(self._engine, header, frame)
        if header.api_key in OF_BROKERS:
            refused = refuse_brokers(header, frame)
            if refused is not None:
                return refused
        return self._ask_kafka(slot, header, frame)

    async def _ask_kafka(self, slot: Slot, header: RequestHeader, frame: bytearray) -> bytes | None:
        """Return Kafka's response; without one, close the connection: the client then retries."""
        try:
            return await self._dispatch(slot, header, frame)
        except NoCoordinatorError as error:
            if header.api_key == API_INIT_PRODUCER_ID:
                return Response(API_INIT_PRODUCER_ID, header.version).encode(
                    header.correlation_id, error_code=error.code, producer_id=-1, producer_epoch=-1
                )
            slot.connection.close()
            return None
        except UpstreamError as error:
            LINES.write(_log, "warning", "Kafka did not answer a client's request",
                        (header.api_key, kind_of(error)), api_key=header.api_key,
                        client=header.client_id, error=str(error))  # fmt: skip
            self._cluster.stale()
            slot.connection.close()
            return None

    def _dispatch(
        self, slot: Slot, header: RequestHeader, frame: bytearray
    ) -> Coroutine[Any, Any, bytes | None]:
        key = header.api_key
        brokers = self._clients.of(slot.connection)
        if key == API_FETCH:
            fetches = self._fetches.setdefault(slot.connection, ClientFetches())
            return self._fetching.answer(brokers, fetches, slot, header, frame)
        if key in _OF_LEADERS:
            return self._joining.partitions(brokers, header, frame)
        if key in COORDINATED:
            return self._joining.coordinated(brokers, header, frame)
        if key in LISTED:
            return self._joining.listed(brokers, header, frame)
        if key == API_FIND_COORDINATOR:
            return self._finding.answer(header, frame, slot.connection.listener)
        if key == API_OFFSET_FETCH:
            return self._fetch_offsets(slot, header, frame)
        forwarded = self._forward(slot, header, frame, self._broker_for(header, frame))
        if key in _NAMES_TOPICS:
            forwarded = self._unless_own(header, frame, forwarded)
        if key in TOPIC_CHANGES:
            return self._changing.seen(header, frame, forwarded)
        return forwarded

    async def _unless_own(
        self, header: RequestHeader, frame: bytearray, forwarded: Coroutine[Any, Any, bytes]
    ) -> bytes:
        """Refuse a request, as a whole, if it names the coordinator's topic."""
        try:
            request = await read_request_slowly(header, frame)
        except BaseException:
            forwarded.close()
            raise
        if not _names(request, SERVED_TOPIC, self._cluster.view.topics.get(SERVED_TOPIC)):
            return await forwarded
        forwarded.close()
        return await refused_response(header, request, ErrorCode.topic_authorization_failed)

    # ------------------------------------------------------------------ unchanged requests

    def _broker_for(self, header: RequestHeader, frame: bytearray) -> Callable[[], Awaitable[int]]:
        """Return a function that finds the broker in charge of a request."""
        key = header.api_key
        if key in _OF_ANY_BROKER:
            return self._controller
        reader = Reader(frame, header.body, flexible=is_flexible(key, header.version))
        reader.tags()
        name = reader.string() or ""
        if key == API_TXN_OFFSET_COMMIT:
            name = reader.string() or ""  # the group, after the transactional id
        kind = TRANSACTION if key in _OF_TRANSACTIONS else GROUP
        if kind is TRANSACTION and name.startswith(WRITERS_PREFIX):
            raise MalformedError(f"transactional id {name} is the server's own")
        return partial(self._coordinators.of, kind, name)

    async def _controller(self) -> int:
        view = self._cluster.view
        return view.controller if view.controller in view.brokers else next(iter(view.brokers))

    async def _fetch_offsets(self, slot: Slot, header: RequestHeader, frame: bytearray) -> bytes:
        """Forward OffsetFetch; again, if the broker does not coordinate the group any more.

        librdkafka (seen with 2.16.0, its issue 5586) does not send the request again after that
        response: its consumer reads nothing from then on.
        """
        broker = self._broker_for(header, frame)
        for attempt in itertools.count(1):
            response = await self._forward(slot, header, frame, broker)
            if attempt == _COORDINATORS_MAX or not has_moved(header.version, bytearray(response)):
                break
            self._coordinators.forget()
            await asyncio.sleep(_COORDINATOR_BACKOFF.seconds(attempt))
        return response

    async def _forward(
        self,
        slot: Slot,
        header: RequestHeader,
        frame: bytearray,
        broker: Callable[[], Awaitable[int]],
    ) -> bytes:
        brokers = self._clients.of(slot.connection)
        seconds = _GROUP_SECONDS if header.api_key in _OF_GROUPS else 0.0
        try:
            async with brokers.order:
                connection = await brokers.connection(await broker(), header)
                answer = connection.begin(frame, seconds)
            return bytes(await answer)
        except UpstreamError:
            self._coordinators.forget()
            raise

    # ------------------------------------------------------------------ batches and topics

    def _pass(
        self,
        partition: TopicPartition,
        data: memoryview,
        transactional_id: str,
        respond: Callable[[PartitionResponse], None],
    ) -> None:
        """Send Kafka a batch of a transaction."""
        if partition.topic == SERVED_TOPIC:
            reason = f"topic {SERVED_TOPIC} is the server's own"
            code = ErrorCode.topic_authorization_failed.value
            respond(PartitionResponse(code, message=reason))
            return
        # The batches of a producer id stay in order. A batch below 51 bytes has no producer id.
        producer = int.from_bytes(data[43:51], "big", signed=True)
        if producer >= OWN_PIDS_FROM:
            reason = f"PID {producer} was leased here, and takes part in no transaction"
            respond(PartitionResponse(ErrorCode.invalid_record.value, message=reason))
            return
        if not self._knows_writers(partition):
            reason = f"another server writes to {partition}, or did so just now"
            code = ErrorCode.not_leader_or_follower.value
            respond(PartitionResponse(code, message=reason))
            return
        if producer in self._writers.ids:
            reason = f"PID {producer} is the server's own"
            respond(PartitionResponse(ErrorCode.invalid_record.value, message=reason))
            return
        # Inverted, since key 0 means "no order" to `send`, and Kafka's producer ids begin with 0.
        send = _PassedBatch(partition, data, transactional_id, self._engine.counts, respond)
        self._upstream.send(~producer, send)

    def _knows_writers(self, partition: TopicPartition) -> bool:
        """Whether this server knows all ids of a partition's writers; only the owner does.

        To Kafka, a writer's batch is a duplicate if a client has sent one with its numbers. The
        batch would be acknowledged, and lost.
        """
        if self._engine.shared_cluster is None:
            return True
        found = self._engine.partition(*partition)
        return found is not None and not found.elsewhere and self._writers.knows(partition)


def _names(request: Any, topic: str, known: UpstreamTopic | None) -> bool:
    """Whether a request of an API in `_NAMES_TOPICS` names a topic, or has its id."""
    for field in ("topics", "topic_names", "resources", "v3_and_below_topics"):
        for each in getattr(request, field, None) or ():
            name = getattr(each, "name", getattr(each, "resource_name", each))
            id_ = getattr(each, "topic_id", None)
            if name == topic or (id_ is not None and known and id_.hex == known.topic_id):
                return True
    return False


class _PassedBatch(ProduceSend):
    """A batch that Kafka validates.

    Parameters:
        counts: counts Kafka's response.
        respond: gets the response for the client.
    """

    __slots__ = ("_began", "_counts", "_respond")

    def __init__(
        self,
        place: TopicPartition,
        data: memoryview,
        transactional_id: str | None,
        counts: Counts,
        respond: Callable[[PartitionResponse], None],
    ) -> None:
        super().__init__(place, data, transactional_id)
        self._began = time.monotonic()
        self._counts = counts
        self._respond = respond

    @override
    def completed(self, result: PartitionResponse | UpstreamError) -> None:
        if isinstance(result, UpstreamError):
            self._counts.forwarded(self._began, 0, -1)
            LINES.write(_log, "info", "a batch was not answered", str(result),
                        partition=str(self.place), error=str(result))  # fmt: skip
            unknown = isinstance(result, UpstreamLostError | UpstreamNonsenseError)
            code = UNKNOWN_OUTCOME if unknown else ErrorCode.not_leader_or_follower.value
            self._respond(PartitionResponse(code, message="its leader in Kafka did not answer"))
            return
        self._counts.forwarded(self._began, result.code, result.offset)
        if result.code == 0 and result.offset < 0:
            LINES.write(_log, "error", "a response of Kafka is invalid", "no offset",
                        partition=str(self.place),
                        error=f"a batch is appended at offset {result.offset}")  # fmt: skip
            self._respond(PartitionResponse(UNKNOWN_OUTCOME, message="Kafka returned no offset"))
        else:
            self._respond(result)
