"""Adds all routes to the application of the HTTP port."""

from collections.abc import Callable
from typing import Final

from fastapi import FastAPI

from pidlease.engine.engine import Engine
from pidlease.engine.topic_admin import TopicAdmin
from proxy.http.body_limit import BodyLimit
from proxy.http.errors import add_handlers
from proxy.http.lease_routes import lease_router
from proxy.http.openapi import add_openapi
from proxy.http.producer_routes import producer_router
from proxy.http.record_responses import add_record_handlers
from proxy.http.record_routes import RecordLimits, RecordRoutes, reads_own_body
from proxy.http.topic_routes import add_topic_handlers, topic_router

#: The longest body of a request: a batch of a thousand leases takes a third of it.
_BODY_BYTES_MAX: Final = 1 << 20


def add_http_api(
    app: FastAPI,
    engine: Callable[[], Engine | None],
    topics: Callable[[], TopicAdmin | None],
    limits: RecordLimits | None = None,
) -> Callable[[], None]:
    """Serve leases, producers' states, topics with their settings, and records.

    Parameters:
        engine: returns the engine; None while there is none yet.
        topics: creates and deletes topics; None while there is no engine yet.

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
    return records.close
