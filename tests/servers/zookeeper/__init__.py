"""A real Apache ZooKeeper, fetched by its Maven coordinates. No pytest: the demo imports this."""

from tests.servers.zookeeper.server import ZooKeeperServer, unavailable_reason

__all__ = ["ZooKeeperServer", "unavailable_reason"]
