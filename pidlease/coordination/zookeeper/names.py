"""Bindings of names in ZooKeeper: a node for each, written at the version it was read at.

    names/3f/3f9a...   {"name": ..., "pid": ..., "generation": ...}

By the SHA-256 of the name, which may hold what a node's name may not, in 256 folders.
"""

import hashlib
import json
import threading

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from pidlease.coordination.names import Binding, BindingConflictError, NamesError
from pidlease.coordination.zookeeper.connection import ZooKeeper, ZooKeeperError


class ZooKeeperNames:
    """Bindings in ZooKeeper (see `names.NameBindings`).

    Parameters:
        zookeeper: the connection.
    """

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._lock = threading.Lock()
        self._folders: set[str] = set()

    def get(self, name: str) -> Binding | None:
        """See `NameBindings`."""
        try:
            return self._read(name)[0]
        except (ZooKeeperError, KazooException, ValueError) as error:
            raise NamesError(_told(error)) from error

    def change(self, name: str, expected: Binding | None, new: Binding | None) -> None:
        """See `NameBindings`."""
        try:
            found, version = self._read(name)
            if found == expected:
                self._write(name, new, version)
                return
        except (BadVersionError, NodeExistsError, NoNodeError) as error:
            raise BindingConflictError(f"{name!r} was changed meanwhile") from error
        except (ZooKeeperError, KazooException, ValueError) as error:
            raise NamesError(_told(error)) from error
        raise BindingConflictError(f"{name!r} is bound to {found}, not to {expected}")

    def _read(self, name: str) -> tuple[Binding | None, int]:
        """A binding, and the version of its node; -1: there is none."""
        path = self._path(name)
        try:
            data, stat = self._zookeeper.call(lambda client: client.get_async(path))
        except NoNodeError:
            return None, -1
        try:
            fields = json.loads(data)
            told = str(fields["name"])
            binding = Binding(int(fields["pid"]), int(fields["generation"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"ZooKeeper's {path} is no binding of {name!r}: {error}") from error
        if told != name:
            raise ValueError(f"ZooKeeper's {path} is no binding of {name!r}, but of {told!r}")
        return binding, stat.version

    def _write(self, name: str, new: Binding | None, version: int) -> None:
        path = self._path(name)
        if new is None:
            if version >= 0:
                self._zookeeper.call(lambda client: client.delete_async(path, version))
            return
        data = json.dumps({"name": name, "pid": new.pid, "generation": new.generation}).encode()
        if version >= 0:
            self._zookeeper.call(lambda client: client.set_async(path, data, version))
            return
        self._prepare(path.rpartition("/")[0])
        self._zookeeper.call(lambda client: client.create_async(path, data))

    def _prepare(self, folder: str) -> None:
        with self._lock:
            if folder in self._folders:
                return
            self._zookeeper.make_root()
            self._zookeeper.make(self._zookeeper.path("names"))
            self._zookeeper.make(folder)
            self._folders.add(folder)

    def _path(self, name: str) -> str:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return self._zookeeper.path(f"names/{digest[:2]}/{digest}")


def _told(error: Exception) -> str:
    if isinstance(error, KazooException):
        return f"names: {type(error).__name__} {error}".strip()
    return f"names: {error}"
