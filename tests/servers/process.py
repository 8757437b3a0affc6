"""A child process with a log file: started, watched, and ended by its pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.seeds import SOAK
from tests.servers.forked import Forked
from tests.servers.waiting import until

_POLL_S = 0.05
_LOG_TAIL_BYTES = 4000
_PIDLEASE = (sys.executable, "-m", "proxy")


class ServerError(RuntimeError):
    """A server did not start, did not answer in time, or ended unexpectedly."""


@dataclass
class ServerProcess:
    """A server's process; it can be started again after it has ended.

    Attributes:
        forks: whether `pidlease` may be forked from a process that has imported it (`Forked`).
    """

    name: str
    log_path: Path
    cwd: Path
    forks: bool = True
    _child: subprocess.Popen[bytes] | Forked | None = field(default=None, init=False)

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a command; append its output to the log of earlier starts."""
        if self.alive:
            raise ServerError(f"{self.name} runs already as pid {self.pid}")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        if self.forks and _may_fork(command):
            arguments = command[len(_PIDLEASE) :]
            self._child = Forked(arguments, env, self.cwd, self.log_path)
            return
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.cwd,
                env=dict(env),
                # Ctrl-C in the terminal must reach the test, which then stops the server.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The pid of the last start."""
        if self._child is None:
            raise ServerError(f"{self.name} was never started")
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it runs now."""
        return self._child is not None and self._child.poll() is None

    @property
    def returncode(self) -> int | None:
        """Its exit code (negative: the signal); None while it runs or before the start."""
        return None if self._child is None else self._child.poll()

    def wait_exit(self, timeout_s: float) -> int:
        """Wait until it ends by itself, e.g. at a fault point; return its exit code."""
        if self._child is None:
            raise ServerError(f"{self.name} was never started")
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"{self.name} runs on after {timeout_s} s{self.tail()}") from error

    def kill9(self) -> None:
        """Send SIGKILL, and wait until it has ended."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def stop(self, timeout_s: float) -> int | None:
        """Send SIGTERM and return the exit code; raise if it had to be killed."""
        if self._child is None:
            return None
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill9()
            raise ServerError(
                f"{self.name} did not end within {timeout_s} s after SIGTERM{self.tail()}"
            ) from error

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop it during the block (SIGSTOP); data sent to it waits."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            tasks = list(Path(f"/proc/{self.pid}/task").glob("*/stat"))
            until(lambda: all(map(_stands_still, tasks)), "each thread to stand still", 0.005)
            yield
        finally:
            if self.alive:  # it may have been killed meanwhile
                os.kill(self.pid, signal.SIGCONT)

    def wait_until(self, answers: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `answers()` is true; raise early if the process has ended."""
        deadline = time.monotonic() + timeout_s
        while not answers():
            if not self.alive:
                raise ServerError(f"{self.name} ended with {self.returncode}{self.tail()}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} gave no answer within {timeout_s} s{self.tail()}")
            time.sleep(_POLL_S)

    def cpu_s(self) -> float:
        """Processor seconds that it has used so far, all threads together."""
        # After the last ")": the name in parentheses may contain blanks.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def tail(self) -> str:
        """Return the end of the log, for a message."""
        try:
            text = self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""
        return f"; the end of {self.log_path}:\n{text}"


def in_short_test() -> bool:
    """Whether a test other than a soak runs: then servers may be started in cheaper ways."""
    return "PYTEST_CURRENT_TEST" in os.environ and not SOAK


def _may_fork(command: Sequence[str]) -> bool:
    own, what = tuple(command[: len(_PIDLEASE)]), command[len(_PIDLEASE) :]
    return in_short_test() and own == _PIDLEASE and what[:1] in (["serve"], ["copy"])


def _stands_still(task: Path) -> bool:
    try:
        return task.read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):  # a thread that has ended
        return True
