"""Starts `pidlease` by a fork of a process that has imported it already.

The import takes most of a second of a core, and a suite may start servers hundreds of times. The
forked process leads its own session, and a kill -9 kills it.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pidlease.testing.preloaded_server", "uvloop", __name__])
_POLL_S: Final = 0.005


class Forked:
    """A process with the used part of `subprocess.Popen`'s interface.

    Parameters:
        arguments: of `pidlease`.
        env: its whole environment.
        log: gets its output, appended.
    """

    def __init__(
        self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path
    ) -> None:
        log.touch()  # the caller may read it at once
        given = (list(arguments), dict(env), str(cwd), str(log))
        self._process: Final = _CONTEXT.Process(target=_run, args=given, daemon=True)
        # The exit code is read once from a pipe, and several threads may call `poll`.
        self._looking: Final = threading.Lock()
        with _without_main_module():
            self._process.start()

    @property
    def pid(self) -> int:
        """The process's pid."""
        pid = self._process.pid
        if pid is None:
            raise RuntimeError("the process was not started")
        return pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        with self._looking:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends; return the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("pidlease", timeout or 0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL if it still runs."""
        self.send_signal(signal.SIGKILL)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Hide the caller's `__main__`: a script that starts a server would be run again by it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _run(arguments: list[str], env: dict[str, str], cwd: str, log: str) -> None:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for opened, standard in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(opened, standard)
    os.close(output)
    os.close(nothing)
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr] # a text file, not a test's
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["pidlease", *arguments]
    runpy.run_module("proxy", run_name="__main__")
