"""Connections to the leaders of partitions."""

import asyncio
import logging
import random
from collections import Counter
from typing import Final

from pidlease.client.errors import ProducerError
from pidlease.client.partition_queue import ConnectionHost, PartitionQueue
from pidlease.client.settings import ProducerSettings
from pidlease.core.backoff import Backoff
from pidlease.kafka.client.bootstrap import connect, wrong_settings
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.cluster import NO_LEADER, Cluster, UpstreamTopic
from pidlease.kafka.client.settings import UpstreamConfig, addresses_of
from pidlease.kafka.codec.messages import error_name
from pidlease.kafka.error_codes import INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED
from pidlease.kafka.errors import UpstreamError

_log = logging.getLogger(__name__)

_JITTER: Final = 0.2
#: After so many seconds without a response, the log says so.
_SLOW_S: Final = 1.0
#: A topic is dropped from the metadata requests after so many seconds without use, or up to twice
#: as many.
_IDLE_S: Final = 300.0
#: Waiting does not change these.
_FINAL: Final = frozenset({INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED})


class LeaderConnections:
    """A connection to each leader, opened when it is needed.

    Parameters:
        host: the producer; its partitions that wait for a connection are woken.
    """

    def __init__(self, host: ConnectionHost) -> None:
        self._host: Final[ConnectionHost] = host
        self._settings: Final = host.settings
        self.cluster: Final = Cluster(_config(host.settings))
        self._connections: dict[int, BrokerConnection] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, set[PartitionQueue]] = {}
        self._failures: Counter[int] = Counter()
        #: Why there is no connection to a node.
        self._obstacles: dict[int, str] = {}
        #: The topics used since idle ones were last dropped.
        self._used: set[str] = set()

    async def start(self) -> None:
        """Load the metadata from one of the bootstrap servers.

        Raises:
            ProducerError: none responded within the request timeout; or at once, TLS or the login
                does not fit the server, or it is not pidlease.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._settings.request_timeout_ms / 1000
        failures = 0
        timer = loop.call_later(_SLOW_S, self._warn_slow)
        while True:
            try:
                await self.cluster.start()
            except UpstreamError as error:
                if (wrong := await wrong_settings(self.cluster.config, error)) is not None:
                    raise ProducerError(str(wrong)) from wrong
                failures += 1
                _log.log(
                    logging.INFO if failures > 1 else logging.WARNING,
                    "no bootstrap server responds: %s", error,
                )  # fmt: skip
                wait = self.backoff(failures)
                if loop.time() + wait >= give_up:
                    raise ProducerError(f"no bootstrap server responds: {error}") from None
                await asyncio.sleep(wait)
            else:
                self._host.spawn(self._drop_idle_topics())
                return
            finally:
                timer.cancel()

    def _warn_slow(self) -> None:
        servers = ", ".join(f"{host}:{port}" for host, port in self.cluster.config.bootstrap)
        _log.warning("no bootstrap server responds within %g s: %s", _SLOW_S, servers)

    async def topic(self, name: str) -> UpstreamTopic:
        """Return a topic, with its metadata loaded from now on; an unknown one may be created.

        Raises:
            ProducerError: for the request timeout, the servers did not have it; it may not be
                seen; or for the delivery timeout, no server returned metadata.
        """
        cluster, loop = self.cluster, asyncio.get_running_loop()
        self._used.add(name)
        began = loop.time()
        while (found := cluster.view.topics.get(name)) is None:
            cluster.topics.add(name)
            cluster.new.add(name)
            failure = await cluster.load()
            if name in cluster.view.topics:
                continue
            waited_ms = (loop.time() - began) * 1000
            code = cluster.view.errors.get(name)
            if failure is not None or code is None:  # that is not "unknown"
                if waited_ms > self._settings.delivery_timeout_ms:
                    raise ProducerError(f"topic {name}: no server returns its metadata: {failure}")
            elif code in _FINAL or waited_ms > self._settings.request_timeout_ms:
                raise ProducerError(f"topic {name}: {error_name(code)}")
            await asyncio.sleep(self._settings.retry_backoff_ms / 1000)
        return found

    def connection(self, partition: PartitionQueue) -> BrokerConnection | None:
        """Return the connection to a partition's leader; None: it is woken when there is one."""
        self._used.add(partition.topic)
        node = self._leader(partition)
        connection = self._connections.get(node)
        if connection is not None and connection.open:
            return connection
        self.cluster.topics.add(partition.topic)
        self._waiting.setdefault(node, set()).add(partition)
        if node not in self._connecting:
            self._connecting[node] = self._host.spawn(self._connect(node))
        return None

    def obstacle(self, partition: PartitionQueue) -> str:
        """Return why there is no connection to a partition's leader; empty: none has failed."""
        node = self._leader(partition)
        return self._obstacles.get(node, "")

    def refresh(self) -> None:
        """Load the metadata again, in the background."""
        self.cluster.stale()

    def backoff(self, failures: int) -> float:
        """Return how many seconds to wait after so many failures in a row (KIP-580)."""
        return _backoff(self._settings)._replace(jitter=_JITTER).seconds(failures, random.uniform)

    async def close(self) -> None:
        """Close all connections; no partition is woken any more."""
        self._waiting.clear()
        for connection in self._connections.values():
            connection.close()
        await self.cluster.close()

    def _leader(self, partition: PartitionQueue) -> int:
        return self.cluster.view.leader(partition.topic, partition.partition)

    async def _drop_idle_topics(self) -> None:
        """Request no metadata of topics without use; their next record loads it again."""
        while True:
            await asyncio.sleep(_IDLE_S)
            queues = self._host.partitions.values()
            pending = {each.topic for each in queues if each.oldest is not None}
            self.cluster.topics.intersection_update(self._used | pending)
            self._used = pending

    async def _connect(self, node: int) -> None:
        try:
            await self._open_or_wait(node)
        finally:
            del self._connecting[node]
        for partition in self._waiting.pop(node, ()):
            self._host.wake(partition)

    async def _open_or_wait(self, node: int) -> None:
        """Open a connection, or back off."""
        if node != NO_LEADER and await self._open(node):
            self._failures[node] = 0
            return
        self._failures[node] += 1
        await self.cluster.load()
        if node == NO_LEADER and any(
            self._leader(each) != NO_LEADER for each in self._waiting.get(node, ())
        ):
            return  # a topic that was idle, or a leader was elected
        await asyncio.sleep(self.backoff(self._failures[node]))

    async def _open(self, node: int) -> bool:
        """Open a connection, and return whether that succeeded."""
        try:
            connection = await connect(self.cluster.config, self.cluster.address(node))
        except UpstreamError as error:
            level = logging.INFO if node in self._obstacles else logging.WARNING
            _log.log(level, "node %s: %s", node, error)
            self._obstacles[node] = str(error)
            return False
        self._obstacles.pop(node, None)
        self._host.metrics.reconnects += node in self._connections
        self._connections[node] = connection
        return True


def _backoff(settings: ProducerSettings) -> Backoff:
    return Backoff(settings.retry_backoff_ms / 1000, settings.retry_backoff_max_ms / 1000)


def _config(settings: ProducerSettings) -> UpstreamConfig:
    seconds = settings.request_timeout_ms / 1000
    config = UpstreamConfig(
        addresses_of(settings.bootstrap_servers),
        only_pidlease=True,
        client_id=settings.client_id,
        connect_seconds=seconds,
        request_seconds=seconds,
        metadata_seconds=settings.metadata_max_age_ms / 1000,
        refresh_backoff=_backoff(settings),
    )
    return settings.secured(config)
