"""The files that all servers have in common, in ZooKeeper: a node for each.

files/<cluster>/<name>   {"content": ...}
"""

import json
from typing import Final

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from typing_extensions import override

from pidlease.coordination.common_files import (
    CommonFileConflictError,
    CommonFiles,
    CommonFilesError,
    decode_file,
    encode_file,
)
from pidlease.coordination.zookeeper.zookeeper_connection import Write, ZooKeeper, ZooKeeperError


class ZooKeeperFiles(CommonFiles):
    """The files in ZooKeeper.

    Parameters:
        cluster: the Kafka cluster's id.
    """

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper: Final = zookeeper
        self._root: Final = zookeeper.path(f"files/{cluster}")

    @override
    def version(self, name: str) -> object:
        try:
            return self._zookeeper.changed_by(self._path(name))
        except (ZooKeeperError, KazooException) as error:
            raise self._error(error) from error

    @override
    def read(self, name: str) -> bytes | None:
        return self._read(name)[0]

    @override
    def replace(self, name: str, content: bytes, expected: bytes | None) -> None:
        data = json.dumps({"content": encode_file(name, content)}).encode()
        found, version = self._read(name)
        if found != expected:
            raise CommonFileConflictError(f"another server has replaced the {name}")
        try:
            if version < 0:
                self._zookeeper.ensure(self._root)
            (error,) = self._zookeeper.write_many([Write(self._path(name), data, version)])
        except (ZooKeeperError, KazooException) as reason:
            raise self._error(reason) from reason
        if isinstance(error, (BadVersionError, NodeExistsError, NoNodeError)):
            raise CommonFileConflictError(f"another server has replaced the {name}")
        if error is not None:
            raise self._error(error)

    def all(self) -> dict[str, bytes]:
        """Return all files, by name.

        Raises:
            CommonFilesError: they cannot be read.
        """
        try:
            names = self._zookeeper.children(self._root)
        except (ZooKeeperError, KazooException) as error:
            raise self._error(error) from error
        found = {name: self.read(name) for name in names}
        return {name: content for name, content in found.items() if content is not None}

    def _read(self, name: str) -> tuple[bytes | None, int]:
        """Return a file and its node's version; -1: there is none."""
        try:
            node = self._zookeeper.node(self._path(name))
            if node is None:
                return None, -1
            return decode_file(name, json.loads(node[0])["content"]), node[1].version
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            raise self._error(error) from error

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _error(self, error: Exception) -> CommonFilesError:
        return CommonFilesError(f"ZooKeeper's {self._root}: {type(error).__name__} {error}")
