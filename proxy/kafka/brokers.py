"""The brokers that Kafka clients see: this server alone, or all active servers."""

from collections.abc import Callable, Sequence
from typing import Final

from pidlease.engine.shared_cluster import SharedCluster
from pidlease.kafka.codec.metadata import NO_LISTENER, NODE_ID, BrokerAddress
from proxy.kafka.listener_config import ClusterConfig


class Brokers:
    """The brokers of responses, and the leaders of partitions, as clients of a listener see them.

    As in Kafka, a broker without a listener of that name is left out.

    Parameters:
        config: this server's addresses.
        shared: the active servers; None: this server is the only broker, and leads everything.

    Attributes:
        node_id: this server's.
        differ: whether clients of different listeners may see different leaders.
        listeners: the names of this server's listeners, the default one first.
    """

    def __init__(self, config: ClusterConfig, shared: SharedCluster | None = None) -> None:
        self._shared: Final = shared
        self.node_id: Final = NODE_ID if shared is None else shared.node_id
        self._own: Final = {
            name: BrokerAddress(self.node_id, *address)
            for name, address in config.addresses().items()
        }
        self.listeners: Final = tuple(self._own)
        self.differ: Final = shared is not None and len(self._own) > 1
        #: The active servers that lack a listener, by its name, until the servers change.
        self._lacking: Final[dict[str, frozenset[int]]] = {}
        self.on_change(self._lacking.clear)

    def own(self, listener: str) -> BrokerAddress:
        """Return this server, as clients of a listener see it."""
        return self._own[listener]

    def all(self, listener: str) -> list[BrokerAddress]:
        """Return all brokers with a listener; those that are about to leave are left out."""
        if self._shared is None:
            return [self._own[listener]]
        default = listener == self.listeners[0]
        found = (
            (each.node_id, each.kafka_address(listener, default=default))
            for each in self._shared.brokers()
        )
        return [BrokerAddress(node, *address) for node, address in found if address is not None]

    def leaders(self, listener: str, topic: str, partitions: int) -> Sequence[int] | None:
        """Return the leaders of a topic's partitions. None: this server leads all.

        Of a partition without a leader, it is -1; of one with a leader that lacks the listener,
        `NO_LISTENER`.
        """
        if self._shared is None:
            return None
        leaders = self._shared.leaders(topic, partitions)
        if listener not in self._lacking:
            self._lacking[listener] = self._without(listener)
        lacking = self._lacking[listener]
        if not lacking:
            return leaders
        return [NO_LISTENER if leader in lacking else leader for leader in leaders]

    def _without(self, listener: str) -> frozenset[int]:
        if self._shared is None:
            return frozenset()
        default = listener == self.listeners[0]
        return frozenset(
            node
            for node, each in self._shared.view.members.items()
            if each.kafka_address(listener, default=default) is None
        )

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call a function whenever brokers or leaders have changed."""
        if self._shared is not None:
            self._shared.on_change.append(changed)
