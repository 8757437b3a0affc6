"""The operators' routes of the HTTP port, or of a port for some of them alone.

They are /healthz, /readyz, /metrics, /v1/status and /v1/servers.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST

from pidlease import __version__
from pidlease.engine.engine import Engine
from pidlease.http_api.console_messages import ServersAnswer
from proxy.ops.docs_page import docs_page
from proxy.ops.status_response import (
    reason_of,
    replay_of,
    servers_of,
    status_of,
    stopped_of,
)

#: Stopped partitions that readiness lists: probes read little.
_STOPPED_LISTED: Final = 10
_NOT_READY: Final[dict[int | str, dict[str, Any]]] = {
    503: {
        "description": "The server is not ready.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}
#: FastAPI's own telemetry is off: it would look for providers at each request, and pidlease has
#: metrics of its own. Versions of FastAPI without telemetry ignore this.
_TELEMETRY: Final[Any] = {"tracing": False, "metrics": False, "logs": False}


#: Returns the metrics in Prometheus's text format.
Scrape = Callable[[], Awaitable[bytes]]


def metrics_app(
    engine: Callable[[], Engine | None], scrape: Scrape, waiting: Callable[[], str]
) -> FastAPI:
    """Make the application of a port for metrics and health alone; parameters as of `ops_app`."""
    app = FastAPI(title="pidlease", version=__version__, openapi_url=None, telemetry=_TELEMETRY)
    _add_health(app, engine, waiting)
    _add_metrics(app, scrape)
    return app


def _add_health(
    app: FastAPI, engine: Callable[[], Engine | None], waiting: Callable[[], str]
) -> None:
    # Load balancers may probe by HEAD.
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", tags=["operations"], operation_id="get_health")
    async def healthz() -> dict[str, str]:
        """Respond if the process lives."""
        return {"status": "alive"}

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", tags=["operations"], operation_id="get_readiness", responses=_NOT_READY)
    async def readyz(response: Response) -> dict[str, Any]:
        """Respond whether to send requests here: 200, or 503 with the reason.

        Stopped partitions are in the response, and do not change the code: out of service, the
        server would fail for all other partitions, too.
        """
        current = engine()
        if current is not None and current.welcoming:
            stopped = stopped_of(current, _STOPPED_LISTED)
            return {"status": "ready"} | (stopped if stopped["stopped_count"] else {})
        response.status_code = 503
        found: dict[str, Any] = {"status": "not ready", "reason": reason_of(current, waiting())}
        if current is not None:
            found["replay"] = replay_of(current)
        return found


def _add_metrics(app: FastAPI, scrape: Scrape) -> None:
    @app.get(
        "/metrics", tags=["operations"], operation_id="get_metrics", response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )  # fmt: skip
    async def metrics() -> Response:
        """Return the metrics in Prometheus's text format."""
        return Response(await scrape(), media_type=CONTENT_TYPE_LATEST)


def ops_app(
    engine: Callable[[], Engine | None],
    started_ms: int,
    scrape: Scrape | None,
    waiting: Callable[[], str],
) -> FastAPI:
    """Make the HTTP application.

    Parameters:
        engine: returns the engine; None while there is none yet.
        started_ms: when the process started, in ms since 1970.
        scrape: returns the metrics; None: they have a port of their own.
        waiting: why the start waits for something else; empty: it does not.
    """
    app = FastAPI(
        title="pidlease", version=__version__, docs_url=None, redoc_url=None, telemetry=_TELEMETRY
    )
    _add_health(app, engine, waiting)
    if scrape is not None:
        _add_metrics(app, scrape)

    @app.get("/v1/status", tags=["operations"], operation_id="get_status", responses=_NOT_READY)
    async def status(response: Response) -> dict[str, Any]:
        """Return what `pidlease status` shows."""
        current = engine()
        if current is None:
            response.status_code = 503
            return {"status": "not ready", "reason": reason_of(None, waiting())}
        return status_of(current, started_ms)

    @app.get(
        "/v1/servers", tags=["operations"], operation_id="get_servers", response_model=None,
        responses={**_NOT_READY, 200: {"model": ServersAnswer}},
    )  # fmt: skip
    async def servers(response: Response) -> dict[str, Any]:
        """Return the active servers that share a Kafka cluster, which `pidlease servers` shows."""
        current = engine()
        if current is None:
            response.status_code = 503
            return {"status": "not ready", "reason": reason_of(None, waiting())}
        return servers_of(current).model_dump()

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        """Return the OpenAPI document for a browser."""
        return HTMLResponse(docs_page(app.openapi()))

    return app
