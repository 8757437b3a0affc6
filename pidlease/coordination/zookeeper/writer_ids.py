"""The writers' producer ids in ZooKeeper (see `writer_ids`): a node for each.

/writers/<producer id>   {"topic": ..., "partition": ..., "given_ms": ...}
"""

import json
from typing import Final

from kazoo.exceptions import KazooException

from pidlease.coordination.writer_ids import WriterIdsError, WriterOf
from pidlease.coordination.zookeeper.connection import ZooKeeper, ZooKeeperError


class ZooKeeperWriterIds:
    """See the module's text, and `writer_ids.WriterIds`.

    Parameters:
        zookeeper: the connection.
    """

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper: Final = zookeeper

    def all(self) -> dict[int, WriterOf]:
        """See `WriterIds`."""
        root = self._zookeeper.path("writers")
        found = {}
        try:
            for name in self._zookeeper.children(root):
                fields = json.loads(self._zookeeper.data(f"{root}/{name}"))
                found[int(name)] = WriterOf(*(fields[each] for each in WriterOf._fields))
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            raise WriterIdsError(f"ZooKeeper's {root}: {type(error).__name__} {error}") from error
        return found

    def add(self, pid: int, writer_of: WriterOf) -> None:
        """See `WriterIds`."""
        root = self._zookeeper.path("writers")
        try:
            self._zookeeper.ensure(f"{root}/{pid}", json.dumps(writer_of._asdict()).encode())
        except (ZooKeeperError, KazooException) as error:
            raise WriterIdsError(f"ZooKeeper's {root}: {type(error).__name__} {error}") from error
