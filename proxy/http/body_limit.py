"""Bodies of requests are bounded before anything of them is kept."""

from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.http.errors import refusal


class BodyLimit:
    """Refuses a request whose body is longer than a limit, with 413.

    Parameters:
        app: what is asked otherwise.
        limit: in bytes.
        aside: tells paths whose bodies are bounded where they are read.
    """

    def __init__(
        self, app: ASGIApp, limit: int, aside: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._app: Final = app
        self._limit: Final = limit
        self._aside: Final = aside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http" or self._aside(scope["path"]):
            await self._app(scope, receive, send)
            return
        # Whole, before it is handed on: so a refusal comes before half of it has been worked on.
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client went away
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._limit:
                text = f"the body is longer than {self._limit} bytes; send less at once"
                await refusal(413, text, "body")(scope, receive, send)
                return
        whole: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

        async def again() -> Message:
            nonlocal whole
            message, whole = whole, None
            return message if message is not None else await receive()

        await self._app(scope, again, send)
