"""The HTTP port for operators: /healthz, /readyz, /metrics, /v1/status."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from pidlease import __version__
from pidlease.engine.engine import Engine
from proxy.ops.status import replay_of, status_of


def ops_app(
    engine: Callable[[], Engine | None], started_ms: int, registry: CollectorRegistry
) -> FastAPI:
    """The HTTP application.

    Parameters:
        engine: the engine; None while there is none yet.
        started_ms: when the process started, in ms since 1970.
        registry: the metrics.
    """
    app = FastAPI(title="pidlease", version=__version__)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process lives."""
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz(response: Response) -> dict[str, Any]:
        """Whether it takes requests: 200, or 503 while it recovers or stops."""
        current = engine()
        if current is not None and current.ready:
            return {"status": "ready"}
        response.status_code = 503
        told: dict[str, Any] = {"status": "not ready"}
        if current is not None:
            told["replay"] = replay_of(current)
        return told

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus's text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/status")
    async def status(response: Response) -> dict[str, Any]:
        """What `pidlease status` shows."""
        current = engine()
        if current is None:
            response.status_code = 503
            return {"status": "not ready"}
        return status_of(current, started_ms)

    return app
