"""The two clusters of a copy: their topics, and that they are not the same."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from pidlease.copier.cluster_reader import ClusterReader
from pidlease.copier.errors import CopyError
from pidlease.copier.settings import CLIENT_ID, METADATA_MS, CopySettings
from pidlease.kafka.client.bootstrap import wrong_settings
from pidlease.kafka.client.cluster import Cluster, View
from pidlease.kafka.client.connection_security import ConnectionSecurity
from pidlease.kafka.client.settings import UpstreamConfig, addresses_of
from pidlease.kafka.client.topic_configs import TOPIC, describe_configs
from pidlease.kafka.client.topic_creation import RefusedChangeError, add_partitions, create_topic
from pidlease.kafka.error_codes import TOPIC_ALREADY_EXISTS
from pidlease.kafka.errors import UpstreamError

_log = logging.getLogger(__name__)

#: How long it may take until a created topic is visible, and how often to look.
_SEEN_S: Final = 30.0
_LOOK_S: Final = 0.1
#: Back-off before a request to a cluster is sent again.
_RETRY_S: Final = 0.5
_DEDUPLICATION: Final = "pidlease.deduplication"
_OFF: Final = "off"
Answer = TypeVar("Answer")


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
        security: TLS and SASL.
        client_id: the name of this client in the cluster's logs.
        only_pidlease: whether to refuse brokers that are no server of pidlease.
    """

    def __init__(
        self,
        name: str,
        servers: str | Sequence[str],
        settings: Patience,
        security: ConnectionSecurity,
        client_id: str = CLIENT_ID,
        *,
        only_pidlease: bool = False,
    ) -> None:
        self.name: Final = name
        config = _config(servers, settings, security, client_id)
        self.cluster: Final = Cluster(replace(config, only_pidlease=only_pidlease))
        self._give_up_s: Final = settings.give_up_ms / 1000
        self.reader: Final = ClusterReader(self.cluster, name, self._give_up_s)
        self._making: Final = asyncio.Lock()

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty before `start`, or if it has none."""
        return self.cluster.view.cluster_id

    async def start(self) -> None:
        """Connect, with retries.

        Raises:
            CopyError: no server responds; or at once, TLS or the login does not fit, or it is not
                pidlease.
        """
        await self._again("cannot be reached", self._connect)

    async def _connect(self) -> None:
        try:
            await self.cluster.start()
        except UpstreamError as error:
            if (wrong := await wrong_settings(self.cluster.config, error)) is None:
                raise
            raise CopyError(f"{self.name} cannot be reached: {wrong}") from None

    async def _again(self, problem: str, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """Send a request, with retries: brokers come and go.

        Raises:
            CopyError: there was no response in time.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._give_up_s
        while True:
            try:
                return await request()
            except UpstreamError as error:
                if loop.time() > give_up:
                    raise CopyError(f"{self.name} {problem}: {error}") from None
                _log.info("%s %s yet: %s", self.name, problem, error)
                await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Close all connections."""
        await self.cluster.close()

    async def topics(self) -> dict[str, int]:
        """Return the numbers of partitions of all topics, without Kafka's own.

        Raises:
            CopyError: the cluster does not respond.
        """
        found = await self._look_up(None, "does not list its topics")
        return {
            name: len(topic.leaders) for name, topic in found.topics.items() if not topic.internal
        }

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0: there is no such topic.

        Raises:
            CopyError: the cluster does not respond.
        """
        found = (await self._look_up([topic], f"does not describe topic {topic}")).topics.get(topic)
        return 0 if found is None or found.internal else len(found.leaders)

    async def _look_up(self, topics: Sequence[str] | None, problem: str) -> View:
        return await self._again(problem, lambda: self.cluster.look_up(topics))

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

        async def describe() -> dict[str, dict[str, str | None]]:
            connection = await self.cluster.any_connection()
            return await describe_configs(connection, TOPIC, [topic], (name,))

        found = await self._again(f"does not return the settings of {topic}", describe)
        return found.get(topic, {}).get(name)

    async def _make(self, topic: str, there: int, partitions: int) -> None:
        """Create or extend a topic; it is no error if another client does."""
        what = f"topic {topic} with {partitions} partitions"
        try:
            await (add_partitions if there else create_topic)(self.cluster, topic, partitions)
        except RefusedChangeError as error:
            if error.code != TOPIC_ALREADY_EXISTS:
                raise CopyError(f"{self.name}: no {what}: {error}; make it by hand") from None
            _log.info("%s: topic %s was created by another client", self.name, topic)
        except UpstreamError as error:
            raise CopyError(f"{self.name}: no {what}: {error}; make it by hand") from None
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _SEEN_S
        while await self.partitions(topic) < partitions:
            if loop.time() > give_up:
                raise CopyError(f"{self.name}: topic {topic} was made, and is not there")
            await asyncio.sleep(_LOOK_S)


def _config(
    servers: str | Sequence[str], settings: Patience, security: ConnectionSecurity, client_id: str
) -> UpstreamConfig:
    """Return the settings of the connections.

    Raises:
        ValueError: an option is invalid; the text names it.
    """
    if security.security_problem:
        raise ValueError(security.security_problem)
    seconds = settings.request_timeout_ms / 1000
    config = UpstreamConfig(
        addresses_of(servers),
        client_id=client_id,
        connect_seconds=seconds,
        request_seconds=seconds,
        metadata_seconds=METADATA_MS / 1000,
    )
    return security.secured(config)


def both_sides(settings: CopySettings) -> tuple[ClusterConnection, ClusterConnection]:
    """Return source and destination of a copy, not connected yet."""
    return (
        ClusterConnection("the source", settings.source, settings, settings.source_connection),
        ClusterConnection("the destination", settings.destination, settings, settings),
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
    topics = set(await source.topics())
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
