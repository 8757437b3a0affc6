"""Adds all routes to the application of the HTTP port."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from pidlease.engine.engine import Engine
from pidlease.engine.topic_admin import TopicAdmin
from pidlease.http_api.record_messages import PRODUCER_EPOCH, PRODUCER_ID, PRODUCER_SEQ
from proxy.http.body_limit import BodyLimit
from proxy.http.direct_appends import DirectAppends, wrap
from proxy.http.errors import add_handlers
from proxy.http.lease_routes import lease_router
from proxy.http.openapi import add_openapi
from proxy.http.producer_routes import producer_router
from proxy.http.record_responses import add_record_handlers
from proxy.http.record_routes import RecordLimits, RecordRoutes, reads_own_body
from proxy.http.topic_routes import add_topic_handlers, topic_router

#: The longest body of a request: a batch of a thousand leases takes a third of it.
_BODY_BYTES_MAX: Final = 1 << 20
#: What web pages of other origins may use.
_METHODS: Final = ("GET", "POST", "PATCH", "DELETE")
_HEADERS: Final = ("Content-Type", "Content-Encoding", PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQ)


def add_http_api(
    app: FastAPI,
    engine: Callable[[], Engine | None],
    topics: Callable[[], TopicAdmin | None],
    limits: RecordLimits | None = None,
    origins: Sequence[str] = (),
) -> Callable[[], None]:
    """Serve leases, producers' states, topics with their settings, and records.

    Parameters:
        engine: returns the engine; None while there is none yet.
        topics: creates and deletes topics; None while there is no engine yet.
        origins: of the web pages that may send requests (CORS); `*`: any.

    Returns:
        A function that ends reads which wait for records.
    """
    records = RecordRoutes(engine, topics, limits or RecordLimits())
    add_handlers(app)
    add_topic_handlers(app)
    add_record_handlers(app)
    add_openapi(app)
    app.include_router(lease_router(engine))
    app.include_router(producer_router(engine))
    app.include_router(topic_router(engine, topics))
    app.include_router(records.router)
    app.add_middleware(BodyLimit, limit=_BODY_BYTES_MAX, aside=reads_own_body)
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=_METHODS,
            allow_headers=_HEADERS, expose_headers=("Retry-After",),
        )  # fmt: skip
    wrap(app, partial(
        DirectAppends, append=records.append, route=records.append_route,
        handlers=app.exception_handlers,
    ))  # fmt: skip
    return records.close
