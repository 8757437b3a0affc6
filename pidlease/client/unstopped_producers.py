"""Producers that were not stopped: at the end of the program their records are delivered, or named.

A program that has lost records ends with 120, Python's own exit code for buffered data that could
not be flushed at the end (see `sys.exit`).
"""

import atexit
import logging
import os
import sys
import threading
import warnings
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from typing import Final, Protocol
from weakref import WeakSet

_log = logging.getLogger(__name__)


class Unstopped(Protocol):
    """A producer that was started and not stopped.

    Attributes:
        process: the id of the process that started it.
    """

    process: int

    def at_exit(self) -> None:
        """Deliver, or report what is lost: the program ends."""


class _Unflushed:
    """Stands for sys.stderr; its flush fails, so that Python ends with its exit code for that."""

    def __init__(self, stderr: object) -> None:
        self._stderr: Final = stderr

    def __getattr__(self, name: str) -> object:
        return getattr(self._stderr, name)

    def flush(self) -> None:
        """Flush, and fail.

        Raises:
            OSError: always.
        """
        if self._stderr is not None:
            self._stderr.flush()  # type: ignore[attr-defined]
        raise OSError("records of a producer are lost")


class _Exit:
    """What happens at the end of this process.

    Attributes:
        producers: those that were started and not stopped; of a forked process also the parent's.
        process: the process that will do it.
        has_lost: whether records were lost.
    """

    def __init__(self) -> None:
        self.producers: Final[WeakSet[Unstopped]] = WeakSet()
        self.process = 0
        self.has_lost = False

    def prepare(self) -> None:
        """Make sure that `run` is called at the end of this process."""
        if self.process == os.getpid():
            return
        self.process, self.has_lost = os.getpid(), False
        atexit.register(self.run)
        if parent_process() is not None:
            # Processes of multiprocessing end without atexit, before their threads are joined.
            Finalize(None, self._run_after_threads, exitpriority=0)

    def _run_after_threads(self) -> None:
        for each in threading.enumerate():
            if not each.daemon and each is not threading.current_thread():
                each.join()
        self.run()

    def run(self) -> None:
        """Let the producers deliver, and set the exit code."""
        if self.process != os.getpid():
            return
        for each in list(self.producers):
            if each.process == os.getpid():
                each.at_exit()
        if self.has_lost:
            sys.stderr = _Unflushed(sys.stderr)


_EXIT: Final = _Exit()


def watch(producer: Unstopped) -> None:
    """Note a producer that was started."""
    _EXIT.prepare()
    _EXIT.producers.add(producer)


def forget(producer: Unstopped) -> None:
    """Note that a producer was stopped."""
    _EXIT.producers.discard(producer)


def warn_unstopped(producer: object) -> None:
    """Warn as Python does of an unclosed transport; by default, Python does not show it."""
    warnings.warn("a producer was not stopped", ResourceWarning, source=producer, stacklevel=2)


def report_lost(what: str) -> None:
    """Report that records were lost because their producer was not stopped.

    Parameters:
        what: how many, and why.
    """
    _EXIT.has_lost = True
    text = f"a producer was not stopped, and records are lost: {what}"
    if _log.hasHandlers():
        _log.error("%s", text)
    if sys.stderr is not None:  # a log may be a file
        sys.stderr.write(f"pidlease: {text}\n")
