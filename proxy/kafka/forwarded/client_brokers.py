"""A client's own connections to brokers: what it asks waits for nobody else.

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
        self._links: dict[tuple[int, bool], BrokerConnection] = {}

    async def link(self, broker: int, *, polling: bool = False) -> BrokerConnection:
        """The connection to a broker.

        Parameters:
            broker: its id.
            polling: whether it is for requests that wait for records: others do not wait behind.

        Raises:
            UpstreamError: it does not answer, or is not known.
        """
        address = self._cluster.address(broker)
        link = self._links.get((broker, polling))
        if link is None or not link.open or link.address != address:
            if link is not None:
                link.close()
            link = await connect(self._cluster.config, address)
            self._links[broker, polling] = link
        return link

    def close(self) -> None:
        """The client is gone."""
        for link in self._links.values():
            link.close()


class BrokersOfClients:
    """Those of all clients.

    Parameters:
        cluster: the brokers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._links: dict[KafkaConnection, ClientBrokers] = {}

    def of(self, connection: KafkaConnection) -> ClientBrokers:
        """A client's."""
        links = self._links.get(connection)
        if links is None:
            links = self._links[connection] = ClientBrokers(self._cluster)
        return links

    def closed(self, connection: KafkaConnection) -> None:
        """A client is gone."""
        links = self._links.pop(connection, None)
        if links is not None:
            links.close()
