"""One connection to ZooKeeper for all threads; it reconnects when it is lost."""

import logging
import selectors
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import structlog
from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.handlers.utils import selector_select
from kazoo.protocol.states import KazooState, ZnodeStat
from kazoo.security import make_digest_acl
from typing_extensions import override

_log = structlog.get_logger(__name__)
#: kazoo logs each attempt to connect; pidlease logs when the session comes and goes.
_kazoo_log: Final = logging.getLogger("pidlease.kazoo")
_kazoo_log.setLevel(logging.CRITICAL)

#: The pauses between attempts to connect, at first and at most, in seconds.
_RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
#: The node of a tree that was moved to Kafka.
MOVED: Final = "moved"
#: Nodes read at once.
_AT_ONCE: Final = 200
#: After these errors the outcome of a change is unknown.
_CONNECTION_ERRORS: Final = (
    ConnectionClosedError,
    ConnectionLoss,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
)


#: Called by kazoo in one of its threads, with an event; it must not wait.
Watcher = Callable[[Any], None]


class ZooKeeperError(Exception):
    """ZooKeeper does not respond, or its response is invalid; try again."""


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """How to reach ZooKeeper.

    Attributes:
        hosts: HOST:PORT,... and optionally /CHROOT, which is created if it is missing.
        session_seconds: ZooKeeper ends a session after this time without a sign of the client.
        timeout_seconds: the longest time of one call.
        digest: USER:PASSWORD; only this user may use the nodes that are created.
        tls: whether to connect by TLS.
        ca: the certificates to trust.
        certificate: the client's certificate.
        key: the certificate's key.
    """

    hosts: str
    session_seconds: float = 10.0
    timeout_seconds: float = 5.0
    digest: str = ""
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        addresses, slash, chroot = self.hosts.partition("/")
        for address in addresses.split(","):
            host, colon, port = address.rpartition(":")
            if not (host and colon and port.isascii() and port.isdecimal()):
                raise ValueError(f"{address!r} is not HOST:PORT, as in 127.0.0.1:2181/pidlease")
        if slash and (not chroot or any(not part or part in (".", "..") for part in
                                        chroot.split("/"))):  # fmt: skip
            raise ValueError(f"/{chroot} is not a path of ZooKeeper's, such as /pidlease")
        if self.digest and not all(self.digest.partition(":")):
            raise ValueError("digest authentication takes USER:PASSWORD")

    @property
    def addresses(self) -> str:
        """The hosts without the chroot."""
        return self.hosts.partition("/")[0]

    @property
    def root(self) -> str:
        """The chroot; empty: none."""
        _, slash, chroot = self.hosts.partition("/")
        return slash + chroot


class _PollingHandler(SequentialThreadingHandler):  # type: ignore[misc]  # no types
    """kazoo's threads, which wait for sockets by poll().

    kazoo waits some four times for each request. Its own way makes an epoll object each time, and
    costs half of all the processor time of a request.
    """

    @override
    def select(self, *args: Any, **options: Any) -> Any:
        return selector_select(*args, selectors_module=_POLL, **options)


#: Stands for the module `selectors`.
_POLL: Final = SimpleNamespace(
    DefaultSelector=selectors.PollSelector,
    EVENT_READ=selectors.EVENT_READ,
    EVENT_WRITE=selectors.EVENT_WRITE,
)


@dataclass(frozen=True, slots=True)
class Write:
    """A write of a node, on condition of the version that it has.

    Attributes:
        path: the node.
        data: the new content; None: delete the node.
        version: the version that the node must have; -1: it must not exist, and is created.
    """

    path: str
    data: bytes | None
    version: int

    def send(self, client: KazooClient) -> Any:  # noqa: ANN401 - kazoo has no types
        """Send the write by itself; return kazoo's result, which comes later."""
        if self.data is None:
            return client.delete_async(self.path, self.version)
        if self.version < 0:
            return client.create_async(self.path, self.data)
        return client.set_async(self.path, self.data, self.version)

    def add_to(self, transaction: TransactionRequest) -> None:
        """Make the write a part of a transaction."""
        if self.data is None:
            transaction.delete(self.path, self.version)
        elif self.version < 0:
            transaction.create(self.path, self.data)
        else:
            transaction.set_data(self.path, self.data, self.version)


class ZooKeeper:
    """A connection. It may be used while it is down: then each call fails within its timeout.

    A session that has ended is replaced by a new one; its ephemeral nodes are not created again
    here.

    A ZooKeeper server serves reads from its own copy, which may be older than the leader's. So
    every read here is preceded by a sync in the same session: it returns what the leader had when
    the read was requested, or later. A session's requests are served in order, so the read does not
    wait for the sync's response. (A replaced leader that has not noticed yet, within ZooKeeper's
    syncLimit, can serve a sync, too; a conditional write detects that.)

    Parameters:
        config: how to reach it.
    """

    def __init__(self, config: ZooKeeperConfig) -> None:
        self._config = config
        acl = None
        if config.digest:
            user, _, password = config.digest.partition(":")
            acl = [make_digest_acl(user, password, all=True)]
        self._client = KazooClient(
            hosts=config.addresses,
            timeout=config.session_seconds,
            connection_retry=dict(_RECONNECT),
            default_acl=acl,
            auth_data=[("digest", config.digest)] if config.digest else None,
            use_ssl=config.tls,
            ca=_text(config.ca),
            certfile=_text(config.certificate),
            keyfile=_text(config.key),
            check_hostname=config.tls,
            handler=_PollingHandler(),
            logger=_kazoo_log,
        )
        self._client.add_listener(self._note_state)
        self._lock = threading.Lock()
        self._prepared = False
        self._connected = threading.Event()
        #: connected, suspended (the same session may resume), or lost.
        self.state = "lost"
        self.sessions_lost = 0
        self._sessions: set[int] = set()

    def start(self) -> None:
        """Begin to connect, without waiting."""
        self._client.start_async()

    def wait(self, seconds: float) -> None:
        """Wait for the connection. Blocks.

        Raises:
            ZooKeeperError: no connection within this time.
        """
        if not self._connected.wait(seconds):
            raise ZooKeeperError(f"{self._config.addresses}: no connection within {seconds} s")

    def close(self) -> None:
        """End the session. Blocks."""
        self._client.remove_listener(self._note_state)
        self._client.stop()
        self._client.close()
        self.state = "closed"

    def path(self, name: str) -> str:
        """Return the path of a node below the chroot."""
        return f"{self._config.root}/{name}"

    def call(self, ask: Callable[[KazooClient], Any]) -> Any:  # noqa: ANN401 - kazoo has no types
        """Request a change, and wait for the response. Blocks. Reads have their own methods.

        Parameters:
            ask: given the client, calls one of its methods that do not wait.

        Raises:
            ZooKeeperError: no response; whether the change was made is unknown.
            KazooException: ZooKeeper's error, if the connection did not fail.
        """
        return self._answers(lambda client: [ask(client)])[0]

    def write_many(self, writes: Sequence[Write]) -> list[KazooException | None]:
        """Write many nodes, each on its own condition, and wait for all responses. Blocks.

        All go in one transaction. If one of them makes ZooKeeper reject the transaction, nothing of
        it was done, and each write is sent by itself.

        Returns:
            The error of each write, in their order; None: it was done.

        Raises:
            ZooKeeperError: no response; whether the writes were made is unknown.
        """
        if len(writes) > 1:
            # The transaction costs one request and one fsync. Writes by themselves cost a request
            # each, and ten times the processor time here.
            found = self.call(lambda client: _transaction(client, writes).commit_async())
            if not any(isinstance(each, KazooException) for each in found):
                return [None] * len(writes)
        found = self._answers(
            lambda client: [each.send(client) for each in writes], (KazooException,)
        )
        return [each if isinstance(each, KazooException) else None for each in found]

    def _answers(
        self, ask: Callable[[KazooClient], list[Any]], kept: tuple[type[Exception], ...] = ()
    ) -> list[Any]:
        """Send several requests, and wait for all responses as long as for one.

        Parameters:
            ask: given the client, calls its methods that do not wait.
            kept: errors of ZooKeeper that are returned in the place of a response; those of the
                connection are raised in any case.
        """
        if self.state != "connected":
            # kazoo would keep the calls, and make them after this has reported an error.
            raise ZooKeeperError(f"{self._config.addresses}: the connection is {self.state}")
        latest = time.monotonic() + self._config.timeout_seconds
        found = []
        try:
            for each in ask(self._client):
                try:
                    found.append(each.get(timeout=max(latest - time.monotonic(), 0)))
                except _CONNECTION_ERRORS:
                    raise
                except kept as error:
                    found.append(error)
        except self._client.handler.timeout_exception:
            seconds = self._config.timeout_seconds
            raise ZooKeeperError(f"{self._config.addresses}: no response in {seconds} s") from None
        except _CONNECTION_ERRORS as error:
            reason = f"{self._config.addresses}: {type(error).__name__} {error}"
            raise ZooKeeperError(reason.strip()) from error
        return found

    def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        """List the names below a node; none if it does not exist. Blocks; raises as `call`.

        Parameters:
            watcher: called once, in a thread, at the next change of the list.
        """
        options = {} if watcher is None else {"watch": watcher}
        found: list[str] | None = self._read(
            lambda client: [client.get_children_async(path, **options)]
        )[0]
        return found or []

    def changes_below(self, path: str) -> int:
        """Count the nodes that came or went below a node. Blocks; raises as `data`."""
        found = self._read(lambda client: [client.get_children_async(path, include_data=True)])[0]
        if found is None:
            raise NoNodeError(path)
        return int(found[1].cversion)

    def changed_by(self, path: str) -> int | None:
        """Return the number of a node's last change; None: it does not exist. Raises as `call`."""
        (found,) = self._read(lambda client: [client.exists_async(path)])
        return None if found is None else int(found.mzxid)

    def node(self, path: str) -> tuple[bytes, ZnodeStat] | None:
        """Return a node's content and state, if it exists. Blocks; raises as `call`."""
        return self.nodes([path])[0]

    def nodes(
        self, paths: Sequence[str], watcher: Watcher | None = None
    ) -> list[tuple[bytes, ZnodeStat] | None]:
        """Return the same of many nodes; hundreds are read at once.

        Parameters:
            watcher: called, in a thread, at the next change of each node that exists.
        """
        options = {} if watcher is None else {"watch": watcher}

        def ask(some: Sequence[str], client: KazooClient) -> list[Any]:
            return [client.get_async(path, **options) for path in some]

        found: list[tuple[bytes, ZnodeStat] | None] = []
        for start in range(0, len(paths), _AT_ONCE):
            found += self._read(partial(ask, paths[start : start + _AT_ONCE]))
        return found

    def _read(self, ask: Callable[[KazooClient], list[Any]]) -> list[Any]:
        """Read after a sync; None for a node that does not exist."""
        path = self._config.root or "/"
        # The sync must succeed, too: if it is lost with its connection, the read may go to another
        # server.
        found = self._answers(
            lambda client: [client.sync_async(path), *ask(client)], (NoNodeError,)
        )[1:]
        return [None if isinstance(each, NoNodeError) else each for each in found]

    def session(self) -> int:
        """Return the session's number.

        Raises:
            ZooKeeperError: there is no session now.
        """
        known = self._client.client_id
        if self.state != "connected" or known is None:
            raise ZooKeeperError(f"{self._config.addresses}: the connection is {self.state}")
        return int(known[0])

    def had_session(self, number: int) -> bool:
        """Return whether a session is this connection's, or was."""
        return number in self._sessions

    def data(self, path: str) -> bytes:
        """Return a node's content. Blocks; raises as `call`, and NoNodeError."""
        found = self.node(path)
        if found is None:
            raise NoNodeError(path)
        return found[0]

    def identity(self) -> str:
        """Return the id of the tree below the chroot; create it if there is none. Blocks.

        A data directory must not use another tree: its sequence would lease the same PIDs again.

        Raises:
            ZooKeeperError: the id cannot be read.
        """
        path = self.path("id")
        try:
            self.ensure(path, uuid.uuid4().hex.encode())
            return str(uuid.UUID(self.data(path).decode()))
        except KazooException as error:
            raise ZooKeeperError(f"{path}: {type(error).__name__} {error}".strip()) from error
        except ValueError as error:
            raise ZooKeeperError(f"{path} holds no id of pidlease: {error}") from error

    def check_not_moved(self) -> None:
        """Check that what is in the tree was not moved to Kafka. Blocks.

        A server looks after it has shown itself in the tree, and a move looks for servers after it
        has created the node: so one of them notices the other.

        Raises:
            ZooKeeperError: it was moved, or this is begun; or it is unknown.
            KazooException: ZooKeeper refused.
        """
        if self.node(self.path(MOVED)) is not None:
            raise ZooKeeperError(
                "the PIDs were moved to Kafka, or this was begun: start without --zookeeper"
                f" (the node {MOVED} says so)"
            )

    def ensure(self, path: str, data: bytes = b"") -> None:
        """Create a node, and those above it, if they are missing. Blocks.

        Raises:
            ZooKeeperError: no response; whether they were created is unknown.
            KazooException: ZooKeeper refused.
        """
        self._make_root()
        above = path.split("/")[:-1]
        for depth in range(self._config.root.count("/") + 2, len(above) + 1):
            self.make("/".join(above[:depth]))
        self.make(path, data)

    def _make_root(self) -> None:
        """Create the nodes of the chroot."""
        with self._lock:
            if self._prepared:
                return
            path = ""
            for part in self._config.root.split("/")[1:]:
                path += "/" + part
                self.make(path)
            self._prepared = True

    def make(self, path: str, data: bytes = b"") -> None:
        """Create a node, unless it exists. Blocks; raises as `call`."""
        try:
            self.call(lambda client: client.create_async(path, data))
        except NodeExistsError:
            return

    def make_many(self, paths: Sequence[str]) -> None:
        """Create empty nodes below existing ones, unless they exist. Blocks; raises as `call`."""
        self._answers(
            lambda client: [client.create_async(path) for path in paths], (NodeExistsError,)
        )

    def _note_state(self, state: str) -> None:
        """Note a new state; runs in one of kazoo's threads, and must not wait."""
        known = self._client.client_id
        if state == KazooState.CONNECTED and known is not None:
            self._sessions.add(int(known[0]))  # before it is used
        before, self.state = self.state, state.lower()
        if state == KazooState.CONNECTED:
            self._connected.set()
        if state == KazooState.LOST:
            self.sessions_lost += 1
        if before != self.state:
            log = _log.info if state == KazooState.CONNECTED else _log.warning
            log("ZooKeeper", state=self.state, hosts=self._config.addresses)


def _transaction(client: KazooClient, writes: Sequence[Write]) -> TransactionRequest:
    transaction = client.transaction()
    for each in writes:
        each.add_to(transaction)
    return transaction


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
