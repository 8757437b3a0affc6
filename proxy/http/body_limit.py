"""Bounds the bodies of requests, before a handler gets them."""

from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pidlease.http_api.problems import Problem
from proxy.http.errors import refusal


class BodyLimit:
    """Middleware that refuses a request with a longer body, with status 413.

    Parameters:
        limit: in bytes.
        aside: returns True for paths that bound their bodies themselves.
    """

    def __init__(
        self, app: ASGIApp, limit: int, aside: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._app: Final = app
        self._limit: Final = limit
        self._aside: Final = aside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it if its body is too long."""
        if scope["type"] != "http" or self._aside(scope["path"]):
            await self._app(scope, receive, send)
            return
        # Read the whole body first: no request is refused after a handler has begun to work.
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client has disconnected
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._limit:
                text = f"the body is longer than {self._limit} bytes; send less at once"
                await refusal(Problem.BODY_TOO_LARGE, text, "body")(scope, receive, send)
                return
        whole: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

        async def again() -> Message:
            nonlocal whole
            message, whole = whole, None
            return message if message is not None else await receive()

        await self._app(scope, again, send)
