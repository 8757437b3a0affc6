"""Adds the routes of the API to the application of the HTTP port."""

import ssl
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from pidlease.coordination.journal.put_request import PUT_PATH
from pidlease.engine.engine import Engine
from pidlease.engine.topic_admin import TopicAdmin
from pidlease.http_api.record_messages import (
    IDEMPOTENCY_KEY,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
)
from proxy.http.body_limit import BodyLimit
from proxy.http.console_answers import ConsoleSources
from proxy.http.console_routes import console_router
from proxy.http.direct_appends import DirectAppends, wrap
from proxy.http.direct_leases import DirectLeases
from proxy.http.direct_pings import DirectPings
from proxy.http.direct_reads import DirectReads
from proxy.http.errors import add_handlers
from proxy.http.foreign_pages import ForeignPages
from proxy.http.lease_routes import LeaseRoutes
from proxy.http.openapi import add_openapi
from proxy.http.owner_requests import OwnerRequests
from proxy.http.producer_routes import producer_router
from proxy.http.record_responses import add_record_handlers
from proxy.http.record_routes import RecordLimits, RecordRoutes, reads_own_body
from proxy.http.row_routes import RowsTarget, row_router
from proxy.http.server_routes import add_server_handlers, server_router
from proxy.http.state_routes import state_router
from proxy.http.streams.direct_streams import DirectStreams
from proxy.http.streams.stream_requests import REQUEST_HEADERS, RESPONSE_HEADERS
from proxy.http.streams.stream_routes import StreamRoutes, add_stream_handlers
from proxy.http.topic_routes import add_topic_handlers, topic_router

#: The longest body of a request: a batch of a thousand leases takes a third of it.
_BODY_BYTES_MAX: Final = 1 << 20
#: The longest rows that another server may put: a common file before and after a change.
_ROWS_BYTES_MAX: Final = 4 << 20
#: What web pages of other origins may use.
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_HEADERS: Final = (
    "Content-Type", "Content-Encoding", IDEMPOTENCY_KEY, PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQ,
    *REQUEST_HEADERS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """How streams are served.

    Attributes:
        prefix: of their paths, without a slash at its end.
        poll_seconds: how long a long poll waits.
    """

    prefix: str = "/v1/stream"
    poll_seconds: float = 20.0


class HttpApi(NamedTuple):
    """What the server controls.

    Attributes:
        start: starts the removal of expired streams; call it in the event loop.
        close: ends reads that wait.
        disconnect: closes the connections to other active servers.
        records: the routes for records.
        streams: the routes for streams.
    """

    start: Callable[[], None]
    close: Callable[[], None]
    disconnect: Callable[[], Coroutine[Any, Any, None]]
    records: RecordRoutes
    streams: StreamRoutes


def add_http_api(  # noqa: PLR0913, PLR0917 - called in one place
    app: FastAPI,
    engine: Callable[[], Engine | None],
    topics: Callable[[], TopicAdmin | None],
    limits: RecordLimits | None = None,
    origins: Sequence[str] = (),
    streams: StreamsConfig | None = None,
    console: ConsoleSources | None = None,
    to_members: ssl.SSLContext | None = None,
    rows: Callable[[], RowsTarget | None] = lambda: None,
    cluster_id: Callable[[], str] = lambda: "",
) -> HttpApi:
    """Serve leases, producers' states, topics with their settings, records, and streams.

    Parameters:
        engine: returns the engine; None while there is none yet.
        topics: creates and deletes topics; None while there is no engine yet.
        origins: of the web pages that may send requests (CORS); `*`: any.

        streams: how streams are served.
        console: what operators' routes show beside the engine.
        to_members: TLS of connections to other active servers; None: they have no TLS.
        rows: the coordinator's rows in Kafka; None: this server keeps none.
        cluster_id: returns the id of the cluster; empty while it is not known.
    """
    owners = OwnerRequests(engine, to_members)
    leases = LeaseRoutes(engine, owners, cluster_id)
    records = RecordRoutes(engine, topics, limits or RecordLimits(), owners)
    config = streams or StreamsConfig()
    stream_routes = StreamRoutes(engine, topics, records, config.prefix, config.poll_seconds)
    add_handlers(app)
    add_topic_handlers(app)
    add_record_handlers(app)
    add_stream_handlers(app)
    add_server_handlers(app)
    add_openapi(app)
    app.include_router(leases.router)
    app.include_router(producer_router(engine))
    app.include_router(server_router(engine, owners))
    app.include_router(row_router(rows))
    app.include_router(state_router(engine))
    app.include_router(topic_router(engine, topics))
    app.include_router(records.router)
    app.include_router(console_router(engine, console or ConsoleSources()))
    app.include_router(stream_routes.router)
    aside = lambda path: reads_own_body(path) or stream_routes.is_stream(path)  # noqa: E731
    app.add_middleware(
        BodyLimit, limit=_BODY_BYTES_MAX, aside=aside, longer={PUT_PATH: _ROWS_BYTES_MAX}
    )
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=_METHODS,
            allow_headers=_HEADERS, expose_headers=("Retry-After", *RESPONSE_HEADERS),
        )  # fmt: skip
    wrap(app, partial(
        DirectAppends, append=records.append, route=records.append_route,
        handlers=app.exception_handlers,
    ))  # fmt: skip
    wrap(app, partial(DirectReads, records=records, handlers=app.exception_handlers))
    wrap(app, partial(DirectStreams, routes=stream_routes, handlers=app.exception_handlers))
    wrap(app, partial(DirectLeases, leases=leases, handlers=app.exception_handlers))
    wrap(app, partial(DirectPings, engine=engine))
    wrap(app, partial(ForeignPages, origins=origins))

    def close() -> None:
        records.close()
        stream_routes.close()

    return HttpApi(stream_routes.catalog.start, close, owners.close, records, stream_routes)
