"""The two clusters of a copy: their topics, and that they are not the same."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import CreateTopicsRequest_v3, CreateTopicsResponse_v3
from aiokafka.protocol.api import Request, RequestStruct, Response
from typing_extensions import override

from pidlease.copier.cluster_reader import ClusterReader
from pidlease.copier.errors import CopyError
from pidlease.copier.settings import CLIENT_ID, METADATA_MS, CopySettings
from pidlease.kafka.api import API_CREATE_TOPICS
from pidlease.kafka.error_codes import TOPIC_ALREADY_EXISTS

_log = logging.getLogger(__name__)

#: How long it may take until a created topic is visible, and how often to look.
_SEEN_S: Final = 30.0
_LOOK_S: Final = 0.1
#: Back-off before a request to a cluster is sent again.
_RETRY_S: Final = 0.5
#: Kafka's own topics, which a pattern does not match.
_INTERNAL: Final = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))
_DEDUPLICATION: Final = "pidlease.deduplication"
_OFF: Final = "off"
#: The first version that leaves the replication factor to the cluster (KIP-464). aiokafka knows up
#: to version 3, which has the same fields.
API_CREATE_TOPICS_VERSION: Final = 4
#: The cluster's default.
_DEFAULT_REPLICATION: Final = -1
Answer = TypeVar("Answer")


class _CreateTopicsResponse(Response):  # type: ignore[misc]  # aiokafka is not typed
    API_KEY = API_CREATE_TOPICS
    API_VERSION = API_CREATE_TOPICS_VERSION
    SCHEMA = CreateTopicsResponse_v3.SCHEMA


class _CreateTopicsStruct(RequestStruct):  # type: ignore[misc]  # aiokafka is not typed
    API_KEY = API_CREATE_TOPICS
    API_VERSION = API_CREATE_TOPICS_VERSION
    RESPONSE_TYPE = _CreateTopicsResponse
    SCHEMA = CreateTopicsRequest_v3.SCHEMA


class _CreateTopic(Request[_CreateTopicsStruct]):  # type: ignore[misc]  # aiokafka is not typed
    """A request to create a topic.

    Parameters:
        timeout_ms: how long the cluster may take.
    """

    API_KEY = API_CREATE_TOPICS

    def __init__(self, topic: str, partitions: int, timeout_ms: int) -> None:
        self._topic: Final = topic
        self._partitions: Final = partitions
        self._timeout_ms: Final = timeout_ms

    @override
    def build(self, request_struct_class: type[_CreateTopicsStruct]) -> _CreateTopicsStruct:
        none: list[object] = []
        topics = [(self._topic, self._partitions, _DEFAULT_REPLICATION, none, none)]
        return request_struct_class(topics, self._timeout_ms, False)  # noqa: FBT003 - not only tried


class Patience(Protocol):
    """How long to wait for a cluster: settings of a copy, or of another client."""

    @property
    def request_timeout_ms(self) -> int:
        """How long a response may take; then the request is sent again."""

    @property
    def give_up_ms(self) -> float:
        """How long requests are sent again to a cluster that does not respond."""


class ClusterConnection:
    """The connections to one cluster.

    Parameters:
        name: "the source" or "the destination", for messages.
        servers: HOST:PORT, or several.
        settings: how long to wait for it.
        security: aiokafka's options for TLS and SASL.
    """

    def __init__(self, name: str, servers: Any, settings: Patience, security: Any) -> None:  # noqa: ANN401 - aiokafka's
        self.name: Final = name
        options = {
            "bootstrap_servers": servers,
            "client_id": CLIENT_ID,
            "request_timeout_ms": settings.request_timeout_ms,
            "metadata_max_age_ms": METADATA_MS,
            **security,
        }
        self.client: Final = AIOKafkaClient(**options)
        self._admin: Final = AIOKafkaAdminClient(**options)
        self.reader: Final = ClusterReader(self.client, name, settings.give_up_ms / 1000)
        self.cluster_id = ""
        self._give_up_s: Final = settings.give_up_ms / 1000
        self._making: Final = asyncio.Lock()

    async def start(self) -> None:
        """Connect, with retries.

        Raises:
            CopyError: no server responds.
        """
        described = await self._again("cannot be reached", self._reach)
        self.cluster_id = str(described.get("cluster_id") or "")

    async def _reach(self) -> dict[str, Any]:
        await self.client.bootstrap()
        await self._admin.start()
        found: dict[str, Any] = await self._admin.describe_cluster()
        return found

    async def _again(self, problem: str, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Send a request, with retries: brokers come and go.

        Raises:
            CopyError: there was no response in time.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._give_up_s
        while True:
            try:
                return await ask()
            except (KafkaError, OSError, TimeoutError) as error:
                if loop.time() > give_up:
                    raise CopyError(f"{self.name} {problem}: {error!r}") from None
                _log.info("%s %s yet: %r", self.name, problem, error)
                await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Close all connections."""
        await self._admin.close()
        await self.client.close()

    async def topics(self) -> set[str]:
        """Return the names of all topics.

        Raises:
            CopyError: the cluster does not respond.
        """
        found = await self._again("does not list its topics", self._admin.list_topics)
        return set(found) - _INTERNAL

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0: there is no such topic.

        Raises:
            CopyError: the cluster does not respond.
        """
        if topic not in await self.topics():
            return 0  # a request with its name might create it
        describe = partial(self._admin.describe_topics, [topic])
        (found,) = await self._again(f"does not describe topic {topic}", describe)
        return len(found["partitions"])

    async def provide(self, topic: str, partitions: int) -> None:
        """Make sure that a topic has at least so many partitions.

        Raises:
            CopyError: it cannot be created or extended, or its deduplication is off.
        """
        async with self._making:
            there = await self.partitions(topic)
            if there < partitions:
                await self._make(topic, there, partitions)
            await self.check_judged(topic)

    async def check_judged(self, topic: str) -> None:
        """Make sure that a topic's deduplication is on.

        Raises:
            CopyError: it is off: records that are sent again would be stored again.
        """
        if await self._setting(topic, _DEDUPLICATION) == _OFF:
            raise CopyError(
                f"{self.name}: topic {topic} has {_DEDUPLICATION}={_OFF}: what is sent again"
                f" would be stored again; set it to on, or copy to another topic (--rename)"
            )

    async def _setting(self, topic: str, name: str) -> str | None:
        """Return a setting of a topic; None: there is no such setting."""
        wanted = ConfigResource(ConfigResourceType.TOPIC, topic, {name: ""})
        describe = partial(self._admin.describe_configs, [wanted])
        for response in await self._again(f"does not return the settings of {topic}", describe):
            for _, _, _, _, entries in response.resources:
                for entry in entries:
                    if entry[0] == name:
                        return str(entry[1])
        return None

    async def _create(self, topic: str, partitions: int) -> None:
        """Create a topic; it is no error if another client does."""
        request = _CreateTopic(topic, partitions, int(_SEEN_S * 1000))
        node = self.client.get_random_node()
        response = await self.client.send(node, request)
        for _, code, message in response.topic_errors:
            if code == TOPIC_ALREADY_EXISTS:
                _log.info("%s: topic %s was created by another client", self.name, topic)
            elif code:
                raise for_code(code)(message or "")

    async def _make(self, topic: str, there: int, partitions: int) -> None:
        try:
            if there:
                await self._admin.create_partitions({topic: NewPartitions(partitions)})
            else:
                await self._create(topic, partitions)
        except (KafkaError, OSError, TimeoutError) as error:
            what = f"topic {topic} with {partitions} partitions"
            raise CopyError(f"{self.name}: no {what}: {error!r}; make it by hand") from None
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _SEEN_S
        while await self.partitions(topic) < partitions:
            if loop.time() > give_up:
                raise CopyError(f"{self.name}: topic {topic} was made, and is not there")
            await asyncio.sleep(_LOOK_S)


def both_sides(settings: CopySettings) -> tuple[ClusterConnection, ClusterConnection]:
    """Return source and destination of a copy, not connected yet."""
    security = {
        "security_protocol": settings.security_protocol, "ssl_context": settings.ssl_context,
    }  # fmt: skip
    return (
        ClusterConnection("the source", settings.source, settings, settings.source_security),
        ClusterConnection("the destination", settings.destination, settings, security),
    )


async def connect(
    settings: CopySettings, source: ClusterConnection, target: ClusterConnection
) -> set[str]:
    """Connect both sides, check that they fit, and return the source's topics.

    Raises:
        CopyError: no server responds, a topic is missing, or the copy would copy itself.
    """
    await source.start()
    await target.start()
    topics = await source.topics()
    if missing := sorted(set(settings.topics) - topics):
        raise CopyError(f"the source has no topic {', '.join(missing)}")
    check_apart(settings, source, target, topics)
    return topics


def check_apart(
    settings: CopySettings, source: ClusterConnection, target: ClusterConnection, topics: set[str]
) -> None:
    """Make sure that a copy does not copy itself.

    Parameters:
        topics: of the source.

    Raises:
        CopyError: it would.
    """
    if not source.cluster_id or source.cluster_id != target.cluster_id:
        return
    same = f"source and destination are the same cluster {source.cluster_id}"
    for topic in sorted(filter(settings.selects, topics)):
        renamed = settings.renamed(topic)
        if renamed == topic:
            raise CopyError(f"{same}: {topic} would be copied to itself; say --rename")
        if settings.selects(renamed):
            raise CopyError(f"{same}: {renamed}, the copy of {topic}, would be copied as well")
