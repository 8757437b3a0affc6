"""How long HTTP requests take, and how they are answered, by route."""

import time
from collections import Counter, defaultdict
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pidlease.core.histogram import Histogram

#: The route of what has none.
NO_ROUTE: Final = "(none)"
_METHODS: Final = frozenset(("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"))


class HttpCounts:
    """Since the start; by route as it is written in the code, of which there are few.

    Attributes:
        seconds: how long answers took.
        responses: how many there were, by status code.
    """

    def __init__(self) -> None:
        self.seconds: Final[defaultdict[str, Histogram]] = defaultdict(Histogram)
        self.responses: Final[Counter[tuple[str, int]]] = Counter()

    def answered(self, route: str, code: int, seconds: float) -> None:
        """Count a request."""
        self.responses[route, code] += 1
        self.seconds[route].observe(seconds)


class HttpMetrics:
    """Counts all requests of an application.

    Parameters:
        app: the application.
        counts: where they are counted.
    """

    def __init__(self, app: ASGIApp, counts: HttpCounts) -> None:
        self._app: Final = app
        self._counts: Final = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
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
