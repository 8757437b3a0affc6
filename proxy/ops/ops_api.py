"""The HTTP port for operators: /healthz, /readyz, /metrics, /v1/status."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pidlease import __version__
from pidlease.engine.engine import Engine
from proxy.ops.http_metrics import HttpCounts, HttpMetrics
from proxy.ops.status_response import replay_of, status_of, stopped_of

#: Stopped partitions that readiness lists: who probes it reads little.
_STOPPED_LISTED: Final = 10


class Scraped(Protocol):
    """What can be scraped."""

    @property
    def registry(self) -> CollectorRegistry:
        """Its metrics."""

    @property
    def http(self) -> HttpCounts:
        """Where requests of this port are counted."""

    async def look_at_disk(self) -> None:
        """See how full it is, if that can be seen in time."""


class _Collected(Collector):
    """Metrics as they were at one time, for a thread to write down."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> list[Metric]:
        """See prometheus_client."""
        return self._found


async def _scrape(scraped: Scraped) -> bytes:
    """The metrics, of one moment. What takes long is done beside the event loop."""
    await scraped.look_at_disk()
    found = _Collected(list(scraped.registry.collect()))
    return await asyncio.to_thread(generate_latest, found)


def ops_app(engine: Callable[[], Engine | None], started_ms: int, scraped: Scraped) -> FastAPI:
    """The HTTP application.

    Parameters:
        engine: the engine; None while there is none yet.
        started_ms: when the process started, in ms since 1970.
        scraped: the metrics.
    """
    app = FastAPI(title="pidlease", version=__version__)
    app.add_middleware(HttpMetrics, counts=scraped.http)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process lives."""
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz(response: Response) -> dict[str, Any]:
        """Whether requests are to be sent here: 200, or 503 while it recovers, or a stop begins.

        Stopped partitions are in the answer, and do not change the code: taken out of service, the
        server would fail for all the other partitions, too.
        """
        current = engine()
        if current is not None and current.welcoming:
            stopped = stopped_of(current, _STOPPED_LISTED)
            return {"status": "ready"} | (stopped if stopped["stopped_count"] else {})
        response.status_code = 503
        told: dict[str, Any] = {"status": "not ready"}
        if current is not None:
            told["replay"] = replay_of(current)
        return told

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus's text format."""
        return Response(await _scrape(scraped), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/status")
    async def status(response: Response) -> dict[str, Any]:
        """What `pidlease status` shows."""
        current = engine()
        if current is None:
            response.status_code = 503
            return {"status": "not ready"}
        return status_of(current, started_ms)

    return app
