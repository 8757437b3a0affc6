"""Bindings of names in ZooKeeper: a node for each, written at the version it was read at.

    names/3f/3f9a...   {"name": ..., "pid": ..., "generation": ..., "former": ..., ...}

A node is named by the SHA-256 of the name, which may contain characters that a node's name may not;
there are 256 folders.
"""

import hashlib
import json
import threading

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from typing_extensions import override

from pidlease.coordination.name_bindings import (
    Binding,
    BindingConflictError,
    NameBindings,
    NamesError,
)
from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper, ZooKeeperError


class ZooKeeperNames(NameBindings):
    """Bindings in ZooKeeper."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._lock = threading.Lock()
        self._folders: set[str] = set()

    @override
    def get(self, name: str) -> Binding | None:
        try:
            return self._read(name)[0]
        except (ZooKeeperError, KazooException, ValueError) as error:
            raise NamesError(_text(error)) from error

    @override
    def all(self) -> dict[str, Binding]:
        found: dict[str, Binding] = {}
        root = self._zookeeper.path("names")
        try:
            for folder in self._zookeeper.children(root):
                found |= self._read_all(f"{root}/{folder}")
        except (ZooKeeperError, KazooException, ValueError) as error:
            raise NamesError(_text(error)) from error
        return found

    @override
    def change(self, name: str, expected: Binding | None, new: Binding | None) -> None:
        try:
            found, version = self._read(name)
            if found == expected:
                self._write(name, new, version)
                return
        except (BadVersionError, NodeExistsError, NoNodeError) as error:
            raise BindingConflictError(f"{name!r} was changed meanwhile") from error
        except (ZooKeeperError, KazooException, ValueError) as error:
            raise NamesError(_text(error)) from error
        raise BindingConflictError(f"{name!r} is bound to {found}, not to {expected}")

    def _read(self, name: str) -> tuple[Binding | None, int]:
        """Read a binding, and the version of its node; -1: there is none."""
        path = self._path(name)
        found = self._zookeeper.node(path)
        if found is None:
            return None, -1
        data, stat = found
        bound, binding = _parse(path, data)
        if bound != name:
            raise ValueError(f"ZooKeeper's {path} is no binding of {name!r}, but of {bound!r}")
        return binding, stat.version

    def _read_all(self, folder: str) -> dict[str, Binding]:
        """Read the bindings of a folder, many at once: there may be thousands."""
        found: dict[str, Binding] = {}
        paths = [f"{folder}/{each}" for each in self._zookeeper.children(folder)]
        for path, node in zip(paths, self._zookeeper.nodes(paths), strict=True):
            if node is not None:  # unbound since
                name, binding = _parse(path, node[0])
                found[name] = binding
        return found

    def _write(self, name: str, new: Binding | None, version: int) -> None:
        path = self._path(name)
        if new is None:
            if version >= 0:
                self._zookeeper.call(lambda client: client.delete_async(path, version))
            return
        data = json.dumps({"name": name, **new._asdict()}).encode()
        if version >= 0:
            self._zookeeper.call(lambda client: client.set_async(path, data, version))
            return
        self._prepare(path.rpartition("/")[0])
        self._zookeeper.call(lambda client: client.create_async(path, data))

    def _prepare(self, folder: str) -> None:
        with self._lock:
            if folder in self._folders:
                return
            self._zookeeper.ensure(folder)
            self._folders.add(folder)

    def _path(self, name: str) -> str:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return self._zookeeper.path(f"names/{digest[:2]}/{digest}")


def _parse(path: str, data: bytes) -> tuple[str, Binding]:
    try:
        fields = json.loads(data)
        return str(fields["name"]), Binding(*(int(fields[name]) for name in Binding._fields))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"ZooKeeper's {path} is no binding: {error}") from error


def _text(error: Exception) -> str:
    if isinstance(error, KazooException):
        return f"names: {type(error).__name__} {error}".strip()
    return f"names: {error}"
