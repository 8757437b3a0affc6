"""The HTTP door, put onto the HTTP port."""

from collections.abc import Callable
from typing import Final

from fastapi import FastAPI

from pidlease.engine.engine import Engine
from proxy.http.body_limit import BodyLimit
from proxy.http.errors import add_handlers
from proxy.http.leases import lease_router
from proxy.http.producers import producer_router

#: The longest body of a request: a batch of a thousand leases takes a third of it.
_BODY_BYTES_MAX: Final = 1 << 20


def add_http_door(app: FastAPI, engine: Callable[[], Engine | None]) -> None:
    """Serve leases, and what is known of producers.

    Parameters:
        app: the application of the HTTP port.
        engine: the engine; None while there is none yet.
    """
    add_handlers(app)
    app.include_router(lease_router(engine))
    app.include_router(producer_router(engine))
    app.add_middleware(BodyLimit, limit=_BODY_BYTES_MAX)
