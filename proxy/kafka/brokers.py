"""The brokers that Kafka clients see: this server alone, or all active servers."""

from collections.abc import Callable, Sequence
from typing import Final

from pidlease.engine.shared_cluster import SharedCluster
from pidlease.kafka.codec.metadata import NODE_ID, BrokerAddress
from proxy.kafka.listener_config import ClusterConfig


class Brokers:
    """The brokers of responses, and the leaders of partitions.

    Parameters:
        config: this server's address.
        shared: the active servers; None: this server is the only broker, and leads everything.
    """

    def __init__(self, config: ClusterConfig, shared: SharedCluster | None = None) -> None:
        self._shared: Final = shared
        node_id = NODE_ID if shared is None else shared.node_id
        #: This server.
        self.own: Final = BrokerAddress(node_id, config.host, config.port)

    def all(self) -> list[BrokerAddress]:
        """Return all brokers; those that are about to leave are left out."""
        if self._shared is None:
            return [self.own]
        return [
            BrokerAddress(each.node_id, each.kafka_host, each.kafka_port)
            for each in self._shared.brokers()
        ]

    def leaders(self, topic: str, partitions: int) -> Sequence[int] | None:
        """Return the leaders of a topic's partitions; -1: none. None: this server leads all."""
        return None if self._shared is None else self._shared.leaders(topic, partitions)

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call a function whenever brokers or leaders have changed."""
        if self._shared is not None:
            self._shared.on_change.append(changed)
