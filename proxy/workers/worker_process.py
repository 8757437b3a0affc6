"""One worker as its supervisor sees it: a forked process that reports its state."""

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final, NoReturn

from pidlease.core.backoff import Backoff
from pidlease.observability.repeated_lines import LINES
from proxy.service_manager import ServiceManager

#: Delays before a worker that has ended is started again.
_RESTART_BACKOFF: Final = Backoff(0.2, 15.0)
#: After this time of service, the next end counts as the first one.
_STEADY_SECONDS: Final = 30.0
#: prctl(2): the signal that a process gets when the one that forked it ends.
_PR_SET_PDEATHSIG: Final = 1
#: The most bytes of a report.
_REPORT_BYTES_MAX: Final = 4096
#: The exit code of a worker with an error that nothing handles.
_BUG: Final = 1
#: What a worker handles itself; until then it ends by them.
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class WorkerProcess:
    """One worker. It is forked: nothing is loaded again, and it has the supervisor's settings.

    Parameters:
        number: from 1 on.

    Attributes:
        reports: the worker's reports arrive here; None: it does not run.
        serving: whether its start is complete.
        heard: whether it has reported since its start, and so handles signals.
        text: its last report, for people.
        restart_at: when to start it again, by the monotonic clock.
    """

    def __init__(self, number: int) -> None:
        self.number: Final = number
        self.reports: socket.socket | None = None
        self.serving = False
        self.heard = False
        self.text = ""
        self.pid = 0
        self.restart_at = 0.0
        self._failures = 0
        self._serving_at = 0.0
        self._heard_at = 0.0

    @property
    def runs(self) -> bool:
        """Whether it runs, as far as is known."""
        return self.reports is not None

    def start(
        self,
        run: Callable[[ServiceManager], int],
        watchdog_seconds: float,
        others: Iterable["WorkerProcess"],
    ) -> None:
        """Fork the worker.

        Parameters:
            run: what the worker does; returns its exit code. The manager gets its reports.
            watchdog_seconds: after this time without a report it will be killed; 0: it will not.
            others: all workers; it closes what it inherits of them.
        """
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.setblocking(False)  # noqa: FBT003 - of the library
        # What is not written yet would be written by the worker as well.
        LINES.flush(everything=True)
        sys.stderr.flush()
        parent = os.getpid()
        # A signal that comes before the worker handles it itself must not be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            inherited = [ours, *(each.reports for each in others if each.reports is not None)]
            _be_worker(parent, inherited, lambda: run(ServiceManager(its, watchdog_seconds)))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        its.close()
        self.pid, self.reports = pid, ours
        self.serving = self.heard = False
        self.text = "starting"
        self._heard_at = time.monotonic()

    def read_reports(self) -> None:
        """Read what it has reported."""
        while self.reports is not None:
            try:
                report = self.reports.recv(_REPORT_BYTES_MAX).decode(errors="replace")
            except BlockingIOError:
                return
            self.heard, self._heard_at = True, time.monotonic()
            for line in report.splitlines():
                name, _, value = line.partition("=")
                if name == "STATUS":
                    self.text = value
                elif name == "READY":
                    self.serving, self._serving_at = True, time.monotonic()

    def silent_seconds(self) -> float:
        """Return how long it has not reported."""
        return time.monotonic() - self._heard_at

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; it has not been waited for, so the pid is its own."""
        os.kill(self.pid, number)

    def exit_code(self) -> int | None:
        """Return its exit code, negative for a signal, once; None: it runs on."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def ended(self) -> float:
        """Note that it has ended; return in how many seconds to start it again."""
        now = time.monotonic()
        if self.reports is not None:
            self.reports.close()
        self.reports = None
        if self.serving and now - self._serving_at > _STEADY_SECONDS:
            self._failures = 0
        self._failures += 1
        self.serving = False
        seconds = _RESTART_BACKOFF.seconds(self._failures)
        self.restart_at = now + seconds
        return seconds


def _end_with(parent: int) -> None:
    """Have the kernel end this process with the supervisor, however that ends.

    Raises:
        OSError: the system refuses it.
    """
    system = ctypes.CDLL(None, use_errno=True)
    if system.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) is refused here")
    if os.getppid() != parent:  # it has ended already, so no signal will come
        os._exit(_BUG)


def _be_worker(
    parent: int, inherited: Collection[socket.socket], run: Callable[[], int]
) -> NoReturn:
    """Run in the forked process, and end it without returning to what the supervisor was doing."""
    code = _BUG
    try:
        _end_with(parent)
        # Ctrl-C in a terminal reaches the supervisor alone, which stops the workers in turn.
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        for each in inherited:
            each.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        code = run()
    except BaseException:  # noqa: BLE001 - the process ends, and says why
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
