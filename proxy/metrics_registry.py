"""Collects the metrics of a server, and formats them for a scrape."""

import asyncio
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from typing_extensions import override

from pidlease import __version__
from pidlease.engine.engine import Engine
from pidlease.engine.engine_metrics import engine_metrics
from pidlease.observability import metric_catalogue as metrics
from pidlease.observability.histogram import Histogram
from pidlease.observability.loop_lag import LoopLag
from pidlease.observability.metric_catalogue import PidleaseCollector
from proxy.backends.embedded_backend import Backend
from proxy.http.connection_limit import ConnectionLimit
from proxy.kafka.kafka_listener import KafkaListener
from proxy.kafka.listener_metrics import forward_metrics, listener_metrics
from proxy.ops.http_metrics import HttpCounts

if TYPE_CHECKING:
    from proxy.security.security import Security

_LAG_LOOK_SECONDS: Final = 0.05
#: How long a scrape waits for the disk's free space; then it reports the previous value.
_DISK_SECONDS: Final = 1.0


class Parts(NamedTuple):
    """A server's components; None: not created yet."""

    backend: Backend | None
    engine: Engine | None
    listener: KafkaListener | None
    security: "Security | None" = None


class _Collected(Collector):
    """Metrics of one moment, for a thread to format."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    @override
    def collect(self) -> list[Metric]:
        return self._found


class MetricsRegistry:
    """Collects the metrics of a server and of its components as they are created.

    Parameters:
        log: the kind of log, for build_info.
        data_dir: its disk is measured.
        fsyncs: the durations of fsyncs.
        parts: returns the current components.
        connections: those of the HTTP ports.
    """

    def __init__(
        self,
        log: str,
        data_dir: Path,
        fsyncs: Histogram,
        parts: Callable[[], Parts],
        connections: ConnectionLimit,
    ) -> None:
        self.registry: Final = CollectorRegistry()
        self.registry.register(PidleaseCollector([self._server, self._parts]))
        ProcessCollector(registry=self.registry)
        self.lag: Final = LoopLag(_LAG_LOOK_SECONDS)
        self.http: Final = HttpCounts()
        self._connections: Final = connections
        self._now: Final = parts
        self._log: Final = log
        self._data_dir: Final = data_dir
        self._fsyncs: Final = fsyncs
        self._disk: tuple[int, int] | None = None
        self._measuring: asyncio.Task[None] | None = None

    async def scrape(self) -> bytes:
        """Return the metrics of one moment as text, which a thread formats."""
        await self.measure_disk()
        found = _Collected(list(self.registry.collect()))
        return await asyncio.to_thread(generate_latest, found)

    async def measure_disk(self) -> None:
        """Measure the disk's free space; only one thread waits for a disk that hangs."""
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(asyncio.to_thread(self._measure_disk))
        await asyncio.wait({self._measuring}, timeout=_DISK_SECONDS)

    def _measure_disk(self) -> None:
        try:
            usage = shutil.disk_usage(self._data_dir)
        except OSError:
            self._disk = None  # the directory does not exist: report no values
        else:
            self._disk = usage.free, usage.total

    def _server(self) -> Iterator[Metric]:
        yield metrics.BUILD_INFO.rows([((__version__, platform.python_version(), self._log), 1.0)])
        yield metrics.EVENT_LOOP_LAG.histogram(self.lag.histogram)
        yield metrics.FSYNC_SECONDS.histogram(self._fsyncs)
        if self._disk is not None:
            free, size = self._disk
            yield metrics.DISK_FREE.of(free)
            yield metrics.DISK_SIZE.of(size)
        yield metrics.HTTP_CONNECTIONS.of(self._connections.open)
        yield metrics.HTTP_CLOSED.of(self._connections.closed)
        yield metrics.HTTP_REQUEST_SECONDS.histograms(
            {(route,): each for route, each in self.http.seconds.items()}
        )
        yield metrics.HTTP_RESPONSES.rows(
            [((route, str(code)), count) for (route, code), count in self.http.responses.items()]
        )

    def _parts(self) -> Iterator[Metric]:
        backend, engine, listener, security = self._now()
        if backend is not None and (state := backend.coordinator_state()) is not None:
            kind, connected = state
            yield metrics.COORDINATOR_CONNECTED.rows([((kind,), connected)])
        yield metrics.STANDING_BY.of(backend is not None and backend.standing_by)
        yield metrics.READY.of(engine is not None and engine.welcoming)
        if engine is not None:
            yield from engine_metrics(engine)
            yield from forward_metrics(engine.counts)
        if listener is not None:
            yield from listener_metrics(listener)
        if security is not None:
            yield metrics.LOGINS.rows(security.audit.logins.items())
            yield metrics.DENIED.rows(security.audit.denied.items())
            yield metrics.AUDIT_LOST.of(security.audit.lost)
            yield metrics.QUOTA_THROTTLES.rows(security.quotas.throttles.items())
            yield metrics.QUOTA_THROTTLED_SECONDS.rows(security.quotas.throttled.items())
            acls = security.kafka_acls
            if acls is not None and acls.age_seconds is not None:
                yield metrics.ACLS_AGE.of(acls.age_seconds)
