"""Three real ZooKeepers, one of which lags behind: a read of ours waits until it has caught up."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest
from kazoo.exceptions import NoNodeError

from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper, ZooKeeperConfig
from pidlease.coordination.zookeeper.zookeeper_sequence import ZooKeeperSequence
from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.servers.waiting import until
from tests.servers.zookeeper import ZooKeeperServer
from tests.servers.zookeeper.marks import needs_zookeeper

pytestmark = [needs_zookeeper, pytest.mark.timeout(900)]

_WAIT_S = 300


class Relay:
    """Between a follower and its leader; what the leader sends can be held back.

    Parameters:
        port: the leader's.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self.flows = threading.Event()
        self.flows.set()
        self.held = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.flows.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                follower, _ = self._listener.accept()
                leader = socket.create_connection((LOOPBACK, self._port))
                for pair in ((follower, leader, False), (leader, follower, True)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, from_leader: bool) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                if from_leader and not self.flows.is_set():
                    self.held.set()
                    self.flows.wait()
                target.sendall(data)


@contextmanager
def ensemble(folder: Path) -> Iterator[tuple[ZooKeeperServer, ZooKeeperServer, Relay]]:
    """The leader, and a follower that hears of it by a relay."""
    quorum, election = free_ports(3), free_ports(3)
    with ExitStack() as stack:
        relay = stack.enter_context(Relay(quorum[1]))
        servers = []
        for number in range(3):
            # The second one leads: two are enough, and its number is the higher one.
            to_leader = relay.port if number == 2 else quorum[1]
            options = {
                "initLimit": "100",
                "syncLimit": "100",
                "server.1": f"{LOOPBACK}:{quorum[0]}:{election[0]}",
                "server.2": f"{LOOPBACK}:{to_leader}:{election[1]}",
                "server.3": f"{LOOPBACK}:{quorum[2]}:{election[2]}",
            }
            server = ZooKeeperServer(folder / str(number + 1), options=options)
            data = server.directory / "data"
            data.mkdir(parents=True)
            (data / "myid").write_text(str(number + 1))
            servers.append(stack.enter_context(server))
            if number == 1:
                until(
                    lambda: _mode(servers[1]) == "leader", "the second one leads", within_s=_WAIT_S
                )
        until(lambda: _mode(servers[2]) == "follower", "the third one follows", within_s=_WAIT_S)
        yield servers[1], servers[2], relay


def _mode(server: ZooKeeperServer) -> str:
    try:
        with socket.create_connection((LOOPBACK, server.port), 5) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return ""
    modes = [line for line in answer.decode().splitlines() if line.startswith("Mode: ")]
    return modes[0].removeprefix("Mode: ") if modes else ""


@contextmanager
def connected(server: ZooKeeperServer) -> Iterator[ZooKeeper]:
    zookeeper = ZooKeeper(
        ZooKeeperConfig(f"{server.hosts}/p", session_seconds=4.0, timeout_seconds=60.0)
    )
    zookeeper.start()
    try:
        zookeeper.wait(60)
        yield zookeeper
    finally:
        zookeeper.close()


def test_blocks_are_read_as_the_leader_has_them(tmp_path: Path) -> None:
    with (
        ensemble(tmp_path) as (leader, follower, relay),
        connected(leader) as one,
        connected(follower) as other,
    ):
        taking = ZooKeeperSequence(one, "one", lambda: 0, 1000)
        reading = ZooKeeperSequence(other, "other", lambda: 0, 1000)
        first = taking.take()
        assert reading.blocks() == [first]
        relay.flows.clear()
        second = taking.take()
        assert relay.held.wait(_WAIT_S), "the follower is not held up"
        one.ensure(one.path("new"), b"x")
        with pytest.raises(NoNodeError):
            other._client.get(other.path("new"))  # by itself it reads what was
        found: list[object] = []
        read = threading.Thread(target=lambda: found.append(reading.blocks()))
        read.start()
        read.join(0.5)
        assert not found, "it did not wait for the leader"
        relay.flows.set()
        read.join(_WAIT_S)
        assert found == [[first, second]]
