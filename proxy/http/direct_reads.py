"""Serves reads of records in front of the framework, which costs more than a small read does.

The framework has their route as well: it serves those with a query in another form, and refuses
what is invalid.
"""

import re
from typing import Final

from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from pidlease.http_api.record_messages import ReadQuery
from proxy.http.direct_appends import Handlers, place_of, serve_directly
from proxy.http.record_routes import RecordRoutes

#: A parameter, of a name that each request has once at most.
_PARAMETER: Final = re.compile(rb"(offset|max_bytes|wait_ms)=(0|[1-9]\d{0,18})")


def read_query(query: bytes) -> ReadQuery | None:
    """Return what a read asks for; None: the query is invalid, or in another form.

    Parameters:
        query: of the request, as it came.
    """
    found: dict[str, str] = {}
    for part in query.split(b"&") if query else ():
        parameter = _PARAMETER.fullmatch(part)
        if parameter is None or parameter[1].decode() in found:
            return None
        found[parameter[1].decode()] = parameter[2].decode()
    try:
        return ReadQuery.model_validate(found)
    except ValidationError:
        return None


class DirectReads:
    """Serves reads of a partition, and passes any other request on.

    Parameters:
        records: serve them.
        handlers: the application's; may get more later.
    """

    def __init__(self, app: ASGIApp, records: RecordRoutes, handlers: Handlers) -> None:
        self._app: Final = app
        self._records: Final = records
        self._handlers: Final = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        place = place_of(scope, "GET") if scope["type"] == "http" else None
        query = None if place is None else read_query(scope["query_string"])
        if place is None or query is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = self._records.read_route
        request = Request(scope, receive)
        work = self._records.read(request, *place, query)
        await serve_directly(work, request, self._handlers, send)
