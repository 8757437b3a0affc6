"""Ways to copy a topic, each a process that goes on and on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.copying.mirror import java_command, write_properties
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.process import ServerProcess

_ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Way:
    """One of them.

    Attributes:
        name: what it is called.
        topic: where its copy goes.
        command: what is run.
        folder: for what it says.
        seconds: how long each of its turns took.
        cpu_s: processor time of all its turns.
    """

    name: str
    topic: str
    command: tuple[str, ...]
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make a place for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = ServerProcess(self.name, self.folder / "log", _ROOT)

    def start(self) -> None:
        """Begin."""
        self.process.start(self.command, {**os.environ, **self.env})

    def stop(self) -> None:
        """Do nothing until `go_on`."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Do it."""
        os.kill(self.process.pid, signal.SIGCONT)


def ours(source: KafkaServer, server: PidleaseServer, topic: str, folder: Path) -> Way:
    """`pidlease copy`."""
    renamed = f"{topic}.pidlease"
    command = (
        sys.executable, "-m", "proxy", "copy", "--from", source.bootstrap, "--to", server.bootstrap,
        "--leases", server.http_url, "--topics", topic, "--rename", renamed, "--group", renamed,
        "--session-seconds", "60",  # it is stopped while others have their turn
    )  # fmt: skip
    return Way("pidlease copy", renamed, command, folder / renamed)


def plain(source: KafkaServer, server: PidleaseServer, topic: str, folder: Path) -> Way:
    """The plain loop."""
    renamed = f"{topic}.plain"
    command = (
        sys.executable, "-m", "tests.benchmarks.copying.plain_loop", source.bootstrap,
        server.bootstrap, topic, renamed, renamed,
    )  # fmt: skip
    return Way("plain loop", renamed, command, folder / renamed)


def mirror_maker(source: KafkaServer, server: PidleaseServer, topic: str, folder: Path) -> Way:
    """MirrorMaker 2, a process of its own for this flow."""
    name = f"source.{topic}"  # as its DefaultReplicationPolicy calls it
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    properties = write_properties(place, source.bootstrap, server.bootstrap, topic)
    return Way("MirrorMaker 2", name, (*java_command(), str(properties)), place)
