"""All metrics of a server, from wherever the numbers are."""

import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector

from pidlease import __version__, metrics
from pidlease.core.histogram import Histogram
from pidlease.engine.engine import Engine
from pidlease.engine.loop_lag import LoopLag
from pidlease.engine.metrics_source import engine_metrics
from pidlease.metrics import PidleaseCollector
from proxy.kafka.door import KafkaDoor
from proxy.kafka.metrics_source import door_metrics, forward_metrics
from proxy.log_side import LogSide
from proxy.ops.measured import HttpCounts

_LAG_LOOK_SECONDS: Final = 0.05


class Measuring:
    """What is measured of a server, and of its parts as they come to be.

    Parameters:
        log: which log it has.
        data_dir: whose disk is looked at.
        fsyncs: how long they take.

    Attributes:
        registry: what is scraped.
        lag: of the event loop.
        http: what comes through the HTTP port.
        engine, door, side: None while there is none yet.
    """

    def __init__(self, log: str, data_dir: Path, fsyncs: Histogram) -> None:
        self.registry: Final = CollectorRegistry()
        self.registry.register(PidleaseCollector([self._server, self._parts]))
        ProcessCollector(registry=self.registry)
        self.lag: Final = LoopLag(_LAG_LOOK_SECONDS)
        self.http: Final = HttpCounts()
        self.engine: Engine | None = None
        self.door: KafkaDoor | None = None
        self.side: LogSide | None = None
        self._log: Final = log
        self._data_dir: Final = data_dir
        self._fsyncs: Final = fsyncs
        self._disk: tuple[int, int] | None = None

    def look_at_disk(self) -> None:
        """See how full it is. May block: a disk can be far away."""
        try:
            usage = shutil.disk_usage(self._data_dir)
        except OSError:
            self._disk = None  # not made yet, or gone: then nothing is told
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
        yield metrics.HTTP_REQUEST_SECONDS.histograms(
            {(route,): each for route, each in self.http.seconds.items()}
        )
        yield metrics.HTTP_RESPONSES.rows(
            [((route, str(code)), count) for (route, code), count in self.http.responses.items()]
        )

    def _parts(self) -> Iterator[Metric]:
        if self.side is not None and (state := self.side.coordinator_state()) is not None:
            kind, connected = state
            yield metrics.COORDINATOR_CONNECTED.rows([((kind,), connected)])
        if self.engine is not None:
            yield from engine_metrics(self.engine)
            yield from forward_metrics(self.engine.counts)
        if self.door is not None:
            yield from door_metrics(self.door)
