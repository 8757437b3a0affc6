"""A Spark application as child processes, which are killed and stopped together."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from tests.servers.pidlease import PidleaseServer
from tests.servers.process import ServerProcess
from tests.servers.spark import connector, jvm_settings, spark_environment
from tests.servers.waiting import WAIT_S, until

_ROOT = Path(__file__).resolve().parents[3]


class SparkApplication:
    """A run of a Python program that starts a Spark session.

    Parameters:
        folder: for its log.
        command: what follows `python -m`.
    """

    def __init__(self, folder: Path, *command: str) -> None:
        self.process = ServerProcess("spark", folder / "spark.log", _ROOT)
        self._folder = folder
        self._command = (sys.executable, "-m", *command)

    def start(self) -> Self:
        """Begin."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.process.start(self._command, {**os.environ, **spark_environment()})
        return self

    @property
    def text(self) -> str:
        """Its output."""
        return self.process.log_path.read_text()

    def kill9(self) -> None:
        """Kill driver, virtual machine and workers at once."""
        members = self._members()
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait_exit(WAIT_S)
        until(lambda: not any(map(_runs, members)), "the application to be gone")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all processes during the block (SIGSTOP)."""
        members = self._members()
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _members(self) -> list[int]:
        """Return all processes of its session: Spark's workers are in another process group."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == self.process.pid:
                        found.append(int(entry.name))
        return found


class SparkCopy(SparkApplication):
    """A run of `pidlease spark copy`.

    Parameters:
        folder: for its log.
        source: its HOST:PORT.
        server: the destination.
        options: further options of the command line.
    """

    def __init__(
        self, folder: Path, source: str, server: PidleaseServer, checkpoint: Path, *options: str
    ) -> None:
        super().__init__(
            folder,
            "proxy", "spark", "copy", "--from", f"kafka:{source}",
            "--to", server.bootstrap, "--leases", server.http_url, "--checkpoint", str(checkpoint),
            "--jars", ",".join(map(str, connector())), "--master", "local[2]",
            "--conf", f"spark.local.dir={folder / 'local'}",
            *(word for each in jvm_settings().items() for word in ("--conf", "=".join(each))),
            *options,
        )  # fmt: skip


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
