"""Gives each client its own connections to Kafka's brokers.

Kafka handles one request of a connection at a time. On a shared connection, a client that waits for
records or for its group would hold up all others.
"""

import asyncio
from typing import Final

from pidlease.kafka.client.bootstrap import connect
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.codec.primitives import RequestHeader
from pidlease.kafka.errors import UpstreamRefusedError
from proxy.kafka.client_connection import KafkaConnection


class ClientBrokers:
    """One client's connections to brokers.

    Attributes:
        order: held while a request is sent, so that requests are sent in the client's order.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.order: Final = asyncio.Lock()
        self._cluster = cluster
        self._connections: dict[tuple[int, bool], BrokerConnection] = {}

    async def connection(
        self, broker: int, header: RequestHeader, *, polling: bool = False
    ) -> BrokerConnection:
        """Return the connection to a broker for a client's request; open it if necessary.

        Parameters:
            broker: the broker's id.
            header: of the client's request, which is sent to the broker in its version.
            polling: whether to return the one for requests that wait for records, which would hold
                up others.

        Raises:
            UpstreamError: the broker does not answer, or is unknown, or it was rolled back to
                another version of Kafka after the client had asked for the served versions.
        """
        address = self._cluster.address(broker)
        connection = self._connections.get((broker, polling))
        if connection is None or not connection.open or connection.address != address:
            if connection is not None:
                connection.close()
            connection = await connect(self._cluster.config, address)
            self._connections[broker, polling] = connection
        lowest, highest = connection.versions.get(header.api_key, (0, -1))
        if not lowest <= header.version <= highest:
            raise UpstreamRefusedError(
                f"{connection} serves versions {lowest} to {highest} of API {header.api_key} now,"
                f" and the client uses {header.version}: it has to ask for the versions again"
            )
        return connection

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()


class BrokersOfClients:
    """The connections to brokers of all clients."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._brokers: dict[KafkaConnection, ClientBrokers] = {}

    def of(self, connection: KafkaConnection) -> ClientBrokers:
        """Return a client's connections."""
        brokers = self._brokers.get(connection)
        if brokers is None:
            brokers = self._brokers[connection] = ClientBrokers(self._cluster)
        return brokers

    def closed(self, connection: KafkaConnection) -> None:
        """Close a disconnected client's connections."""
        brokers = self._brokers.pop(connection, None)
        if brokers is not None:
            brokers.close()
