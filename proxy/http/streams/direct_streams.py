"""Serves streams in front of the framework, which costs several times what they do."""

from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.http.direct_appends import Handlers, is_foreign, serve_directly
from proxy.http.streams.stream_routes import SECURITY_HEADERS, StreamRoutes

_METHODS: Final = frozenset(("DELETE", "GET", "HEAD", "POST", "PUT"))


class DirectStreams:
    """Serves requests for streams, and passes any other request on.

    The framework serves those of web pages of other origins.

    Parameters:
        routes: serve them.
        handlers: the application's; may get more later.
    """

    def __init__(self, app: ASGIApp, routes: StreamRoutes, handlers: Handlers) -> None:
        self._app: Final = app
        self._routes: Final = routes
        self._handlers: Final = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        routes = self._routes
        if scope["type"] != "http" or not routes.is_stream(scope["path"]):
            await self._app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *SECURITY_HEADERS]
            await send(message)

        if is_foreign(scope) or scope["method"] not in _METHODS:
            await self._app(scope, receive, secured)
            return
        scope["route"] = routes.route
        request = Request(scope, receive)
        await serve_directly(routes.serve(request), request, self._handlers, secured)
