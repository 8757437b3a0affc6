"""Dispatches Kafka requests that are served from the embedded log."""

from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from pidlease.engine.engine import Engine
from pidlease.engine.topic_admin import EmbeddedTopicAdmin, TopicAdmin
from pidlease.kafka.api import API_DESCRIBE_CLUSTER, API_FETCH, API_INIT_PRODUCER_ID, API_METADATA
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.admin.admin_api import AdminApi
from proxy.kafka.client_connection import KafkaConnection, Slot
from proxy.kafka.cluster_api import ClusterApi
from proxy.kafka.fetch_api import FetchApi
from proxy.kafka.groups.groups_api import GroupsApi
from proxy.kafka.init_producer_id import init_producer_id
from proxy.kafka.list_offsets import list_offsets
from proxy.kafka.listener_config import KafkaListenerConfig
from proxy.kafka.memory_budget import MemoryBudget
from proxy.kafka.metadata_api import MetadataApi
from proxy.kafka.produce_api import ProduceApi, WriteGuard
from proxy.kafka.request_order import Answered
from proxy.kafka.served_versions import ADVERTISED, SERVED_VERSIONS, Versions


class Apis(Protocol):
    """Request handlers of a Kafka listener; each backend has its own.

    Attributes:
        topics: creates and deletes topics.
    """

    topics: TopicAdmin

    @property
    def versions(self) -> Versions:
        """The APIs served now; another object after each change."""

    def start(self) -> None:
        """Start serving."""

    async def close(self) -> None:
        """Stop serving; waiting requests get their responses."""

    def closed(self, connection: KafkaConnection) -> None:
        """Drop what belongs to a connection that has ended."""

    def produce(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Answer a Produce request.

        Raises:
            MalformedError: the frame is not a valid request.
        """

    def restrict_produce(self, guard: WriteGuard) -> None:
        """Accept only batches that a guard allows, from now on."""

    def api_versions(self, header: RequestHeader) -> bytes:
        """Answer an ApiVersions request, of any version."""

    async def look(self) -> None:
        """Learn which topics exist, where other programs create some; not for long."""

    def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> Answered:
        """Answer any other request of a served version.

        Raises:
            MalformedError: the frame is not a valid request.
        """


class EmbeddedApis:
    """Handles requests on the embedded log.

    Parameters:
        budget: memory for responses.
        check_settings: raises ValueError for invalid topic settings.
    """

    def __init__(
        self,
        engine: Engine,
        config: KafkaListenerConfig,
        budget: MemoryBudget,
        check_settings: Callable[[dict[str, str]], None],
        groups: GroupsApi,
    ) -> None:
        self.versions: Final[Versions] = SERVED_VERSIONS
        self._engine = engine
        self._cluster = ClusterApi(config.cluster, lambda: ADVERTISED)
        cluster = config.cluster
        self.topics: TopicAdmin = EmbeddedTopicAdmin(
            engine, cluster.default_partitions, auto_create=cluster.auto_create
        )
        self._metadata = MetadataApi(engine, cluster, self.topics.create_on_use)
        self._admin = AdminApi(engine, config, check_settings)
        self._produce = ProduceApi(engine, config.batch_bytes_max)
        self._fetch = FetchApi(engine, budget, config.fetch_bytes_max)
        self._now: dict[int, Callable[[RequestHeader, bytearray, str], bytes]] = {
            API_INIT_PRODUCER_ID: lambda header, frame, _: init_producer_id(engine, header, frame),
            API_DESCRIBE_CLUSTER: self._cluster.describe_cluster,
        }
        self._groups = groups
        self.produce = self._produce.handle
        self.restrict_produce = self._produce.restrict
        self.api_versions = self._cluster.api_versions
        self.look = self._metadata.look

    def start(self) -> None:
        """Start serving."""
        self._groups.start()

    async def close(self) -> None:
        """Stop serving."""
        self._fetch.close()
        await self._groups.close()

    def closed(self, connection: KafkaConnection) -> None:
        """Do nothing: no state belongs to a connection here."""

    def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> Answered:
        """Answer a request other than Produce and ApiVersions."""
        key = header.api_key
        if key in self._groups.requests:
            return self._groups.requests[key](header, frame, slot)
        if key in self._now:
            return self._now[key](header, frame, slot.connection.listener)
        return self._work(slot, header, frame)

    def _work(
        self, slot: Slot, header: RequestHeader, frame: bytearray
    ) -> Coroutine[Any, Any, bytes | None]:
        if header.api_key == API_FETCH:
            return self._fetch.answer(slot, header, frame)
        if header.api_key == API_METADATA:
            return self._metadata.answer(slot, header, frame)
        if header.api_key in self._admin.requests:
            return self._admin.answer(slot, header, frame)
        return list_offsets(self._engine, header, frame)
