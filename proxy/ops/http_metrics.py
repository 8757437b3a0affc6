"""The durations and status codes of HTTP requests, by route."""

import time
from collections import Counter, defaultdict
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pidlease.http_api.ping_messages import PING_PATH
from pidlease.observability.histogram import Histogram

#: The route of requests without one.
NO_ROUTE: Final = "(none)"
_METHODS: Final = frozenset(("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"))


class HttpCounts:
    """Counters since the start; a route is the code's path pattern, so that there are few.

    Attributes:
        seconds: durations, by route.
        responses: the number of responses, by route and status code.
    """

    def __init__(self) -> None:
        self.seconds: Final[defaultdict[str, Histogram]] = defaultdict(Histogram)
        self.responses: Final[Counter[tuple[str, int]]] = Counter()

    def answered(self, route: str, code: int, seconds: float) -> None:
        """Count a request."""
        self.responses[route, code] += 1
        self.seconds[route].observe(seconds)


class HttpMetrics:
    """Middleware that counts all requests of an application, but for pings."""

    def __init__(self, app: ASGIApp, counts: HttpCounts) -> None:
        self._app: Final = app
        self._counts: Final = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, and count it."""
        if scope["type"] != "http" or scope["path"] == PING_PATH:
            # Servers ping each other all the time, and count what does not answer.
            await self._app(scope, receive, send)
            return
        began, code = time.monotonic(), 500

        async def sent(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            path = getattr(scope.get("route"), "path", "")
            known = path and scope["method"] in _METHODS
            route = f"{scope['method']} {path}" if known else NO_ROUTE
            self._counts.answered(route, code, time.monotonic() - began)
