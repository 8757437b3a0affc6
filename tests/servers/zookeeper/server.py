"""A ZooKeeper server as a child process: killed, restarted and paused by tests."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.servers.java import SHORT_LIVED, Jars
from tests.servers.process import ServerProcess
from tests.servers.waiting import WAIT_S

_JARS = Jars(
    pom=Path(__file__).with_name("pom.xml"),
    name="zookeeper-jars",
    marker="zookeeper-{version}.jar",
    prefix="zookeeper",
)
_JVM_OPTIONS = (
    "-Xmx128m",
    *SHORT_LIVED,
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.4lw.commands.whitelist=*",
    # Without this, ZooKeeper takes a new node's empty directory for one that lost its data.
    "-Dzookeeper.snapshot.trust.empty=true",
    # Tests kill processes, not machines. On a busy disk an fsync takes longer than a session lives.
    "-Dzookeeper.forceSync=no",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_ANSWER_S = 2

fetch_jars = _JARS.fetch


def unavailable_reason() -> str | None:
    """Return why ZooKeeper cannot be started on this machine; None if it can."""
    return _JARS.unavailable_reason()


class ZooKeeperServer:
    """A ZooKeeper on a loopback port that stays the same over restarts.

    Parameters:
        directory: for its data and its log.
        tick_ms: sessions last for two to twenty ticks.
        options: further settings of its configuration.
    """

    def __init__(
        self,
        directory: Path,
        *,
        tick_ms: int = 200,
        options: Mapping[str, str] | None = None,
        jvm_options: tuple[str, ...] = (),
        start_timeout_s: float = WAIT_S,
    ) -> None:
        self.directory = directory.resolve()
        self.start_timeout_s = start_timeout_s
        (self.port,) = free_ports(1)
        self.hosts = f"{LOOPBACK}:{self.port}"
        self._settings = {
            "tickTime": str(tick_ms),
            "dataDir": str(self.directory / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": LOOPBACK,
            "maxClientCnxns": "0",
            **(options or {}),
        }
        self._jvm_options = (*_JVM_OPTIONS, *jvm_options)
        self.process = ServerProcess(
            name="ZooKeeper", log_path=self.directory / "zookeeper.log", cwd=self.directory
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.alive:
            self.resume()
        self.process.kill9()

    def start(self) -> None:
        """Start with the data of an earlier start, and wait until it answers."""
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
        config = self.directory / "zoo.cfg"
        config.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self.process.start([*_JARS.command(main, *self._jvm_options), str(config)], os.environ)
        try:
            self.process.wait_until(self.answers, self.start_timeout_s)
        except BaseException:  # Ctrl-C, too: the caller does not have the server yet
            self.process.kill9()
            raise

    def answers(self) -> bool:
        """Whether it answers a health check."""
        try:
            with socket.create_connection((LOOPBACK, self.port), _ANSWER_S) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False

    def kill9(self) -> None:
        """Send SIGKILL; the next start uses the data on disk."""
        self.process.kill9()

    def pause(self) -> None:
        """Send SIGSTOP: it does not answer, and its connections stay open."""
        self.process.pause()

    def resume(self) -> None:
        """Let it continue after `pause`."""
        os.kill(self.process.pid, signal.SIGCONT)
