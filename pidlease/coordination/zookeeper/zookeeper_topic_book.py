"""The topics' settings in ZooKeeper: a node for each topic, and one for all topics.

topics/<cluster>/<topic id>   {"topic": ..., "settings": {...}}
topics/<cluster>/shared       {"settings": {...}}
"""

import json
from typing import Any, Final

from kazoo.exceptions import KazooException, NoNodeError
from typing_extensions import override

from pidlease.coordination.topic_book import TopicBook, TopicBookError, TopicSettings
from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper, ZooKeeperError

_SHARED: Final = "shared"


class ZooKeeperTopicBook(TopicBook):
    """The topics' settings in ZooKeeper.

    Parameters:
        cluster: the Kafka cluster's id.
    """

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper: Final = zookeeper
        self._root: Final = zookeeper.path(f"topics/{cluster}")

    @override
    def load(self) -> TopicSettings:
        own = {}
        try:
            names = self._zookeeper.children(self._root)
            nodes = self._zookeeper.nodes([f"{self._root}/{name}" for name in names])
            for name, node in zip(names, nodes, strict=True):
                if node is not None:
                    own[name] = dict(json.loads(node[0])["settings"])
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            raise self._error(error) from error
        return TopicSettings(own.pop(_SHARED, {}), own)

    @override
    def save_shared(self, settings: dict[str, str]) -> None:
        self._save(_SHARED, {"settings": settings})

    @override
    def save_own(self, topic: str, topic_id: str, settings: dict[str, str]) -> None:
        self._save(topic_id, {"topic": topic, "settings": settings})

    def _save(self, name: str, fields: dict[str, Any]) -> None:
        path, data = f"{self._root}/{name}", json.dumps(fields).encode()
        try:
            try:
                self._zookeeper.call(lambda client: client.set_async(path, data))
            except NoNodeError:
                self._zookeeper.ensure(path, data)
        except (ZooKeeperError, KazooException) as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> TopicBookError:
        return TopicBookError(f"ZooKeeper's {self._root}: {type(error).__name__} {error}")
