"""A real Apache ZooKeeper, fetched by its Maven coordinates."""

from tests.servers.zookeeper.server import ZooKeeperServer, needs_zookeeper, unavailable_reason

__all__ = ["ZooKeeperServer", "needs_zookeeper", "unavailable_reason"]
