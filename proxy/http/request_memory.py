"""Bounds the memory of requests in flight; reads their bodies, and sends their responses."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from typing_extensions import override

from pidlease.core.byte_budget import ByteBudget
from proxy.http.record_responses import (
    BodyAtStopError,
    BodyTooLongError,
    BodyTooSlowError,
    NoRoomError,
)

#: The memory of a request beside its body: headers, task, futures.
_REQUEST_BYTES: Final = 8 << 10
#: How long the next part of a body may take to arrive, or of a response to be sent.
IDLE_SECONDS: Final = 30.0
#: How long a body may take in all, beside the time that it needs at the lowest rate.
_BODY_SECONDS: Final = 60.0
_BODY_BYTES_A_SECOND: Final = 16 << 10
#: Responses are sent in parts of this size.
_PART_BYTES: Final = 256 << 10
#: The last part is no larger: it may wait in the connection after its memory was released.
_LAST_BYTES: Final = 64 << 10


class HeldBytes:
    """The memory that one request holds; a context manager releases it.

    No request waits for memory: if none is free, it is refused.

    Parameters:
        budget: the memory for all requests together.
        size: the bytes of the request that have arrived.

    Raises:
        NoRoomError: no memory is free.
    """

    def __init__(self, budget: ByteBudget, size: int = 0) -> None:
        self._budget: Final = budget
        self.size = 0
        self.more(_REQUEST_BYTES + size)

    def more(self, size: int) -> None:
        """Hold more bytes.

        Raises:
            NoRoomError: not enough memory is free.
        """
        if not self._budget.reserve(size, own=self.size):
            raise NoRoomError("requests in flight hold all memory; try again")
        self.size += size

    def less(self, size: int) -> None:
        """Release some bytes."""
        self._budget.release(size)
        self.size -= size

    def release(self) -> None:
        """Release all bytes."""
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


async def read_body(receive: Receive, announced: bytes, limit: int, held: HeldBytes) -> bytearray:
    """Read a request's body up to a limit.

    Parameters:
        receive: of the request.
        announced: the length that the request announces, in digits.
        limit: in bytes.
        held: counts the body's bytes as they arrive.

    Raises:
        BodyTooLongError: the body is longer.
        BodyTooSlowError: no part of the body arrived in time, or all do not.
        NoRoomError: not enough memory is free.
        BodyAtStopError: the server stops.
        ClientDisconnect: the client disconnected.
    """
    text = f"the body is longer than {limit} bytes; send less at once"
    if announced.isdigit() and int(announced[:20]) > limit:
        raise BodyTooLongError(text)
    body = bytearray()
    more = True
    now = asyncio.get_running_loop().time
    end = now() + _BODY_SECONDS
    while more:
        late = min(now() + IDLE_SECONDS, end + len(body) / _BODY_BYTES_A_SECOND)
        try:
            async with asyncio.timeout_at(late):
                message = await receive()
        except TimeoutError:
            raise BodyTooSlowError(
                f"nothing came for {IDLE_SECONDS:g} s, or too little in {_BODY_SECONDS:g} s"
            ) from None
        except asyncio.CancelledError:
            raise BodyAtStopError from None  # nothing else cancels a request
        if message["type"] != "http.request":
            raise ClientDisconnect
        part = message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) + len(part) > limit:
            raise BodyTooLongError(text)
        held.more(len(part))
        body += part
    return body


def first_again(message: Message, receive: Receive) -> Receive:
    """Return a function that first receives a message again, and then what follows."""
    first: Message | None = message

    async def received() -> Message:
        nonlocal first
        found, first = first, None
        return found if found is not None else await receive()

    return received


class HeldResponse(Response):
    """A response with memory that is released when it is sent."""

    def __init__(
        self,
        content: bytes,
        held: HeldBytes,
        headers: Mapping[str, str] | None = None,
        media_type: str = "application/json",
    ) -> None:
        super().__init__(content, headers=headers, media_type=media_type)
        self._held: Final = held

    @override
    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        try:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            content = memoryview(self.body)
            more = True
            while more:
                more = len(content) > _LAST_BYTES
                size = min(len(content) - _LAST_BYTES, _PART_BYTES) if more else len(content)
                part, content = bytes(content[:size]), content[size:]
                message = {"type": "http.response.body", "body": part, "more_body": more}
                # Disconnect a client that does not read: others need the memory.
                async with asyncio.timeout(IDLE_SECONDS):
                    await send(message)
        finally:
            self._held.release()
