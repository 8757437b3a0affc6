"""Serves appends in front of the framework, which costs several times what they do.

The framework has their route as well: it describes it for OpenAPI, and serves requests with a path
in another form, and those of web pages of other origins.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

#: A partition number without leading zeros, so small that it is valid.
_PATH: Final = re.compile(r"/v1/topics/([^/]{1,249})/partitions/(0|[1-9]\d{0,8})/records", re.ASCII)
#: A longer path never matches.
_PATH_MAX: Final = 300
#: How many paths are remembered: an append needs its own several times, and clients repeat theirs.
_PATHS_KEPT: Final = 1024

#: Appends the records of a request to a topic's partition.
Append = Callable[[Request, str, int], Awaitable[Response]]
#: The responses to exceptions, by their classes; `Exception` is one of them.
Handlers = Mapping[Any, Callable[[Request, Any], Any]]


def place_of(scope: Mapping[str, Any], method: str = "POST") -> tuple[str, int] | None:
    """Return topic and partition of an append that needs no framework; None: it does.

    Parameters:
        scope: of an HTTP request.
        method: GET: of a read.
    """
    path = scope["path"]
    if scope["method"] != method or len(path) > _PATH_MAX:
        return None
    found = _place(path)
    return None if found is None or is_foreign(scope) else found


@lru_cache(_PATHS_KEPT)
def _place(path: str) -> tuple[str, int] | None:
    found = _PATH.fullmatch(path)
    return None if found is None else (found[1], int(found[2]))


def is_foreign(scope: Mapping[str, Any]) -> bool:
    """Whether a request is one of a web page, which has headers of its own in the response."""
    return b"origin" in [name for name, _ in scope["headers"]]


def wrap(app: FastAPI, outer: Callable[[ASGIApp], ASGIApp]) -> None:
    """Put something around an application, its middleware and its error handling included."""
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: outer(build())  # type: ignore[method-assign]


async def serve_directly(
    work: Awaitable[Response], request: Request, handlers: Handlers, send: Send
) -> None:
    """Send the response that some work returns, or the one to its exception.

    Parameters:
        handlers: the responses to exceptions.
    """
    scope, receive = request.scope, request.receive
    try:
        response = await work
    except Exception as error:
        kind = next(each for each in type(error).__mro__ if each in handlers)
        response = await handlers[kind](request, error)
        if kind is Exception:  # a bug: the caller logs it
            await response(scope, receive, send)
            raise
    await response(scope, receive, send)


class DirectAppends:
    """Serves appends to a partition, and passes any other request on.

    Parameters:
        append: serves an append.
        route: with the path for the metrics.
        handlers: the application's; may get more later.
    """

    def __init__(self, app: ASGIApp, append: Append, route: object, handlers: Handlers) -> None:
        self._app: Final = app
        self._append: Final = append
        self._route: Final = route
        self._handlers: Final = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        place = place_of(scope) if scope["type"] == "http" else None
        if place is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = self._route
        request = Request(scope, receive)
        work = self._append(request, *place)
        await serve_directly(work, request, self._handlers, send)
