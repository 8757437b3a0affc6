"""Builds a server, and runs it until a signal. Only this module chooses the backend."""

import asyncio
import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, NamedTuple

import structlog
import uvicorn
from fastapi import FastAPI

from pidlease import __version__
from pidlease.coordination.name_bindings import NamesError
from pidlease.coordination.pid_sequence import SequenceError
from pidlease.engine.engine import Engine, wall_clock_ms
from pidlease.engine.outcome_history import OutcomeHistory
from pidlease.engine.topic_admin import TopicAdmin
from pidlease.log.segments.data_directory import claim_folder
from pidlease.observability.repeated_lines import LINES
from pidlease.storage.errors import DataFolderError
from pidlease.storage.file_faults import FaultPlan, FaultyFiles
from pidlease.storage.files import Files, RealFiles
from pidlease.storage.io_pool import IoPool
from proxy.backends.embedded_backend import Backend, EmbeddedBackend
from proxy.configuration.component_configs import (
    check_exposure,
    engine_config,
    listener_config,
    record_limits,
    security_config,
    streams_config,
)
from proxy.configuration.listen_addresses import bound_sockets
from proxy.configuration.named_listeners import (
    NamedListener,
    kafka_listeners,
    shown_kafka_listeners,
)
from proxy.configuration.settings import Settings
from proxy.http.connection_limit import ConnectionLimit
from proxy.http.console_answers import ConsoleSources
from proxy.http.direct_appends import wrap
from proxy.http.errors import add_handlers
from proxy.http.http_listener import HttpApi, add_http_api
from proxy.http.http_protocol import http_config
from proxy.http.http_server import HttpServer
from proxy.http.immediate_appends import Admit, ImmediateAppends
from proxy.kafka.kafka_listener import KafkaListener
from proxy.kafka.memory_budget import MemoryBudget
from proxy.log_output import write_repeats
from proxy.metrics_registry import MetricsRegistry, Parts
from proxy.ops.console_page import add_console_page
from proxy.ops.http_metrics import HttpMetrics
from proxy.ops.ops_api import metrics_app, ops_app
from proxy.ops.status_response import reason_of, replay_of
from proxy.security.security_config import SECURITY_FOLDER, ListenerSecurity, SecurityError
from proxy.service_manager import ServiceManager, ServiceState
from proxy.settings_reload import apply, read_again

if TYPE_CHECKING:
    from proxy.security.security import Security

#: How long a stop waits for HTTP requests with incomplete bodies. All others have their responses
#: by then.
_HTTP_STOP_SECONDS = 5

#: How often a start logs its progress.
_PROGRESS_SECONDS = 5

#: Threads for calls to the coordinator.
_COORDINATOR_THREADS = 4

#: The exit code of a stop that did not end in time.
_NOT_IN_TIME = 3

#: What can keep a server from starting.
_START_ERRORS = (
    DataFolderError, SequenceError, NamesError, OSError, SecurityError,
)  # fmt: skip

#: Why a server ends that another one has replaced.
_REPLACED = (
    "another server serves this Kafka cluster now, so this one has stepped down; start it again to"
    " stand by"
)

_log = structlog.get_logger(__name__)


class StartError(Exception):
    """The server cannot start; the message says why and what to do."""


class Worker(NamedTuple):
    """What several servers of one machine have in common.

    Attributes:
        manager: the supervisor.
        kafka: the listeners with the common addresses for Kafka clients.
        http_listen: the common address for HTTP clients.
        data_dir: the folder of the users and the ACLs is in this one.
    """

    manager: ServiceManager
    kafka: tuple[NamedListener, ...]
    http_listen: str
    data_dir: Path


class App:
    """A server: its components, their start and their stop.

    Parameters:
        load: reads the settings again.
        worker: what it has in common with the other workers of a supervisor; None: there are none.
    """

    def __init__(
        self, settings: Settings, load: Callable[[], Settings], worker: Worker | None = None
    ) -> None:
        self._settings = settings
        self._load = load
        self._worker = worker
        self._reloads: set[asyncio.Task[None]] = set()
        self._started_ms = wall_clock_ms()
        real = RealFiles()
        self._files: Files = real
        self._http_connections = ConnectionLimit(settings.connections_max, shared=settings.shared)
        self._metrics = MetricsRegistry(
            settings.log, Path(settings.data_dir), real.fsyncs,
            lambda: Parts(self._backend, self._engine, self._listener, self._security),
            self._http_connections,
        )  # fmt: skip
        self._history = OutcomeHistory(lambda: self._engine, self._metrics.lag)
        if settings.faults:
            self._files = FaultyFiles(self._files, FaultPlan(settings.faults))
        self._engine: Engine | None = None
        self._listener: KafkaListener | None = None
        self._security: Security | None = None
        self._topics: TopicAdmin | None = None
        self._backend: Backend | None = None
        self._pool: IoPool | None = None
        self._coordinator_pool: IoPool | None = None
        #: The servers of the HTTP listener, and of the one for metrics, with their tasks.
        self._http: dict[HttpServer, asyncio.Task[None]] = {}
        #: The one of the HTTP listener.
        self._api_server: HttpServer | None = None
        self._http_api: HttpApi | None = None
        #: The sockets of the listeners for Kafka clients.
        self._listeners: list[tuple[NamedListener, list[socket]]] = []
        #: Of the workers' common HTTP address, from the bind until connections are accepted.
        self._common_http: list[socket] = []
        self._last_moment: threading.Timer | None = None
        self._manager = (
            ServiceManager.from_environment(os.environ, os.getpid())
            if worker is None
            else worker.manager
        )

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then stop in order.

        Raises:
            StartError: the server cannot start.
        """
        tasks = [asyncio.create_task(write_repeats())]
        if self._manager is not None:
            tasks.append(asyncio.create_task(self._manager.run(self._service_state)))
        try:
            await self._run()
        finally:
            for each in tasks:
                each.cancel()
            LINES.flush(everything=True)

    def _service_state(self) -> ServiceState:
        waiting = self._backend.waiting if self._backend is not None else ""
        standing_by = self._backend is not None and self._backend.standing_by
        reason = reason_of(self._engine, waiting)
        return ServiceState(started=standing_by or not reason, text=reason or "serving")

    async def _run(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        if self._settings.faults:
            _log.warning("faults are on: this server will fail on purpose",
                         plan=self._settings.faults)  # fmt: skip
        signalled = asyncio.create_task(stop.wait())
        start = asyncio.create_task(self._start())
        await asyncio.wait({signalled, start}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not start.done():
                # A signal during the replay: nothing is lost, its result is only a cache.
                self._bound(self._settings.stop_seconds)
                start.cancel()
            await start
        except asyncio.CancelledError:
            await self._abandon()
            return
        except _START_ERRORS as error:
            self._bound(self._settings.stop_seconds)
            await self._abandon()
            raise StartError(str(error)) from error
        stepped_down = await self._until_stop(signalled)
        # A replaced server does not wait: its clients must find the new one.
        delay = 0.0 if stepped_down else self._settings.stop_delay_seconds
        self._bound(delay + self._settings.stop_seconds)
        await self._stop(delay)
        if stepped_down:
            loss = "" if self._backend is None else self._backend.loss
            raise StartError(loss or _REPLACED)

    def _bound(self, seconds: float) -> None:
        """End the process after this time, unless `ended` is called: a disk or Kafka may hang.

        Nothing is lost that a crash would not lose. A thread does it: the event loop may hang, too.
        """

        def end() -> None:
            LINES.flush(everything=True)
            _log.critical("the stop took too long; the process ends as by a crash", seconds=seconds)
            sys.stderr.flush()
            os._exit(_NOT_IN_TIME)

        if self._manager is not None:
            self._manager.stopping()
        self._last_moment = threading.Timer(seconds, end)
        self._last_moment.daemon = True
        self._last_moment.start()

    def ended(self) -> None:
        """Cancel the end that `_bound` has set: the process may go on after this server."""
        if self._manager is not None:
            self._manager.close()
        if self._last_moment is not None:
            self._last_moment.cancel()
            self._last_moment.join()

    async def _until_stop(self, signalled: asyncio.Task[bool]) -> bool:
        """Wait for a signal; True: another server has taken over instead."""
        if self._backend is None:
            raise AssertionError("the server has started")
        lost = asyncio.create_task(self._backend.lost.wait())
        await asyncio.wait({signalled, lost}, return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        return not signalled.done()

    async def _abandon(self) -> None:
        """Release the resources of an incomplete start."""
        await self._stop_http()
        bound = (each for _, sockets in self._listeners for each in sockets)
        for each in (*bound, *self._common_http):
            each.close()
        if self._backend is not None:
            await asyncio.to_thread(self._backend.release)
        await self._close_security()

    async def _close_security(self) -> None:
        if self._security is not None:
            await self._security.close()

    async def _start(self) -> None:
        check_exposure(self._settings)
        self._metrics.lag.start()
        await self._start_security()
        self._bind()
        await self._start_http()
        self._pool = IoPool(asyncio.get_running_loop(), self._settings.io_threads)
        self._coordinator_pool = IoPool(asyncio.get_running_loop(), _COORDINATOR_THREADS)
        backend = self._chosen_backend()(
            self._settings, self._files, self._pool, self._coordinator_pool
        )
        self._backend = backend
        if self._security is not None:
            backend.acls, backend.to_members = self._security.kafka_acls, self._security.to_members
        await backend.open()
        if self._security is not None:
            if backend.common is not None:
                await self._security.share(backend.common)
            await self._security.keep_stand_ins()
        self._engine = Engine(
            backend.store,
            backend.snapshots,
            backend.coordination,
            self._pool,
            engine_config(self._settings),
            appends=backend.appends,
            shared=backend.shared,
            states=backend.states,
        )
        await self._recover(self._engine)
        await backend.follow(self._engine)
        gc.freeze()
        gc.enable()
        await self._listen(backend, self._engine)
        await backend.join(self._engine)
        self._engine.ready = True
        await self._accept_common_http()
        if self._manager is not None:
            self._manager.report(self._service_state())
        settings = self._settings
        apart = {"metrics": settings.metrics_listen} if settings.metrics_listen is not None else {}
        _log.info("serving", version=__version__, kafka=shown_kafka_listeners(settings),
                  http=settings.http_listen, **apart, data=str(settings.data_dir))  # fmt: skip

    def _bind(self) -> None:
        for each in kafka_listeners(self._settings):
            self._listeners.append((each, bound_sockets(each.address, each.option)))
        if self._worker is not None:
            for each in self._worker.kafka:
                sockets = bound_sockets(each.address, each.option, with_others=True)
                self._listeners.append((each, sockets))
            http = self._worker.http_listen
            self._common_http = bound_sockets(http, "--http-listen", with_others=True)

    async def _accept_common_http(self) -> None:
        """Accept HTTP requests at the workers' common address: only now, since others serve."""
        http = self._api_server
        if http is None:
            raise AssertionError("the HTTP listener starts first")
        for each in self._common_http:
            await http.accept_at(each)
        self._common_http = []

    async def _start_security(self) -> None:
        config = security_config(self._settings)
        common = self._settings if self._worker is None else self._worker
        folder = Path(common.data_dir) / SECURITY_FOLDER
        if config.is_off:
            if self._files.exists(folder / "quotas"):
                _log.warning("no quota is in force: without TLS, logins and ACLs, clients have no"
                             " names", file=str(folder / "quotas"))  # fmt: skip
            return
        # Here, because a server without security needs none of it.
        from proxy.security.security import Security  # noqa: PLC0415

        security = Security(config, self._files, folder)
        data_dir = Path(common.data_dir)
        if config.audit_log is not None and _is_inside(config.audit_log, data_dir):
            await asyncio.to_thread(claim_folder, self._files, data_dir)
        await security.start()
        self._security = security

    def _secure_http(self, app: FastAPI, listener: ListenerSecurity) -> Admit | None:
        """Let only known clients through; return what admits requests in front of the application.

        None: all are admitted.
        """
        if self._security is None:
            return None
        from proxy.http.access.http_access import HttpAccess  # noqa: PLC0415
        from proxy.http.access.request_access import RequestAccess  # noqa: PLC0415
        from proxy.http.access.route_rights import RouteRights  # noqa: PLC0415

        rights = RouteRights(self._settings.stream_prefix)
        access = partial(HttpAccess, security=self._security, rights=rights, login=listener.login)
        wrap(app, access)
        return RequestAccess(self._security, rights, login=listener.login).admit_now

    def _chosen_backend(self) -> type[Backend]:
        if self._settings.log != "kafka":
            return EmbeddedBackend
        # Here, because an embedded log needs no client of Kafka.
        from proxy.backends.kafka_backend import KafkaBackend  # noqa: PLC0415

        return KafkaBackend

    async def _recover(self, engine: Engine) -> None:
        async def log_progress() -> None:
            while True:
                await asyncio.sleep(_PROGRESS_SECONDS)
                _log.info("replaying", **replay_of(engine))

        progress = asyncio.create_task(log_progress())
        try:
            await engine.start()
        finally:
            progress.cancel()

    async def _listen(self, backend: Backend, engine: Engine) -> None:
        config = listener_config(self._settings, backend.cluster_id)
        budget = MemoryBudget(config.memory_bytes_max)
        apis = backend.apis(engine, config, budget)
        self._topics = apis.topics
        if self._security is None:
            self._listener = KafkaListener(config, budget, apis)
        else:
            from proxy.kafka.access.secure_listener import secure_listener  # noqa: PLC0415

            self._listener = secure_listener(config, budget, apis, engine, self._security)
        for each, sockets in self._listeners:
            try:
                await self._listener.listen(sockets, each.name)
            except OSError as error:
                await backend.close()
                await engine.stop()
                raise OSError(f"{each.option} {each.address}: {error}") from error

    async def _start_http(self) -> None:
        listeners = bound_sockets(self._settings.http_listen, "--http-listen")
        await self._start_metrics()
        apart = self._settings.metrics_listen is not None
        scrape = None if apart else self._metrics.scrape
        app = ops_app(lambda: self._engine, self._started_ms, scrape, self._waiting)
        self._http_api = add_http_api(
            app, lambda: self._engine, lambda: self._topics, record_limits(self._settings),
            [each for each in self._settings.cors_origins.split(",") if each],
            streams_config(self._settings),
            ConsoleSources(self._history, lambda: self._backend.brokers() if self._backend else ()),
            None if self._security is None else self._security.to_members,
            lambda: self._backend.rows if self._backend else None,
            lambda: self._backend.cluster_id if self._backend else "",
        )  # fmt: skip
        if self._settings.console:
            add_console_page(app)
        self._http_api.start()
        config = security_config(self._settings).http
        admit = self._secure_http(app, config)
        self._history.start()
        wrap(app, partial(HttpMetrics, counts=self._metrics.http))
        immediate = ImmediateAppends(self._http_api, self._metrics.http.answered, admit)
        self._api_server = self._serve_http(
            http_config(app, _HTTP_STOP_SECONDS, immediate, self._http_connections),
            config,
            listeners,
        )

    async def _start_metrics(self) -> None:
        """Serve metrics and health on an address of their own, if there is one."""
        address = self._settings.metrics_listen
        if address is None:
            return
        listeners = bound_sockets(address, "--metrics-listen")
        app = metrics_app(lambda: self._engine, self._metrics.scrape, self._waiting)
        add_handlers(app)
        config = security_config(self._settings).metrics
        if not config.is_plain:
            self._secure_http(app, config)
        self._serve_http(
            http_config(app, _HTTP_STOP_SECONDS, limit=self._http_connections), config, listeners
        )

    def _serve_http(
        self, config: uvicorn.Config, listener: ListenerSecurity, sockets: list[socket]
    ) -> HttpServer:
        security = self._security
        if listener.tls and security is not None and security.certificates is not None:
            config.load()
            config.ssl = security.certificates.context
        server = HttpServer(config, sockets)
        # Not serve(): it would install uvicorn's signal handlers; this server stops in its own
        # order.
        self._http[server] = asyncio.create_task(server._serve())
        return server

    def _waiting(self) -> str:
        return self._backend.waiting if self._backend is not None else ""

    def _reload(self) -> None:
        """Read the settings again after SIGHUP, in a thread."""
        task = asyncio.create_task(self._read_again())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _read_again(self) -> None:
        self._settings = await asyncio.to_thread(read_again, self._settings, self._load)
        apply(self._settings, self._engine, self._listener, self._http_connections)
        if self._security is not None:
            await self._security.reload()

    async def _stop(self, delay: float) -> None:
        """Stop in order: readiness, listeners, batches in flight, snapshot, log."""
        _log.info("stopping")
        await self._announce(delay)
        if self._http_api is not None:
            self._http_api.close()
        if self._listener is not None:
            await self._listener.close()
        if self._backend is not None:
            await self._backend.close()
        if self._engine is not None:
            await self._engine.stop()
        if self._backend is not None:
            await asyncio.to_thread(self._backend.release)
        for pool in (self._coordinator_pool, self._pool):
            if pool is not None:
                # In a thread: a read that is still running may need the event loop.
                await asyncio.to_thread(pool.close)
        await self._stop_http()
        await self._history.stop()
        await self._close_security()
        await self._metrics.lag.stop()
        LINES.flush(everything=True)
        _log.info("stopped")

    async def _announce(self, delay: float) -> None:
        """Have new requests sent elsewhere, while this server still serves."""
        if self._engine is not None:
            self._engine.leaving = True
        await asyncio.sleep(delay)
        if self._backend is not None:
            await self._backend.drain()
        if self._engine is not None:
            self._engine.ready = False

    async def _stop_http(self) -> None:
        if self._http_api is not None:
            await self._http_api.disconnect()
        for server in self._http:
            server.should_exit = True
        for task in self._http.values():
            with suppress(asyncio.CancelledError):
                await task


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is in a folder; either may be relative."""
    return path.absolute().is_relative_to(folder.absolute())


def _raise_open_files() -> None:
    """Raise the limit of open files to the maximum: each partition and client needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(settings: Settings, load: Callable[[], Settings], worker: Worker | None = None) -> None:
    """Run a server until a signal.

    Parameters:
        load: reads the settings again, for those that may change while the server runs.
        worker: what it has in common with the other workers of a supervisor.

    Raises:
        StartError: the server cannot start.
    """
    # Results of appends come from threads: switch to them at once.
    sys.setswitchinterval(0.0005)
    _raise_open_files()
    # A million producers are millions of objects without cycles: collect rarely. Not at all during
    # the start: there is nothing to collect, and a collection would visit every object.
    gc.set_threshold(100_000, 50, 1000)
    gc.disable()
    app = App(settings, load, worker)
    try:
        if sys.platform == "win32":
            asyncio.run(app.run())
            return
        import uvloop  # noqa: PLC0415 - not available on Windows

        uvloop.run(app.run())
    finally:
        app.ended()
