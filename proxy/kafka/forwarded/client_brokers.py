"""A client's own connections to brokers: its requests wait for no other client.

Kafka works on one request of a connection at a time. A client that waits (for records, for its
group) would hold up all others that shared its connection.
"""

import asyncio
from typing import Final

from pidlease.kafka.client.bootstrap import connect
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.cluster import Cluster
from proxy.kafka.client_connection import KafkaConnection


class ClientBrokers:
    """One client's.

    Parameters:
        cluster: the brokers.

    Attributes:
        order: held while a request is sent: what a client sends first goes out first.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.order: Final = asyncio.Lock()
        self._cluster = cluster
        self._connections: dict[tuple[int, bool], BrokerConnection] = {}

    async def connection(self, broker: int, *, polling: bool = False) -> BrokerConnection:
        """The connection to a broker.

        Parameters:
            broker: its id.
            polling: whether it is for requests that wait for records: others do not wait for them.

        Raises:
            UpstreamError: it does not answer, or is not known.
        """
        address = self._cluster.address(broker)
        connection = self._connections.get((broker, polling))
        if connection is None or not connection.open or connection.address != address:
            if connection is not None:
                connection.close()
            connection = await connect(self._cluster.config, address)
            self._connections[broker, polling] = connection
        return connection

    def close(self) -> None:
        """The client is gone."""
        for connection in self._connections.values():
            connection.close()


class BrokersOfClients:
    """Those of all clients.

    Parameters:
        cluster: the brokers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._brokers: dict[KafkaConnection, ClientBrokers] = {}

    def of(self, connection: KafkaConnection) -> ClientBrokers:
        """A client's."""
        brokers = self._brokers.get(connection)
        if brokers is None:
            brokers = self._brokers[connection] = ClientBrokers(self._cluster)
        return brokers

    def closed(self, connection: KafkaConnection) -> None:
        """A client is gone."""
        brokers = self._brokers.pop(connection, None)
        if brokers is not None:
            brokers.close()
