"""The HTTP port for operators: /healthz, /readyz, /metrics, /v1/status."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from pidlease import __version__
from pidlease.engine.engine import Engine
from proxy.ops.http_metrics import HttpCounts, HttpMetrics
from proxy.ops.status_response import replay_of, status_of, stopped_of

#: Stopped partitions that readiness lists: probes read little.
_STOPPED_LISTED: Final = 10


class Scraped(Protocol):
    """The metrics that a scrape reads."""

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics."""

    @property
    def http(self) -> HttpCounts:
        """The counts of this port's requests."""

    async def look_at_disk(self) -> None:
        """Measure the disk's free space, if the disk responds in time."""


class _Collected(Collector):
    """Metrics of one moment, for a thread to format."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    @override
    def collect(self) -> list[Metric]:
        return self._found


async def _scrape(scraped: Scraped) -> bytes:
    """Return the metrics of one moment; a thread formats them."""
    await scraped.look_at_disk()
    found = _Collected(list(scraped.registry.collect()))
    return await asyncio.to_thread(generate_latest, found)


def ops_app(engine: Callable[[], Engine | None], started_ms: int, scraped: Scraped) -> FastAPI:
    """Make the HTTP application.

    Parameters:
        engine: the engine; None while there is none yet.
        started_ms: when the process started, in ms since 1970.
        scraped: the metrics.
    """
    app = FastAPI(title="pidlease", version=__version__)
    app.add_middleware(HttpMetrics, counts=scraped.http)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Respond if the process lives."""
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz(response: Response) -> dict[str, Any]:
        """Respond whether to send requests here: 200, or 503 during recovery and a stop.

        Stopped partitions are in the response, and do not change the code: out of service, the
        server would fail for all other partitions, too.
        """
        current = engine()
        if current is not None and current.welcoming:
            stopped = stopped_of(current, _STOPPED_LISTED)
            return {"status": "ready"} | (stopped if stopped["stopped_count"] else {})
        response.status_code = 503
        found: dict[str, Any] = {"status": "not ready"}
        if current is not None:
            found["replay"] = replay_of(current)
        return found

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics in Prometheus's text format."""
        return Response(await _scrape(scraped), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/status")
    async def status(response: Response) -> dict[str, Any]:
        """Return what `pidlease status` shows."""
        current = engine()
        if current is None:
            response.status_code = 503
            return {"status": "not ready"}
        return status_of(current, started_ms)

    return app
