"""The topics' settings in ZooKeeper: a node for each topic, and one for all topics.

topics/<cluster>              its version grows with each change of a node below
topics/<cluster>/<topic id>   {"topic": ..., "settings": {...}}
topics/<cluster>/shared       the same, of all topics
"""

import json
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from typing_extensions import override

from pidlease.coordination.topic_book import TopicBook, TopicBookError, TopicSettings
from pidlease.coordination.zookeeper.zookeeper_connection import Write, ZooKeeper, ZooKeeperError
from pidlease.storage.topics.topic_settings import SettingsChange

_SHARED: Final = "shared"
#: How often settings are written while other servers change them.
_ATTEMPTS_MAX: Final = 20
_LOST_RACE: Final = (BadVersionError, NodeExistsError, NoNodeError)


class ZooKeeperTopicBook(TopicBook):
    """The topics' settings in ZooKeeper.

    Parameters:
        cluster: the Kafka cluster's id.
    """

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper: Final = zookeeper
        self._root: Final = zookeeper.path(f"topics/{cluster}")

    @override
    def version(self) -> object:
        try:
            node = self._zookeeper.node(self._root)
        except (ZooKeeperError, KazooException) as error:
            raise self._error(error) from error
        return None if node is None else node[1].version

    @override
    def load(self) -> TopicSettings:
        own = {}
        try:
            names = self._zookeeper.children(self._root)
            nodes = self._zookeeper.nodes([f"{self._root}/{name}" for name in names])
            for name, node in zip(names, nodes, strict=True):
                if node is not None:
                    own[name] = _settings(node[0])
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            raise self._error(error) from error
        return TopicSettings(own.pop(_SHARED, {}), own)

    @override
    def change(self, topic: str, topic_id: str, change: SettingsChange) -> dict[str, str]:
        path = f"{self._root}/{topic_id or _SHARED}"
        for _ in range(_ATTEMPTS_MAX):
            before, version = self._read(path)
            settings = change(dict(before))
            data = json.dumps({"topic": topic, "settings": settings}).encode()
            if settings == before or self._write(Write(path, data, version)):
                return settings
        raise TopicBookError("other servers have always changed the settings meanwhile")

    def _read(self, path: str) -> tuple[dict[str, str], int]:
        """Return a node's settings and version; none and -1: there is no node."""
        try:
            node = self._zookeeper.node(path)
            return ({}, -1) if node is None else (_settings(node[0]), node[1].version)
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            raise self._error(error) from error

    def _write(self, write: Write) -> bool:
        """Write a node, and count the change; False: another server was faster."""

        def commit(client: KazooClient) -> Any:  # noqa: ANN401 - kazoo has no types
            transaction = client.transaction()
            write.add_to(transaction)
            transaction.set_data(self._root, b"", -1)
            return transaction.commit_async()

        try:
            if write.version < 0:
                self._zookeeper.ensure(self._root)
            results = self._zookeeper.call(commit)
        except (ZooKeeperError, KazooException) as error:
            raise self._error(error) from error
        errors = [each for each in results if isinstance(each, KazooException)]
        if errors and not any(isinstance(each, _LOST_RACE) for each in errors):
            raise self._error(errors[0])
        return not errors

    def _error(self, error: Exception) -> TopicBookError:
        return TopicBookError(f"ZooKeeper's {self._root}: {type(error).__name__} {error}")


def _settings(data: bytes) -> dict[str, str]:
    return dict(json.loads(data)["settings"])
