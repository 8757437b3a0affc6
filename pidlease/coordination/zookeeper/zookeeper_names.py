"""Bindings of names in ZooKeeper: a node for each, written at the version it was read at.

    names/3f/3f9a...   {"name": ..., "pid": ..., "generation": ..., "former": ..., ...}

A node is named by the SHA-256 of the name, which may contain characters that a node's name may not;
there are 256 folders.
"""

import hashlib
import json
import threading
from collections.abc import Sequence

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.protocol.states import ZnodeStat
from typing_extensions import override

from pidlease.coordination.fence_log import Fence
from pidlease.coordination.name_bindings import (
    Binding,
    BindingChange,
    BindingConflictError,
    NameBindings,
    NamesError,
    StoredBinding,
)
from pidlease.coordination.zookeeper.zookeeper_connection import (
    Write,
    ZooKeeper,
    ZooKeeperError,
)
from pidlease.coordination.zookeeper.zookeeper_fences import ZooKeeperFences


class ZooKeeperNames(NameBindings):
    """Bindings in ZooKeeper.

    Parameters:
        fences: gets each new binding as well, for other active servers; None: there are none.
    """

    def __init__(self, zookeeper: ZooKeeper, fences: ZooKeeperFences | None = None) -> None:
        self._zookeeper = zookeeper
        self._fences = fences
        self._lock = threading.Lock()
        self._folders: set[str] = set()

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
    def get_many(self, names: Sequence[str]) -> list[StoredBinding | NamesError]:
        paths = [self._path(name) for name in names]
        try:
            nodes = self._zookeeper.nodes(paths)
        except (ZooKeeperError, KazooException) as error:
            raise NamesError(_text(error)) from error
        return [_stored(*each) for each in zip(names, paths, nodes, strict=True)]

    @override
    def change_many(
        self, changes: Sequence[BindingChange]
    ) -> list[BindingConflictError | NamesError | None]:
        # A version identifies the binding that was read: a node begins at version 0 again only if
        # its name was unbound meanwhile, which takes a released name and the end of its lease.
        writes = {
            index: Write(self._path(name), _data(name, new), expected.version)
            for index, (name, expected, new) in enumerate(changes)
            if new is not None or expected.binding is not None
        }
        outcomes: list[BindingConflictError | NamesError | None] = [None] * len(changes)
        try:
            self._prepare([each.path for each in writes.values() if each.version < 0])
            refusals = self._write(list(writes.values()), [changes[index] for index in writes])
        except (ZooKeeperError, KazooException) as error:
            raise NamesError(_text(error)) from error
        for index, refusal in zip(writes, refusals, strict=True):
            outcomes[index] = _outcome(changes[index].name, refusal)
        return outcomes

    def _write(
        self, writes: Sequence[Write], changes: Sequence[BindingChange]
    ) -> list[KazooException | None]:
        if self._fences is None or any(change.new is None for change in changes):
            return self._zookeeper.write_many(writes)
        fences = [Fence(each.name, each.new) for each in changes if each.new is not None]
        return self._fences.write_with(writes, fences)

    def _read_all(self, folder: str) -> dict[str, Binding]:
        """Read the bindings of a folder, many at once: there may be thousands."""
        found: dict[str, Binding] = {}
        paths = [f"{folder}/{each}" for each in self._zookeeper.children(folder)]
        for path, node in zip(paths, self._zookeeper.nodes(paths), strict=True):
            if node is not None:  # unbound since
                name, binding = _parse(path, node[0])
                found[name] = binding
        return found

    def _prepare(self, paths: Sequence[str]) -> None:
        """Make the folders of nodes that will be created."""
        with self._lock:
            missing = {each.rpartition("/")[0] for each in paths} - self._folders
            if missing:
                self._zookeeper.ensure(self._zookeeper.path("names"))
                self._zookeeper.make_many(sorted(missing))
                self._folders |= missing

    def _path(self, name: str) -> str:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return self._zookeeper.path(f"names/{digest[:2]}/{digest}")


def _parse(path: str, data: bytes) -> tuple[str, Binding]:
    try:
        fields = json.loads(data)
        return str(fields["name"]), Binding.of(fields)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"ZooKeeper's {path} is no binding: {error}") from error


def _stored(
    name: str, path: str, node: tuple[bytes, ZnodeStat] | None
) -> StoredBinding | NamesError:
    """Return the binding in a node; an error if there is something else in it."""
    if node is None:
        return StoredBinding(None)
    data, stat = node
    try:
        bound, binding = _parse(path, data)
    except ValueError as error:
        return NamesError(_text(error))
    if bound != name:
        return NamesError(f"names: ZooKeeper's {path} is no binding of {name!r}, but of {bound!r}")
    return StoredBinding(binding, stat.version)


def _data(name: str, binding: Binding | None) -> bytes | None:
    return None if binding is None else json.dumps({"name": name, **binding.fields()}).encode()


def _outcome(name: str, error: KazooException | None) -> BindingConflictError | NamesError | None:
    if error is None:
        return None
    if isinstance(error, (BadVersionError, NodeExistsError, NoNodeError)):
        return BindingConflictError(f"{name!r} was changed meanwhile")
    return NamesError(_text(error))


def _text(error: Exception) -> str:
    if isinstance(error, KazooException):
        return f"names: {type(error).__name__} {error}".strip()
    return f"names: {error}"
