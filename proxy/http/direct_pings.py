"""Answers the pings of other active servers, in front of the framework.

They come every 0.3 s, from each server that may have to divide the slots.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pidlease.engine.engine import Engine
from pidlease.http_api.ping_messages import PING_PATH
from pidlease.http_api.problems import Problem
from proxy.http.errors import refusal
from proxy.http.forwarding_headers import FORWARDED

_MARK: Final = FORWARDED.encode()


class DirectPings:
    """Serves pings, and passes any other request on.

    Parameters:
        engine: returns the engine; None while there is none yet.
    """

    def __init__(self, app: ASGIApp, engine: Callable[[], Engine | None]) -> None:
        self._app: Final = app
        self._engine: Final = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http" or scope["path"] != PING_PATH or not _is_ping(scope):
            await self._app(scope, receive, send)
            return
        await self._answer(scope["query_string"])(scope, receive, send)

    def _answer(self, query: bytes) -> Response:
        engine = self._engine()
        cluster = None if engine is None else engine.shared_cluster
        if cluster is None or not cluster.is_member:
            return refusal(Problem.NOT_READY, "this server is no member yet, or no more")
        try:
            given = {name: int(values[0]) for name, values in parse_qs(query.decode()).items()}
            to, version, topics = given["to"], given["version"], given["topics"]
        except (KeyError, ValueError):
            text = "the ping has no numbers to, version and topics"
            return refusal(Problem.INVALID_REQUEST, text)
        if to != cluster.node_id:
            text = f"this server has node id {cluster.node_id}, not {to}"
            return refusal(Problem.NOT_OWNER, text)
        report = cluster.pings.answer(version, topics)
        return JSONResponse(report._asdict(), HTTPStatus.OK)


def _is_ping(scope: Scope) -> bool:
    return scope["method"] == "GET" and any(name == _MARK for name, _ in scope["headers"])
