"""Which requests are served on the embedded log, and by whom."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from pidlease.engine.engine import Engine
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
from proxy.kafka.produce_api import ProduceApi
from proxy.kafka.request_order import Answered

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
API_VERSIONS: Final = 18

#: What is served: key -> (lowest, highest version). Low ones are kept: some clients ignore the
#: lowest that is advertised.
VERSIONS: Final = {
    PRODUCE: (3, 12),
    FETCH: (4, 11),
    2: (1, 6),
    METADATA: (0, 13),
    8: (2, 9),
    9: (1, 9),
    10: (0, 6),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    API_VERSIONS: (0, 4),
    19: (2, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 5),
    32: (1, 4),
    33: (0, 2),
    37: (0, 3),
    42: (0, 2),
    44: (0, 1),
    47: (0, 0),
    60: (0, 2),
    61: (0, 0),
}


def advertised(versions: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """What is told to clients of the versions that are served.

    librdkafka compresses only for brokers that know Produce from version 0 on (KAFKA-18659), so
    Kafka 4 advertises it without serving it, and so do we.
    """
    return {**versions, PRODUCE: (0, versions[PRODUCE][1])}


ADVERTISED: Final = advertised(VERSIONS)


class Apis(Protocol):
    """What the door asks of those who answer.

    Attributes:
        versions: what is served: key -> (lowest, highest version).
    """

    versions: Mapping[int, tuple[int, int]]

    def start(self) -> None:
        """The door opens."""

    async def close(self) -> None:
        """The door takes nothing new; who waits is answered."""

    def closed(self, connection: KafkaConnection) -> None:
        """A client is gone."""

    def produce(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Answer a Produce request.

        Raises:
            MalformedError: it is none.
        """

    def api_versions(self, header: RequestHeader) -> bytes:
        """Answer an ApiVersions request, of any version."""

    def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> Answered:
        """Answer any other request that is served.

        Raises:
            MalformedError: it is none.
        """


class EmbeddedApis:
    """See `Apis`.

    Parameters:
        engine: what is behind.
        config: how the door is set.
        budget: memory for answers.
        check_settings: raises ValueError for topic settings that make no sense.
        groups: consumer groups.
    """

    def __init__(
        self,
        engine: Engine,
        config: KafkaListenerConfig,
        budget: MemoryBudget,
        check_settings: Callable[[dict[str, str]], None],
        groups: GroupsApi,
    ) -> None:
        self.versions: Mapping[int, tuple[int, int]] = VERSIONS
        self._engine = engine
        self._cluster = ClusterApi(config.cluster, ADVERTISED)
        self._metadata = MetadataApi(engine, config.cluster)
        self._admin = AdminApi(engine, config, check_settings)
        self._produce = ProduceApi(engine, config.batch_bytes_max)
        self._fetch = FetchApi(engine, budget, config.fetch_bytes_max)
        self._now: dict[int, Callable[[RequestHeader, bytearray], bytes]] = {
            22: lambda header, frame: init_producer_id(engine, header, frame),
            60: self._cluster.describe_cluster,
        }
        self._groups = groups
        self.produce = self._produce.handle
        self.api_versions = self._cluster.api_versions

    def start(self) -> None:
        """See `Apis`."""
        self._groups.start()

    async def close(self) -> None:
        """See `Apis`."""
        self._fetch.close()
        await self._groups.close()

    def closed(self, connection: KafkaConnection) -> None:
        """See `Apis`: nothing is kept of a connection."""

    def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> Answered:
        """See `Apis`."""
        key = header.api_key
        if key in self._groups.requests:
            return self._groups.requests[key](header, frame, slot)
        if key in self._now:
            return self._now[key](header, frame)
        return self._work(slot, header, frame)

    def _work(
        self, slot: Slot, header: RequestHeader, frame: bytearray
    ) -> Coroutine[Any, Any, bytes | None]:
        if header.api_key == FETCH:
            return self._fetch.answer(slot, header, frame)
        if header.api_key == METADATA:
            return self._metadata.answer(slot, header, frame)
        if header.api_key in self._admin.requests:
            return self._admin.answer(slot, header, frame)
        return list_offsets(self._engine, header, frame)
