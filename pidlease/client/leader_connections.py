"""Connections to the partitions' leaders, on aiokafka's.

aiokafka's client keeps the metadata; connections for Produce are made here, because a batch must
know the connection it went by: what was sent on one that broke is sent again on another.
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
from pidlease.client.produce_messages import ProduceAnswer, ProduceRequest

_log = logging.getLogger(__name__)

#: Stands for the leader of partitions that have none.
_NOBODY: Final = -1
#: How long, at the end, for a server that was just asked for the cluster.
_LAST_ANSWER_S: Final = 1.0
#: What a connection that cannot be made, or breaks, raises.
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

    def send(self, request: ProduceRequest) -> "asyncio.Future[ProduceAnswer]":
        """Write a request now, in the order of calls.

        Returns:
            What is to be awaited for the answer; it raises one of BROKEN.

        Raises:
            KafkaError: the connection is closed, or the server does not take such requests.
        """
        answer: asyncio.Future[ProduceAnswer] = self._connection.send(request)
        return answer

    def close(self) -> None:
        """Close it; whoever waits for answers is told."""
        self._connection.close(reason=CloseReason.OUT_OF_SYNC)


class LeaderConnections:
    """A connection to each leader, made when it is needed.

    Parameters:
        host: the producer; a partition that waited for a connection is woken.
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
        self._links: dict[int, LeaderConnection] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, set[PartitionQueue]] = {}
        self._failures: Counter[int] = Counter()
        self._bootstraps: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Ask one of the bootstrap servers for the cluster.

        Raises:
            ProducerError: none answered within the request timeout.
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

    def link(self, partition: PartitionQueue) -> LeaderConnection | None:
        """The connection to a partition's leader; None: it is woken when there is one."""
        place = TopicPartition(partition.topic, partition.partition)
        leader = self.client.cluster.leader_for_partition(place)
        node = _NOBODY if leader is None else int(leader)
        link = self._links.get(node)
        if link is not None and link.alive:
            return link
        self._waiting.setdefault(node, set()).add(partition)
        if node not in self._connecting:
            self._connecting[node] = self._host.spawn(self._connect(node))
        return None

    def refresh(self) -> None:
        """Have the metadata asked for again."""
        self.client.force_metadata_update()

    def backoff(self, failures: int) -> float:
        """How many seconds to wait after so many failures in a row (KIP-580)."""
        settings = self._settings
        wait = min(
            settings.retry_backoff_ms * 2.0 ** min(failures - 1, 30), settings.retry_backoff_max_ms
        )
        return wait / 1000 * random.uniform(0.8, 1.2)  # noqa: S311 - no secret

    async def close(self) -> None:
        """Close all; nobody is woken any more."""
        self._waiting.clear()
        for link in self._links.values():
            link.close()
        if self._bootstraps:
            _, late = await asyncio.wait(self._bootstraps, timeout=_LAST_ANSWER_S)
            for task in late:
                task.cancel()
        await self.client.close()

    async def _bootstrap(self) -> None:
        """Ask the bootstrap servers; who is cancelled leaves that to come to its own end.

        aiokafka's `bootstrap` would leave its connection open, for ever.
        """
        task = asyncio.get_running_loop().create_task(self.client.bootstrap())
        self._bootstraps.add(task)
        task.add_done_callback(self._bootstraps.discard)
        await asyncio.shield(task)

    async def _connect(self, node: int) -> None:
        try:
            await self._connected(node)
        finally:
            del self._connecting[node]
        for partition in self._waiting.pop(node, ()):
            self._host.wake(partition)

    async def _connected(self, node: int) -> None:
        """Make a connection, or wait so long that it makes sense to try again."""
        broker = self.client.cluster.broker_metadata(node) if node != _NOBODY else None
        if broker is not None:
            try:
                connection = await self._open(broker.host, broker.port)
            except BROKEN as error:
                _log.info("node %s at %s:%s: %r", node, broker.host, broker.port, error)
            else:
                self._host.metrics.reconnects += node in self._links
                self._links[node] = LeaderConnection(node, connection)
                self._failures[node] = 0
                return
        self._failures[node] += 1
        await self._look_again()
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

    async def _look_again(self) -> None:
        """Ask the nodes for the cluster, and where none answers the bootstrap servers."""
        try:
            if not await self.client.force_metadata_update():
                await self._bootstrap()
        except KafkaError as error:
            _log.info("no metadata: %r", error)
