"""Connections to the leaders of partitions.

aiokafka's client keeps the metadata. Connections for Produce are opened here, because a batch must
know its connection: batches of a broken connection are sent again on another.
"""

import asyncio
import logging
import random
from collections import Counter
from typing import Final

from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, CloseReason, create_conn
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from pidlease.client.errors import ProducerError
from pidlease.client.partition_queue import ConnectionHost, PartitionQueue
from pidlease.client.produce_messages import ProduceRequestV8, ProduceResponseV8
from pidlease.core.backoff import Backoff

_log = logging.getLogger(__name__)

_JITTER: Final = 0.2

#: The node id that stands for the leader of partitions without one.
_NO_LEADER: Final = -1
#: How long `close` waits for a metadata response.
_LAST_ANSWER_S: Final = 1.0
#: The errors of a connection that cannot be opened, or breaks.
BROKEN: Final = (OSError, TimeoutError, KafkaError)


class LeaderConnection:
    """A connection to a node.

    Parameters:
        node: the node's id.
        connection: open.
    """

    __slots__ = ("_connection", "node")

    def __init__(self, node: int, connection: AIOKafkaConnection) -> None:
        self.node: Final = node
        self._connection: Final = connection

    @property
    def alive(self) -> bool:
        """Whether requests may be written to it."""
        return bool(self._connection.connected())

    def send(self, request: ProduceRequestV8) -> "asyncio.Future[ProduceResponseV8]":
        """Write a request now, in the order of calls.

        Returns:
            A future of the response; it raises one of BROKEN.

        Raises:
            KafkaError: the connection is closed, or the server does not support such requests.
        """
        response: asyncio.Future[ProduceResponseV8] = self._connection.send(request)
        return response

    def close(self) -> None:
        """Close it; futures of responses fail."""
        self._connection.close(reason=CloseReason.OUT_OF_SYNC)


class LeaderConnections:
    """A connection to each leader, opened when it is needed.

    Parameters:
        host: the producer; its partitions that wait for a connection are woken.
    """

    def __init__(self, host: ConnectionHost) -> None:
        settings = host.settings
        self._host: Final[ConnectionHost] = host
        self._settings: Final = settings
        self.client: Final = AIOKafkaClient(
            bootstrap_servers=settings.bootstrap_servers,
            client_id=settings.client_id,
            metadata_max_age_ms=settings.metadata_max_age_ms,
            request_timeout_ms=settings.request_timeout_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            security_protocol=settings.security_protocol,
            ssl_context=settings.ssl_context,
        )
        self._connections: dict[int, LeaderConnection] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, set[PartitionQueue]] = {}
        self._failures: Counter[int] = Counter()
        self._bootstraps: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Load the metadata from one of the bootstrap servers.

        Raises:
            ProducerError: none responded within the request timeout.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._settings.request_timeout_ms / 1000
        failures = 0
        while True:
            try:
                await self._bootstrap()
            except KafkaError as error:
                failures += 1
                wait = self.backoff(failures)
                if loop.time() + wait >= give_up:
                    raise ProducerError(str(error)) from None
                await asyncio.sleep(wait)
            else:
                return

    def connection(self, partition: PartitionQueue) -> LeaderConnection | None:
        """Return the connection to a partition's leader; None: it is woken when there is one."""
        place = TopicPartition(partition.topic, partition.partition)
        leader = self.client.cluster.leader_for_partition(place)
        node = _NO_LEADER if leader is None else int(leader)
        connection = self._connections.get(node)
        if connection is not None and connection.alive:
            return connection
        self._waiting.setdefault(node, set()).add(partition)
        if node not in self._connecting:
            self._connecting[node] = self._host.spawn(self._connect(node))
        return None

    def refresh(self) -> None:
        """Load the metadata again, in the background."""
        self.client.force_metadata_update()

    def backoff(self, failures: int) -> float:
        """Return how many seconds to wait after so many failures in a row (KIP-580)."""
        settings = self._settings
        backoff = Backoff(
            settings.retry_backoff_ms / 1000, settings.retry_backoff_max_ms / 1000, _JITTER
        )
        return backoff.seconds(failures, random.uniform)

    async def close(self) -> None:
        """Close all connections; no partition is woken any more."""
        self._waiting.clear()
        for connection in self._connections.values():
            connection.close()
        if self._bootstraps:
            _, late = await asyncio.wait(self._bootstraps, timeout=_LAST_ANSWER_S)
            for task in late:
                task.cancel()
        await self.client.close()

    async def _bootstrap(self) -> None:
        """Load the metadata from the bootstrap servers.

        aiokafka's `bootstrap` runs to its end even if the caller is cancelled: cancelled itself, it
        would leave its connection open for ever.
        """
        task = asyncio.get_running_loop().create_task(self.client.bootstrap())
        self._bootstraps.add(task)
        task.add_done_callback(self._bootstraps.discard)
        await asyncio.shield(task)

    async def _connect(self, node: int) -> None:
        try:
            await self._open_or_wait(node)
        finally:
            del self._connecting[node]
        for partition in self._waiting.pop(node, ()):
            self._host.wake(partition)

    async def _open_or_wait(self, node: int) -> None:
        """Open a connection, or back off."""
        broker = self.client.cluster.broker_metadata(node) if node != _NO_LEADER else None
        if broker is not None:
            try:
                connection = await self._open(broker.host, broker.port)
            except BROKEN as error:
                _log.info("node %s at %s:%s: %r", node, broker.host, broker.port, error)
            else:
                self._host.metrics.reconnects += node in self._connections
                self._connections[node] = LeaderConnection(node, connection)
                self._failures[node] = 0
                return
        self._failures[node] += 1
        await self._load_metadata()
        await asyncio.sleep(self.backoff(self._failures[node]))

    async def _open(self, host: str, port: int) -> AIOKafkaConnection:
        settings = self._settings
        return await create_conn(
            host,
            port,
            client_id=settings.client_id,
            request_timeout_ms=settings.request_timeout_ms,
            ssl_context=settings.ssl_context,
            security_protocol=settings.security_protocol,
        )

    async def _load_metadata(self) -> None:
        """Load the metadata from a node; if none responds, from the bootstrap servers."""
        try:
            if not await self.client.force_metadata_update():
                await self._bootstrap()
        except KafkaError as error:
            _log.info("no metadata: %r", error)
