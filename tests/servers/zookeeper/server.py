"""One ZooKeeper server, in a process of its own; killed and paused by tests."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.servers.java import SHORT_LIVED, Jars
from tests.servers.ports import LOOPBACK, free_ports
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
    # The new node that it lists the files of must not be mistaken for one that lost its data.
    "-Dzookeeper.snapshot.trust.empty=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_ANSWER_S = 2


def unavailable_reason() -> str | None:
    """Why no ZooKeeper can be started on this machine; None if one can."""
    return _JARS.unavailable_reason()


class ZooKeeperServer:
    """Starts, waits until it answers; stops by pid.

    Parameters:
        directory: for its data and its log.
        tick_ms: ZooKeeper's tick; sessions live for two to twenty of them.
        options: further settings of its configuration.
        jvm_options: further options of the Java runtime.
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
        """Start, with the old port and data if there are any."""
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
        config = self.directory / "zoo.cfg"
        config.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self.process.start([*_JARS.command(main, *self._jvm_options), str(config)], os.environ)
        try:
            self.process.wait_until(self.answers, self.start_timeout_s)
        except BaseException:  # also Ctrl-C: nobody else knows the pid
            self.process.kill9()
            raise

    def answers(self) -> bool:
        """Whether it says that it is well."""
        try:
            with socket.create_connection((LOOPBACK, self.port), _ANSWER_S) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False

    def kill9(self) -> None:
        """End it at once; it starts again with what is on its disk."""
        self.process.kill9()

    def pause(self) -> None:
        """It neither answers nor goes away."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on."""
        os.kill(self.process.pid, signal.SIGCONT)
