"""The members that share a Kafka cluster, and the map of slots, in ZooKeeper.

    shared/<cluster>/members/7   {"server": ..., "kafka": [host, port], "http": ..., ...}; ephemeral
    shared/<cluster>/map         {"version": 1, "owners": [...], "epochs": [...], "members": [...]}
    shared/<cluster>/node-ids    {"next": 8}
    owners/<cluster>/owner       {"server": "several", "folder": ""}; ephemeral

The last node is the claim of a server that serves the cluster alone (`zookeeper_ownership.py`).
While a member holds it, servers without --shared stand by; and the other way round.
"""

import json
import threading
from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
)
from typing_extensions import override

from pidlease.coordination.members import (
    MapConflictError,
    Member,
    Members,
    MembersError,
    SharedView,
    map_fields,
    map_of,
    member_fields,
    member_of,
    replaced_by,
)
from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper, ZooKeeperError
from pidlease.coordination.zookeeper.zookeeper_ownership import SEVERAL
from pidlease.core.slots import EMPTY_MAP, SlotMap

#: How often a contended node id is tried.
_ATTEMPTS_MAX: Final = 100
#: How often a member's node is taken from the session of an earlier process.
_CREATIONS_MAX: Final = 5


class ZooKeeperMembers(Members):
    """Members and map in ZooKeeper.

    Parameters:
        cluster: the Kafka cluster's id.
    """

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper: Final = zookeeper
        self._root: Final = zookeeper.path(f"shared/{cluster}")
        self._members: Final = f"{self._root}/members"
        self._map: Final = f"{self._root}/map"
        self._owner: Final = zookeeper.path(f"owners/{cluster}/owner")
        self._lock: Final = threading.Lock()
        #: This server, from its join to its leave.
        self._self: Member | None = None
        self._changed: Callable[[], None] | None = None
        self._prepared = False

    # ------------------------------------------------------------------ this server

    @override
    def node_id(self) -> int:
        path = f"{self._root}/node-ids"
        try:
            self._prepare()
            self._zookeeper.make(path, json.dumps({"next": 1}).encode())
            for _ in range(_ATTEMPTS_MAX):
                data, version = self._read_node(path)
                number = int(data["next"])
                new = json.dumps({"next": number + 1}).encode()
                try:
                    self._set(path, new, version)
                except BadVersionError:
                    continue
                return number
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            raise _error(path, error) from error
        raise MembersError(f"ZooKeeper's {path}: other servers were always faster")

    def next_node_id(self) -> int:
        """Return the next node id, and take none.

        Raises:
            MembersError: it cannot be read.
        """
        path = f"{self._root}/node-ids"
        try:
            return int(self._read_node(path)[0]["next"])
        except NoNodeError:
            return 1
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            raise _error(path, error) from error

    @override
    def join(self, member: Member) -> None:
        with self._lock:
            try:
                self._prepare()
                self._write_self(member)
                self._self = member
            except (ZooKeeperError, KazooException) as error:
                raise _error(self._members, error) from error

    @override
    def leave(self) -> None:
        with self._lock:
            member, self._self = self._self, None
            if member is None:
                return
            try:
                # The claim first: a server that stands by must not see it without any member.
                found = self._zookeeper.node(self._owner)
                if found is not None and found[1].ephemeralOwner == self._zookeeper.session():
                    self._zookeeper.call(lambda client: client.delete_async(self._owner))
                path = self._path(member.node_id)
                own = self._zookeeper.node(path)
                if own is not None and own[1].ephemeralOwner == self._zookeeper.session():
                    self._zookeeper.call(lambda client: client.delete_async(path, own[1].version))
            except (NoNodeError, BadVersionError):
                return
            except (ZooKeeperError, KazooException) as error:
                raise _error(self._members, error) from error

    def _write_self(self, member: Member) -> None:
        """Create this server's node in this session, or change it."""
        path = self._path(member.node_id)
        data = json.dumps(member_fields(member)).encode()
        for _ in range(_CREATIONS_MAX):
            try:
                self._zookeeper.call(lambda client: client.create_async(path, data, ephemeral=True))
            except NodeExistsError:
                found = self._zookeeper.node(path)
                if found is None:
                    continue
                if found[1].ephemeralOwner == self._zookeeper.session():
                    self._set(path, data, found[1].version)
                    return
                self._check_node(found)
                # Of an earlier session; or, at the join, of an earlier process of this directory.
                if not self._replace(path, data, found[1].version):
                    continue
            return
        raise ZooKeeperError("the member's node comes and goes")

    def _check_node(self, found: Any) -> None:  # noqa: ANN401 - kazoo has no types
        """Check that this member's node is not of another process.

        Raises:
            MembershipLostError: it is.
        """
        if self._self is None or self._zookeeper.had_session(found[1].ephemeralOwner):
            return
        raise replaced_by(_member(found))

    def _replace(self, path: str, data: bytes, version: int) -> bool:
        """Replace another session's node by this one's; False: that node has changed or is gone.

        In one transaction: the other process, if it lives, must not find that its node has gone,
        and create it again.
        """

        def commit(client: KazooClient) -> Any:  # noqa: ANN401 - kazoo has no types
            transaction = client.transaction()
            transaction.delete(path, version)
            transaction.create(path, data, ephemeral=True)
            return transaction.commit_async()

        found = self._zookeeper.call(commit)
        return not any(isinstance(each, KazooException) for each in found)

    # ------------------------------------------------------------------ all servers

    @override
    def read(self) -> SharedView:
        with self._lock:
            try:
                self._prepare()
                stranger = self._claim()
                names = self._zookeeper.children(self._members, self._watcher)
                paths = [f"{self._members}/{name}" for name in names]
                nodes = self._zookeeper.nodes([self._map, *paths], self._watcher)
                found = {}
                for node in nodes[1:]:
                    if node is not None:
                        member = _member(node)
                        found[member.node_id] = member
                own = self._self
                if own is not None and not self._is_mine(own, names, nodes[1:]):
                    self._write_self(own)  # the session had ended
                    joined = self._zookeeper.node(self._path(own.node_id))
                    if joined is not None:
                        found[own.node_id] = _member(joined)
                return SharedView(found, _slots(nodes[0]), stranger)
            except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
                raise _error(self._root, error) from error

    def _is_mine(self, own: Member, names: list[str], nodes: list[Any]) -> bool:
        session = self._zookeeper.session()
        return any(
            name == str(own.node_id) and node is not None and node[1].ephemeralOwner == session
            for name, node in zip(names, nodes, strict=True)
        )

    def _claim(self) -> str:
        """Hold the claim to the cluster for all members; return the name of another's server."""
        data = json.dumps({"server": SEVERAL, "folder": ""}).encode()
        found = self._zookeeper.node(self._owner)
        if found is None:
            self._zookeeper.ensure(self._owner.rpartition("/")[0])
            try:
                self._zookeeper.call(
                    lambda client: client.create_async(self._owner, data, ephemeral=True)
                )
                self._zookeeper.check_not_moved()
            except NodeExistsError:
                found = self._zookeeper.node(self._owner)
        server = SEVERAL if found is None else str(json.loads(found[0]).get("server"))
        return "" if server == SEVERAL else server

    @override
    def slots(self) -> SlotMap:
        own = self._self
        paths = [] if own is None else [self._path(own.node_id)]
        try:
            found, *mine = self._zookeeper.nodes([self._map, *paths])
            for each in filter(None, mine):
                self._check_node(each)
            return _slots(found)
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            raise _error(self._map, error) from error

    @override
    def write(self, slots: SlotMap) -> SlotMap:
        data = json.dumps(map_fields(slots), separators=(",", ":")).encode()
        try:
            self._prepare()
            if slots.version < 0:
                self._zookeeper.call(lambda client: client.create_async(self._map, data))
                return slots._replace(version=0)
            return slots._replace(version=self._set(self._map, data, slots.version))
        except (BadVersionError, NodeExistsError, NoNodeError) as error:
            raise MapConflictError(f"ZooKeeper's {self._map} has changed meanwhile") from error
        except (ZooKeeperError, KazooException) as error:
            raise _error(self._map, error) from error

    @override
    def watch(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def _watcher(self, event: object) -> None:  # noqa: ARG002 - of kazoo
        if self._changed is not None:
            self._changed()

    # ------------------------------------------------------------------ nodes

    def _prepare(self) -> None:
        if not self._prepared:
            self._zookeeper.ensure(self._members)
            self._prepared = True

    def _path(self, node_id: int) -> str:
        return f"{self._members}/{node_id}"

    def _read_node(self, path: str) -> tuple[dict[str, Any], int]:
        found = self._zookeeper.node(path)
        if found is None:
            raise NoNodeError(path)
        return json.loads(found[0]), found[1].version

    def _set(self, path: str, data: bytes, version: int) -> int:
        stat = self._zookeeper.call(lambda client: client.set_async(path, data, version))
        return int(stat.version)


def _member(node: Any) -> Member:  # noqa: ANN401 - kazoo has no types
    data, stat = node
    return member_of(json.loads(data), int(stat.czxid))


def _slots(node: Any) -> SlotMap:  # noqa: ANN401 - kazoo has no types
    """Decode the map.

    Raises:
        ValueError: it is of a newer version, or no map.
    """
    if node is None:
        return EMPTY_MAP
    data, stat = node
    return map_of(json.loads(data), int(stat.version))


def _error(path: str, error: Exception) -> MembersError:
    text = f"{type(error).__name__} {error}" if isinstance(error, KazooException) else str(error)
    return MembersError(f"ZooKeeper's {path}: {text.strip()}")
