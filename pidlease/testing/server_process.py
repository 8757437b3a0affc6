"""A child process with a log file: started, watched, and ended by its pid."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pidlease.testing.forked_server import Forked

_POLL_S: Final = 0.02
_LOG_TAIL_BYTES: Final = 4000
#: The command of this project, run by this interpreter.
PIDLEASE: Final = (sys.executable, "-m", "proxy")


class ServerError(RuntimeError):
    """A server did not start, did not answer in time, or ended unexpectedly.

    ```python
    from pathlib import Path

    from pidlease.testing import PidleaseServer, ServerError

    try:
        PidleaseServer(Path("server"), settings={"fsync": "sometimes"}).start()
    except ServerError as error:
        print(error)  # the end of the server's log says that fsync is wrong
    ```
    """


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
        if self.forks and self.may_fork(command):
            arguments = command[len(PIDLEASE) :]
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

    def may_fork(self, command: Sequence[str]) -> bool:
        """Return whether a command may be run by a fork.

        Outside a test the forked process would run the caller's script once more.
        """
        own, arguments = tuple(command[: len(PIDLEASE)]), command[len(PIDLEASE) :]
        in_test = "PYTEST_CURRENT_TEST" in os.environ
        return in_test and own == PIDLEASE and arguments[:1] in (["serve"], ["copy"])

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
        """Wait until the process ends without a signal from here; return its exit code."""
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

    def wait_until(self, answers: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `answers()` is true; raise early if the process has ended."""
        deadline = time.monotonic() + timeout_s
        while not answers():
            if not self.alive:
                raise ServerError(f"{self.name} ended with {self.returncode}{self.tail()}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} gave no answer within {timeout_s} s{self.tail()}")
            time.sleep(_POLL_S)

    def tail(self) -> str:
        """Return the end of the log, for a message."""
        try:
            text = self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""
        return f"; the end of {self.log_path}:\n{text}"
