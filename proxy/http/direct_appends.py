"""Passes appends to their route without the framework, which costs several times what they do.

The route is the framework's as well: it describes it for OpenAPI, and serves requests whose path is
not in the usual form.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

#: A partition number without leading zeros, so small that it is valid.
_PATH: Final = re.compile(r"/v1/topics/([^/]{1,249})/partitions/(0|[1-9]\d{0,8})/records", re.ASCII)

#: Appends the records of a request to a topic's partition.
Append = Callable[[Request, str, int], Awaitable[Response]]
#: The responses to exceptions, by their classes.
Handlers = Mapping[Any, Callable[[Request, Any], Any]]


class DirectAppends:
    """Middleware that serves appends to a partition.

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
        """Serve an append; pass any other request on."""
        found = None
        if scope["type"] == "http" and scope["method"] == "POST":
            found = _PATH.fullmatch(scope["path"])
        if found is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = self._route
        request = Request(scope, receive)
        try:
            response = await self._append(request, found[1], int(found[2]))
        except Exception as error:
            handler = self._handler(error)
            if handler is None:
                raise
            response = await handler(request, error)
        await response(scope, receive, send)

    def _handler(self, error: Exception) -> Callable[[Request, Any], Any] | None:
        """Return the handler of an exception, as the framework would choose it."""
        for kind in type(error).__mro__:
            if kind is not Exception and kind in self._handlers:
                return self._handlers[kind]
        return None
