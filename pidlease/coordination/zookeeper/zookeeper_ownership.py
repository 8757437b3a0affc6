"""Ownership of a Kafka cluster: one of several servers serves it, the others stand by.

/owners/<cluster>/owner   {"server": "host:pid", "folder": "..."}

The node is ephemeral: it is removed at the end of its creator's session. A server that lost its
session creates the node again, unless another server was the owner meanwhile. That shows in the
folder's version of its children (cversion), which each creation and removal of a child raises.
"""

import json
import threading
from typing import Any, Final

from kazoo.exceptions import KazooException, NodeExistsError
from typing_extensions import override

from pidlease.coordination.ownership import Ownership, OwnershipError
from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper, ZooKeeperError

#: Changes by this server itself: its session's end removes the node, and it creates the node again.
_OWN_CHANGES: Final = 2


#: The owner's name while several servers are active.
SEVERAL: Final = "several"


class ZooKeeperOwnership(Ownership):
    """One server's claim to a Kafka cluster.

    Parameters:
        cluster: the Kafka cluster's id.
        server: this server's name, for the operator.
        folder: identifies the data directory. Only one process uses that at a time, so an existing
            node with it was created by a process that has ended.
    """

    def __init__(self, zookeeper: ZooKeeper, cluster: str, server: str, folder: str) -> None:
        self._zookeeper: Final = zookeeper
        self._root: Final = zookeeper.path(f"owners/{cluster}")
        self._node: Final = f"{self._root}/owner"
        self._members: Final = zookeeper.path(f"shared/{cluster}/members")
        self._server: Final = server
        self._folder: Final = folder
        self._changes = -1
        self._lock = threading.Lock()

    @override
    def claim(self) -> str:
        try:
            self._zookeeper.ensure(self._root)
            if self._has_members():
                # They have no claim for a moment, after the one with it has left. They end when
                # they see another one, so none is made first.
                return SEVERAL
            if not self._make():
                found = self._owner()
                if found is None:
                    return "a server that has just gone"
                session, fields, version = found
                if session != self._zookeeper.session() and fields.get("folder") != self._folder:
                    return str(fields.get("server"))
                if session != self._zookeeper.session():
                    self._zookeeper.call(lambda client: client.delete_async(self._node, version))
                    if not self._make():
                        return "another server"
            if self._has_members():  # the first one has come meanwhile
                self._zookeeper.call(lambda client: client.delete_async(self._node))
                return SEVERAL
            self._zookeeper.check_not_moved()
            self._changes = self._count_changes()
        except (ZooKeeperError, KazooException, ValueError) as error:
            raise OwnershipError(f"{type(error).__name__}: {error}") from error
        return ""

    @override
    def still(self) -> bool:
        try:
            with self._lock:  # two checks at once would count each other's changes
                return self._is_still()
        except (ZooKeeperError, KazooException, ValueError) as error:
            raise OwnershipError(f"{type(error).__name__}: {error}") from error

    def _is_still(self) -> bool:
        found = self._owner()
        if found is None and self._has_members():
            return False  # without a claim first: they end when they see another one
        if found is None and not self._make():
            found = self._owner()
            if found is None:
                raise ZooKeeperError("the owner comes and goes")
        if found is not None and found[0] != self._zookeeper.session():
            return False
        # The response to the creation of the node may have been lost: when it was made is unknown.
        changes = self._count_changes()
        if changes not in (self._changes, self._changes + _OWN_CHANGES):
            self._zookeeper.call(lambda client: client.delete_async(self._node))
            return False
        self._changes = changes
        return True

    def _make(self) -> bool:
        """Create the node; False: there is one."""
        data = json.dumps({"server": self._server, "folder": self._folder}).encode()
        try:
            self._zookeeper.call(
                lambda client: client.create_async(self._node, data, ephemeral=True)
            )
        except NodeExistsError:
            return False
        return True

    def _has_members(self) -> bool:
        """Whether servers with --shared serve the cluster."""
        known = self._zookeeper.node(self._members) is not None
        return known and bool(self._zookeeper.children(self._members))

    def _owner(self) -> tuple[int, dict[str, Any], int] | None:
        """Return the session that made the node, the node's fields, and its version."""
        found = self._zookeeper.node(self._node)
        if found is None:
            return None
        data, stat = found
        return stat.ephemeralOwner, json.loads(data), stat.version

    def _count_changes(self) -> int:
        return self._zookeeper.changes_below(self._root)
