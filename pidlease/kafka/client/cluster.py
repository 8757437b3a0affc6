"""The metadata of a cluster: its brokers, its topics, and the leaders of their partitions."""

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pidlease.kafka.api import API_METADATA
from pidlease.kafka.client.bootstrap import connect
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.exchange import ask, ask_slowly, read, request_for
from pidlease.kafka.client.settings import Address, UpstreamConfig
from pidlease.kafka.error_codes import TOPIC_ABSENT, UNKNOWN_TOPIC_OR_PARTITION
from pidlease.kafka.errors import UpstreamAwayError, UpstreamError, UpstreamNonsenseError
from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import LINES, kind_of

#: No topic has so many partitions: a response that claims more gets no memory.
_PARTITIONS_MAX: Final = 1 << 20
_PORTS_MAX: Final = 1 << 16
#: The leader of a partition that has none now.
NO_LEADER: Final = -1
#: The namespace of the ids of topics without one: ids come from the names.
_NAMESPACE: Final = uuid.UUID("8f1b6d2e-53a4-4a0e-9c1d-70a5b2f3c6d1")

_log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class UpstreamTopic:
    """A topic of the cluster.

    Attributes:
        name: its name.
        topic_id: distinguishes it from a later one of the name, as hex; Kafka's own from 2.8 on.
        internal: one of Kafka's own.
        leaders: the broker that leads each partition, by number; -1: none for now.
        epochs: the leader epoch of each partition; it rises with every change of its leader.
        compacted: whether Kafka removes its records by their keys; None: unknown.
    """

    name: str
    topic_id: str
    internal: bool
    leaders: tuple[int, ...]
    epochs: tuple[int, ...] = ()
    compacted: bool | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The cluster at a moment.

    Attributes:
        cluster_id: its id.
        controller: the broker that makes changes; -1: any.
        brokers: their addresses, by id.
        topics: by name.
        errors: Kafka's error codes of requested topics without partitions.
    """

    cluster_id: str = ""
    controller: int = -1
    brokers: Mapping[int, Address] = field(default_factory=dict)
    topics: Mapping[str, UpstreamTopic] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict, compare=False)

    def has(self, topic: str, partition: int) -> bool:
        """Whether there is such a partition."""
        found = self.topics.get(topic)
        return found is not None and 0 <= partition < len(found.leaders)

    def leader(self, topic: str, partition: int) -> int:
        """Return the broker that leads a partition; -1: none, or there is no such partition."""
        found = self.topics.get(topic)  # not by `has`: this runs for each batch
        if found is None or not 0 <= partition < len(found.leaders):
            return NO_LEADER
        return found.leaders[partition]

    def absent(self, topics: Iterable[str]) -> Set[str]:
        """Return those of the requested topics that do not exist, or may not be seen."""
        return {
            name
            for name in topics
            if name not in self.topics
            and self.errors.get(name, UNKNOWN_TOPIC_OR_PARTITION) in TOPIC_ABSENT
        }


class Cluster:
    """Connections to brokers, and the metadata of the topics that are used.

    The metadata is refreshed from time to time, and soon after something does not match it.

    Parameters:
        config: the settings of the connections.

    Attributes:
        topics: the topics to request.
        new: those of `topics` that Kafka may create (auto.create.topics.enable), in one request.
        view: the metadata.
        on_change: called, on the event loop, after a change: the view before, and the new one.
    """

    def __init__(self, config: UpstreamConfig) -> None:
        self.config: Final = config
        self.topics: Final[set[str]] = set()
        self.new: set[str] = set()
        self.view: View = View()
        self.on_change: Final[list[Callable[[View, View], None]]] = []
        self._connections: dict[Address, BrokerConnection] = {}
        #: The broker that was asked last, of those for short requests.
        self._last: Address | None = None
        self._connecting: dict[Address, asyncio.Lock] = {}
        self._stale = asyncio.Event()
        self._refreshed = asyncio.Condition()
        #: How many refreshes have begun, and how many of them have ended.
        self._begun = self._ended = 0
        self._refreshing: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        #: Held while the view is requested and replaced: no older response replaces a newer one.
        self._viewing: Final = asyncio.Lock()

    async def start(self) -> None:
        """Load the metadata, and refresh it from now on.

        Raises:
            UpstreamError: no broker responds.
        """
        await self._load()
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh_often())

    async def close(self) -> None:
        """Stop refreshing, and close all connections."""
        for task in (self._refreshing, self._loading):
            if task is not None and not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        for connection in self._connections.values():
            connection.close()

    # ------------------------------------------------------------------ connections

    async def any_connection(self) -> BrokerConnection:
        """Return a connection to some broker, for short requests.

        Raises:
            UpstreamError: none responds; the last broker's reason.
        """
        error: UpstreamError = UpstreamAwayError("no broker of Kafka is known")
        for address in self._addresses():
            try:
                connection = await self._connection(address)
            except UpstreamError as failure:
                error = failure
            else:
                self._last = address
                return connection
        raise error

    async def connection_to(self, broker: int) -> BrokerConnection:
        """Return a connection to a broker, for short requests.

        Raises:
            UpstreamError: it does not respond, or is unknown.
        """
        return await self._connection(self.address(broker))

    def address(self, broker: int) -> Address:
        """Return a broker's address.

        Raises:
            UpstreamAwayError: there is no broker with this id.
        """
        found = self.view.brokers.get(broker)
        if found is None:
            self.stale()
            raise UpstreamAwayError(f"Kafka has no broker {broker} now")
        return found

    def _addresses(self) -> list[Address]:
        """Return the brokers' addresses, those with an open connection first.

        Of these, the last one that was asked is the first: the metadata of others may lag.
        """
        known = [*self.view.brokers.values(), *self.config.bootstrap]
        known.sort(key=lambda each: (not self._is_open(each), each != self._last))
        return list(dict.fromkeys(known))

    def connected(self, broker: int) -> bool:
        """Return whether a connection to a broker is open, for short requests."""
        return self._is_open(self.view.brokers.get(broker, ("", 0)))

    def _is_open(self, address: Address) -> bool:
        connection = self._connections.get(address)
        return connection is not None and connection.open

    async def _connection(self, address: Address) -> BrokerConnection:
        async with self._connecting.setdefault(address, asyncio.Lock()):
            if not self._is_open(address):
                self._connections[address] = await connect(self.config, address)
            return self._connections[address]

    async def ask(self, api_key: int, broker: int | None = None, **values: object) -> Any:  # noqa: ANN401 - one of kio's classes
        """Send a short request to a broker, and return the response.

        Parameters:
            api_key: the API.
            broker: its id; None: any broker.
            values: the request's fields.

        Raises:
            UpstreamError: there is no response.
        """
        connection = await (self.any_connection() if broker is None else self.connection_to(broker))
        request = request_for(connection, api_key)
        return await ask(connection, request, request.encode(**values))

    # ------------------------------------------------------------------ metadata

    def stale(self) -> None:
        """Refresh the metadata soon: something did not match it."""
        self._stale.set()

    async def refresh(self) -> None:
        """Return after the next refresh that begins, even if it fails."""
        async with self._refreshed:
            wanted = self._begun + 1  # not the running one
            self.stale()
            await self._refreshed.wait_for(lambda: self._ended >= wanted)

    async def load(self) -> UpstreamError | None:
        """Load the metadata now; concurrent callers share one request.

        Returns:
            why it could not be loaded; None: it was.
        """
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._load())
        try:
            await asyncio.shield(self._loading)
        except UpstreamError as error:
            LINES.write(_log, "info", "Kafka does not return its metadata",
                        kind_of(error), error=str(error))  # fmt: skip
            return error
        return None

    async def look_up(
        self,
        topics: Collection[str] | None,
        *,
        create: bool = False,
        connection: BrokerConnection | None = None,
    ) -> View:
        """Request topics once, and return what a broker returns; `view` stays as it is.

        Parameters:
            topics: their names; None: all.
            create: whether Kafka may create them.
            connection: to the broker; None: any broker.

        Raises:
            UpstreamError: no broker responds.
        """
        asked = await self.any_connection() if connection is None else connection
        return await self._view_of(asked, topics, create=create)

    async def _refresh_often(self) -> None:
        unchanged = 1
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.metadata_seconds):
                    await self._stale.wait()
            self._stale.clear()
            self._begun += 1
            before = self.view
            try:
                await self._load()
                # While nothing changes, more refreshes do not help.
                unchanged = unchanged + 1 if self.view == before else 1
            except UpstreamError as error:
                LINES.write(_log, "warning", "Kafka does not return its metadata",
                            kind_of(error), error=str(error))  # fmt: skip
                self._stale.set()
                unchanged += 1
            except Exception as error:  # noqa: BLE001 - a bug of a listener; refresh again later
                LINES.write(_log, "error", "a change in Kafka's metadata could not be handled",
                            kind_of(error), error, error=repr(error))  # fmt: skip
            async with self._refreshed:
                self._ended = self._begun
                self._refreshed.notify_all()
            await asyncio.sleep(self.config.refresh_backoff.seconds(unchanged))

    async def _load(self) -> None:
        started = time.monotonic()
        async with self._viewing:
            self._show(await self._find(await self.any_connection()), started)

    async def _find(self, connection: BrokerConnection) -> View:
        """Request the view from a broker.

        Raises:
            UpstreamError: it does not respond.
        """
        new, self.new = self.new, set()
        found = await self._view_of(connection, self.topics - new)
        if not new:
            return found
        created = await self._view_of(connection, new, create=True)
        topics, errors = {**found.topics, **created.topics}, {**found.errors, **created.errors}
        return replace(created, topics=topics, errors=errors)

    def _show(self, found: View, started: float) -> None:
        """Replace the view.

        Parameters:
            started: when it was requested, in seconds of the monotonic clock.
        """
        before, self.view = self.view, found
        for address in self._connections.keys() - self.view.brokers.values():
            if address not in self.config.bootstrap:
                self._connections.pop(address).close()
        if self.view != before:
            _log.debug("Kafka's metadata has changed", brokers=len(self.view.brokers),
                       topics=len(self.view.topics),
                       seconds=round(time.monotonic() - started, 3))  # fmt: skip
            for changed in self.on_change:
                changed(before, self.view)

    async def _view_of(
        self, connection: BrokerConnection, topics: Collection[str] | None, *, create: bool = False
    ) -> View:
        """Request metadata.

        Parameters:
            connection: to the broker.
            topics: their names; None: all.
            create: whether Kafka may create them.

        Raises:
            UpstreamError: the broker does not respond, or has no metadata yet.
        """
        request = request_for(connection, API_METADATA)
        wanted = None if topics is None else tuple(
            request.part("MetadataRequestTopic", name=name, topic_id=None) for name in topics
        )  # fmt: skip
        body = request.encode(
            topics=wanted, allow_auto_topic_creation=create,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )  # fmt: skip
        found = read(connection, await ask_slowly(connection, request, body), _view)
        if not found.brokers:
            # It has just started (under ZooKeeper).
            connection.close()
            raise UpstreamAwayError(f"{connection} does not know of any broker yet")
        return found


def _view(response: Any) -> View:  # noqa: ANN401 - one of kio's classes
    """Convert a response to Metadata.

    Raises:
        UpstreamNonsenseError: no cluster is like that.
    """
    topics, errors = {}, {}
    for topic in response.topics:
        if topic.error_code.value and not topic.partitions:
            # It is being created or deleted, or may not be seen.
            errors[str(topic.name)] = int(topic.error_code.value)
            continue
        numbers = {int(each.partition_index) for each in topic.partitions}
        if any(not 0 <= each < _PARTITIONS_MAX for each in numbers):
            raise UpstreamNonsenseError(
                f"topic {topic.name} has partitions {min(numbers)} to {max(numbers)}"
            )
        leaders = [NO_LEADER] * (1 + max(numbers, default=-1))
        epochs = [-1] * len(leaders)
        for partition in topic.partitions:
            leaders[partition.partition_index] = int(partition.leader_id)
            epochs[partition.partition_index] = int(getattr(partition, "leader_epoch", -1))
        topic_id = getattr(topic, "topic_id", None) or uuid.uuid5(_NAMESPACE, topic.name)
        topics[str(topic.name)] = UpstreamTopic(
            str(topic.name), topic_id.hex, bool(topic.is_internal), tuple(leaders), tuple(epochs)
        )
    brokers = {int(each.node_id): (str(each.host), int(each.port)) for each in response.brokers}
    for node_id, (host, port) in brokers.items():
        if not host or not 0 < port < _PORTS_MAX:
            raise UpstreamNonsenseError(f"broker {node_id} is at {host}:{port}")
    return View(response.cluster_id or "", int(response.controller_id), brokers, topics, errors)
