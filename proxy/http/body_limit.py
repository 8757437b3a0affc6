"""Bounds the bodies of requests before a handler gets them: their length, time and memory."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pidlease.core.byte_budget import ByteBudget
from proxy.http.errors import refusal
from proxy.http.forwarding_headers import MEMBER_PATHS
from proxy.http.record_responses import RefusedError, incomplete_body
from proxy.http.request_memory import HeldBytes, first_again, read_body

#: The memory for all these bodies together, and as much for those by which active servers stay
#: members; those of records and streams have their own.
_MEMORY_BYTES: Final = 32 << 20
#: No route reads the body of such a request, and these need no login for some paths.
_NOT_READ: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: A request has a body if it has one of these headers (RFC 9112, section 6).
_BODY_HEADERS: Final = frozenset({b"content-length", b"transfer-encoding"})


class BodyLimit:
    """Middleware that refuses a request with a body that is too long, or does not arrive.

    Parameters:
        limit: in bytes.
        longer: the limits of some paths, if they are others.
        aside: returns True for paths that bound their bodies themselves.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: int,
        aside: Callable[[str], bool] = lambda _: False,
        longer: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._app: Final = app
        self._limit: Final = limit
        self._longer: Final = longer
        self._aside: Final = aside
        self._memory: Final = ByteBudget(_MEMORY_BYTES)
        self._member_memory: Final = ByteBudget(_MEMORY_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or self._aside(scope["path"]) or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        limit = self._longer.get(scope["path"], self._limit)
        memory = self._member_memory if scope["path"] in MEMBER_PATHS else self._memory
        # Read the whole body first: no request is refused after a handler has begun to work.
        with ExitStack() as stack:
            try:
                held = stack.enter_context(HeldBytes(memory))
                body = bytes(await read_body(receive, b"", limit, held))
            except RefusedError as error:
                await refusal(error.problem, str(error), error.field)(scope, receive, send)
                return
            except ClientDisconnect:
                await incomplete_body()(scope, receive, send)
                return

            async def sent(message: Message) -> None:
                held.release()  # the handler is done with the body; its client may read slowly
                await send(message)

            whole = {"type": "http.request", "body": body, "more_body": False}
            await self._app(scope, first_again(whole, receive), sent)


def _has_body(scope: Scope) -> bool:
    return scope["method"] not in _NOT_READ and not _BODY_HEADERS.isdisjoint(
        name for name, _ in scope["headers"]
    )
