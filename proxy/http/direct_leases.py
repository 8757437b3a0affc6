"""Serves single leases in front of the framework, which costs several times what a lease does.

The framework has their route as well: it describes it for OpenAPI, and serves requests in another
form, those of web pages of other origins, and those with an invalid body, which it refuses.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pidlease.http_api.lease_messages import LeaseRequest
from pidlease.http_api.problems import Problem
from proxy.http.direct_appends import Handlers, is_foreign, serve_directly
from proxy.http.errors import refusal
from proxy.http.lease_routes import LEASES_PATH, LeaseRoutes
from proxy.http.record_responses import BodyAtStopError
from proxy.http.request_batch import CONTENT_LENGTH, CONTENT_TYPE, append_headers, media_type
from proxy.http.request_memory import IDLE_SECONDS, first_again
from proxy.http.unique_keys import keys_and_objects

#: The longest body that is read here; a topic's and a producer's name take 3 KB at most.
_BODY_BYTES_MAX: Final = 4 << 10


class DirectLeases:
    """Serves requests for one lease, and passes any other request on.

    Parameters:
        leases: serve them.
        handlers: the application's; may get more later.
    """

    def __init__(self, app: ASGIApp, leases: LeaseRoutes, handlers: Handlers) -> None:
        self._app: Final = app
        self._leases: Final = leases
        self._handlers: Final = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http" or not _is_small_lease(scope):
            await self._app(scope, receive, send)
            return
        scope["route"] = self._leases.lease_route
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                message = await _body(receive)
        except TimeoutError:
            text = f"the body did not arrive within {IDLE_SECONDS:g} s"
            await refusal(Problem.BODY_TOO_SLOW, text, "body")(scope, receive, send)
            return
        except asyncio.CancelledError:
            stopping = BodyAtStopError()
            await refusal(stopping.problem, str(stopping))(scope, receive, send)
            return
        wanted = _wanted(message)
        if wanted is None:
            await self._app(scope, first_again(message, receive), send)
            return
        request = Request(scope, receive)
        await serve_directly(self._leases.lease(wanted, request), request, self._handlers, send)


def _is_small_lease(scope: Mapping[str, Any]) -> bool:
    """Whether a request wants one lease, by a body of JSON with a known, small size."""
    if scope["path"] != LEASES_PATH or scope["method"] != "POST" or is_foreign(scope):
        return False
    headers = append_headers(scope["headers"])
    if media_type(headers.get(CONTENT_TYPE, ())) != b"application/json":
        return False
    (length, *others) = headers.get(CONTENT_LENGTH, (b"",))
    return not others and length.isdigit() and int(length[:20]) <= _BODY_BYTES_MAX


async def _body(receive: Receive) -> Message:
    """Receive a body as one message, and no more of it if it is longer than was announced."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return message  # the client has disconnected
        body += message.get("body", b"")
        if not message.get("more_body", False) or len(body) > _BODY_BYTES_MAX:
            return {**message, "body": body}


def _wanted(message: Message) -> LeaseRequest | None:
    """Return what a request wants; None: its body is invalid, or did not come."""
    if message["type"] != "http.request" or message.get("more_body", False):
        return None
    body = message.get("body", b"")
    try:
        wanted = LeaseRequest.model_validate_json(body)
    except ValidationError:
        return None
    # If a key is there twice, the framework's route refuses it.
    return wanted if keys_and_objects(body) == (len(wanted.model_fields_set), 1) else None
