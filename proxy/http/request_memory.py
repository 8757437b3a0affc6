"""Memory for requests in flight, and bodies that are read into it."""

import asyncio
from types import TracebackType
from typing import Final, Self

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pidlease.core.byte_budget import ByteBudget
from proxy.http.record_responses import BodyTooLongError, BodyTooSlowError, NoRoomError

#: What a request takes beside what it brings: its headers, its task, who waits for what.
_REQUEST_BYTES: Final = 8 << 10
#: How long the next part of a body, or room for the next part of an answer, may take to come.
_IDLE_SECONDS: Final = 30.0
#: Parts in which an answer goes out; no more of it waits in a connection.
_PART_BYTES: Final = 64 << 10


class HeldBytes:
    """What one request holds of a budget; as a context manager, until its end.

    No request waits for memory: it is free, or the request is refused.

    Parameters:
        budget: the bytes that all requests may hold together.

    Raises:
        NoRoomError: no memory is free.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget: Final = budget
        self.size = 0
        self.more(_REQUEST_BYTES)

    def more(self, size: int) -> None:
        """Hold more.

        Raises:
            NoRoomError: not enough memory is free.
        """
        if not self._budget.reserve(size, own=self.size):
            raise NoRoomError("too much is in flight; try again")
        self.size += size

    def release(self) -> None:
        """Hold nothing any more."""
        self._budget.release(self.size)
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


async def read_body(request: Request, limit: int, held: HeldBytes) -> bytearray:
    """Read a request's body, no further than a limit.

    Parameters:
        request: the request.
        limit: in bytes.
        held: gets the body's size as it comes.

    Raises:
        BodyTooLongError: it is longer.
        BodyTooSlowError: it stopped coming.
        NoRoomError: there is no room for it.
        ClientDisconnect: the client went away.
    """
    text = f"the body is longer than {limit} bytes; send less at once"
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise BodyTooLongError(text)
    body = bytearray()
    more = True
    while more:
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                message = await request.receive()
        except TimeoutError:
            raise BodyTooSlowError(f"nothing came for {_IDLE_SECONDS:g} s") from None
        if message["type"] != "http.request":
            raise ClientDisconnect
        part = message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) + len(part) > limit:
            raise BodyTooLongError(text)
        held.more(len(part))
        body += part
    return body


class HeldResponse(Response):
    """An answer that counts as held until it is out.

    Parameters:
        content: JSON.
        held: what counts it.
    """

    def __init__(self, content: bytes, held: HeldBytes) -> None:
        super().__init__(content, media_type="application/json")
        self._held: Final = held

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        try:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            content = memoryview(self.body)
            for at in range(0, len(content), _PART_BYTES):
                part = bytes(content[at : at + _PART_BYTES])
                more = at + _PART_BYTES < len(content)
                message = {"type": "http.response.body", "body": part, "more_body": more}
                # Who does not read on is cut off, so that others get the room.
                async with asyncio.timeout(_IDLE_SECONDS):
                    await send(message)
        finally:
            self._held.release()
