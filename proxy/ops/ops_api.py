"""The HTTP port for operators: /healthz, /readyz, /metrics, /v1/status."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST

from pidlease import __version__
from pidlease.engine.engine import Engine
from proxy.ops.http_metrics import HttpCounts, HttpMetrics
from proxy.ops.status_response import replay_of, status_of, stopped_of

#: Stopped partitions that readiness lists: probes read little.
_STOPPED_LISTED: Final = 10


def ops_app(
    engine: Callable[[], Engine | None],
    started_ms: int,
    scrape: Callable[[], Awaitable[bytes]],
    counts: HttpCounts,
) -> FastAPI:
    """Make the HTTP application.

    Parameters:
        engine: returns the engine; None while there is none yet.
        started_ms: when the process started, in ms since 1970.
        scrape: returns the metrics in Prometheus's text format.
        counts: counts the requests.
    """
    app = FastAPI(title="pidlease", version=__version__)
    app.add_middleware(HttpMetrics, counts=counts)

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
        return Response(await scrape(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/status")
    async def status(response: Response) -> dict[str, Any]:
        """Return what `pidlease status` shows."""
        current = engine()
        if current is None:
            response.status_code = 503
            return {"status": "not ready"}
        return status_of(current, started_ms)

    return app
