"""The supervisor of workers: starts them, passes signals on, and restarts those that end.

It shares no state with the workers, serves nothing, and has no event loop and no threads: it forks.
Each worker is an active server of its own (--shared). All of them listen on the common addresses
(SO_REUSEPORT), and each on its own ports, which Metadata names.
"""

import errno
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from importlib import import_module
from typing import Final

import structlog

from pidlease import __version__
from pidlease.observability.repeated_lines import LINES
from pidlease.storage.errors import DataFolderError
from proxy.app import StartError, Worker, serve
from proxy.cli.console import cannot_run
from proxy.configuration.component_configs import check_exposure
from proxy.configuration.listen_addresses import bound_sockets
from proxy.configuration.named_listeners import kafka_listeners, shown_kafka_listeners
from proxy.configuration.settings import Settings, SettingsError
from proxy.log_output import set_level, set_worker
from proxy.service_manager import ServiceManager, ServiceState
from proxy.settings_reload import read_again
from proxy.workers.worker_process import WorkerProcess
from proxy.workers.worker_settings import check_workers, worker_settings

#: How often the workers are looked at without an event.
_LOOK_SECONDS: Final = 1.0
#: How much longer than its own bound a worker's stop may take: it may be suspended.
_KILL_AFTER_SECONDS: Final = 5.0
#: The workers of a supervisor that was killed have ended by then.
_END_WITHIN_SECONDS: Final = 5.0
_LOOK_AGAIN_SECONDS: Final = 0.05
#: Loaded before the forks: a worker starts sooner, and all of them share this memory.
_PRELOADED: Final = ("proxy.backends.kafka_backend", "kazoo.client", "uvloop", "httptools", "httpx")
_CANNOT_START: Final = 2
_NOT_IN_TIME: Final = 3

_log = structlog.get_logger(__name__)


def supervise(settings: Settings, load: Callable[[], Settings]) -> int:
    """Run workers until a signal; return the exit code.

    Parameters:
        settings: of all workers; `workers` is at least 2.
        load: reads the settings again.

    Raises:
        StartError: the workers cannot run with these settings.
    """
    try:
        check_exposure(settings)
        check_workers(settings)
        for each in kafka_listeners(settings):
            wait_until_free(each.address, each.option)
        wait_until_free(settings.http_listen, "--http-listen")
    except (DataFolderError, OSError) as error:
        raise StartError(str(error)) from error

    def run(now: Settings, number: int, manager: ServiceManager) -> int:
        set_worker(number)
        own = worker_settings(now, number)
        worker = Worker(manager, kafka_listeners(now), now.http_listen, now.data_dir)
        try:
            serve(own, lambda: worker_settings(load(), number), worker)
        except (StartError, SettingsError) as error:
            cannot_run(f"worker {number}: {error}")
            return _CANNOT_START
        return 0

    manager = ServiceManager.from_environment(os.environ, os.getpid())
    for name in _PRELOADED:
        import_module(name)
    gc.freeze()
    workers = [WorkerProcess(number) for number in range(1, settings.workers + 1)]
    _log.info("starting workers", version=__version__, workers=len(workers),
              kafka=shown_kafka_listeners(settings), http=settings.http_listen)  # fmt: skip
    return Supervisor(settings, load, workers, run, manager).run()


def wait_until_free(
    address: str, setting: str, patience_seconds: float = _END_WITHIN_SECONDS
) -> None:
    """Check that no other process listens on an address.

    With SO_REUSEPORT, another server of this user would get a part of the connections. But the
    workers of a supervisor that was killed end a moment later than it, so they are waited for.

    Parameters:
        address: HOST:PORT.
        setting: the setting's name, for the error.
        patience_seconds: how long to wait while it is in use.

    Raises:
        OSError: the address is in use, or not this machine's.
    """
    latest = time.monotonic() + patience_seconds
    while True:
        try:
            for each in bound_sockets(address, setting):
                each.close()
        except OSError as error:
            in_use = isinstance(error.__cause__, OSError) and (
                error.__cause__.errno == errno.EADDRINUSE
            )
            if not in_use or time.monotonic() >= latest:
                raise
            time.sleep(_LOOK_AGAIN_SECONDS)
        else:
            return


class Supervisor:
    """Starts, watches and stops workers.

    Parameters:
        settings: of all workers.
        load: reads the settings again.
        run: what a worker does, by the settings of all, its number, and the manager that gets its
            reports; returns its exit code.
        manager: the supervisor's own service manager.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        workers: Sequence[WorkerProcess],
        run: Callable[[Settings, int, ServiceManager], int],
        manager: ServiceManager | None,
    ) -> None:
        self._settings = settings
        self._load: Final = load
        self._workers: Final = workers
        self._run: Final = run
        self._manager: Final = manager
        self._watchdog_seconds: Final = 0.0 if manager is None else manager.watchdog_seconds
        self._received: Final[set[signal.Signals]] = set()
        #: Whether all workers have served at the same time.
        self._complete = False
        #: The exit code of the stop that has begun; None: none has.
        self._code: int | None = None
        #: Workers that have not handled SIGHUP yet, because they were starting.
        self._reloads: Final[set[int]] = set()

    def run(self) -> int:
        """Run the workers until SIGTERM or SIGINT; return the exit code."""
        with self._signals() as wake:
            for each in self._workers:
                self._start(each)
            while self._code is None:
                self._wait(wake)
                self._watch()
            self._stop(wake)
        if self._manager is not None:
            self._manager.close()
        LINES.flush(everything=True)
        _log.info("stopped", workers=len(self._workers))
        return self._code

    @contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        """Note signals during the block; the socket becomes readable when one has come."""
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        wake, written = socket.socketpair()
        with closing(wake), closing(written):
            wake.setblocking(False)  # noqa: FBT003 - of the library
            written.setblocking(False)  # noqa: FBT003 - of the library
            signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
            for each in numbers:
                signal.signal(each, lambda number, _: self._received.add(signal.Signals(number)))
            try:
                yield wake
            finally:
                for each in numbers:
                    signal.signal(each, signal.SIG_DFL)
                signal.set_wakeup_fd(-1)

    def _wait(self, wake: socket.socket) -> None:
        """Wait for a signal, a report, or the time to look again; then read all reports."""
        seconds = min(_LOOK_SECONDS, self._watchdog_seconds / 4 or _LOOK_SECONDS)
        if self._code is None:
            now = time.monotonic()
            due = [each.restart_at - now for each in self._workers if not each.runs]
            seconds = max(0.0, min([seconds, *due]))
        reports = [each.reports for each in self._workers if each.reports is not None]
        ready, _, _ = select.select([wake, *reports], [], [], seconds)
        if wake in ready:
            wake.recv(1024)
        for each in self._workers:
            each.read_reports()
        if self._manager is not None:
            self._manager.report(self._state())

    def _state(self) -> ServiceState:
        serving = sum(each.serving for each in self._workers)
        if serving == len(self._workers):
            return ServiceState(started=True, text=f"{serving} workers serve")
        waits = next(each for each in self._workers if not each.serving)
        return ServiceState(
            started=self._complete,
            text=f"{serving} of {len(self._workers)} workers serve;"
            f" worker {waits.number}: {waits.text}",
        )

    # ------------------------------------------------------------------ while it runs

    def _start(self, worker: WorkerProcess) -> None:
        run = partial(self._run, self._settings, worker.number)
        worker.start(run, self._watchdog_seconds, self._workers)

    def _watch(self) -> None:
        """Handle signals and ended workers, and start those that are due."""
        self._pass_reloads_on()
        for each in self._workers:
            if each.runs:
                self._reap(each)
            elif self._code is None and time.monotonic() >= each.restart_at:
                self._start(each)
        if not self._complete and all(each.serving for each in self._workers):
            self._complete = True
            _log.info("all workers serve", version=__version__, workers=len(self._workers))
        if self._received & {signal.SIGTERM, signal.SIGINT}:
            self._code = 0

    def _reap(self, worker: WorkerProcess) -> None:
        """Note the end of a worker; end one that hangs."""
        code = worker.exit_code()
        if code is None:
            if 0 < self._watchdog_seconds < worker.silent_seconds():
                LINES.write(_log, "error", "a worker does not report and is killed",
                            worker.pid, number=worker.number, pid=worker.pid)  # fmt: skip
                worker.send(signal.SIGKILL)
            return
        served, seconds = worker.serving, worker.ended()
        if code == _CANNOT_START and not served and not self._complete:
            _log.error("a worker cannot start, so all are stopped", number=worker.number)
            self._code = _CANNOT_START
            return
        _log.error("a worker has ended and is started again", number=worker.number,
                   pid=worker.pid, reason=_reason(code), seconds=seconds)  # fmt: skip

    def _pass_reloads_on(self) -> None:
        """Read the settings again at SIGHUP, and have the workers do so."""
        if signal.SIGHUP in self._received:
            self._received.discard(signal.SIGHUP)
            self._settings = read_again(self._settings, self._load)
            set_level(self._settings.log_level)
            self._reloads.update(each.number for each in self._workers)
        for each in self._workers:
            # Before its first report it would end by the signal.
            if each.number in self._reloads and each.runs and each.heard:
                self._reloads.discard(each.number)
                each.send(signal.SIGHUP)

    # ------------------------------------------------------------------ stopping

    def _stop(self, wake: socket.socket) -> None:
        """Stop one worker after the other: the rest serve meanwhile."""
        _log.info("stopping workers", workers=len(self._workers))
        if self._manager is not None:
            self._manager.stopping()
        for each in reversed(self._workers):
            if each.runs:
                each.send(signal.SIGTERM)
                self._await_end(each, wake)

    def _await_end(self, worker: WorkerProcess, wake: socket.socket) -> None:
        settings = self._settings
        seconds = settings.stop_delay_seconds + settings.stop_seconds + _KILL_AFTER_SECONDS
        deadline = time.monotonic() + seconds
        killed = False
        while (code := worker.exit_code()) is None:
            self._wait(wake)
            if not killed and time.monotonic() > deadline:
                killed = True
                worker.send(signal.SIGKILL)
        worker.ended()
        if killed or code == _NOT_IN_TIME:
            self._code = self._code or _NOT_IN_TIME
        if code and worker.heard:  # before its first report, it ends by the signal
            _log.error("a worker has not stopped in order", number=worker.number,
                       reason=_reason(code))  # fmt: skip


def _reason(code: int) -> str:
    """Return the end of a process in words."""
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
