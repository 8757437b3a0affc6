"""Requests for streams, each on a connection of its own."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pidlease.testing.loopback_ports import LOOPBACK
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_TIMEOUT_S: Final = WAIT_S
TEXT: Final = {"Content-Type": "text/plain"}
JSON_TYPE: Final = {"Content-Type": "application/json"}
CLOSE: Final = {"Stream-Closed": "true"}
ZERO: Final = "0000000000000000_0000000000000000"


class Reply(NamedTuple):
    """A response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def next_offset(self) -> str:
        """Stream-Next-Offset."""
        return self.headers["Stream-Next-Offset"] or ""

    @property
    def is_closed(self) -> bool:
        """Whether Stream-Closed is true."""
        return self.headers["Stream-Closed"] == "true"

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(json.loads(self.body)["code"])


def send(
    server: PidleaseServer,
    method: str,
    path: str,
    body: bytes | str = b"",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send a request for the stream with a path, and return the response."""
    connection = http.client.HTTPConnection(LOOPBACK, server.http_port, timeout=_TIMEOUT_S)
    try:
        content = body.encode() if isinstance(body, str) else body
        connection.request(method, f"/v1/stream/{path}", content, dict(headers or {}))
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


def numbered(seq: int, epoch: int = 0, name: str = "p") -> dict[str, str]:
    """The headers of a producer."""
    return {"Producer-Id": name, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}


def read_all(server: PidleaseServer, path: str) -> bytes:
    """The whole stream; of a JSON stream, the arrays one after the other."""
    content, offset = b"", "-1"
    while True:
        reply = send(server, "GET", f"{path}?offset={offset}")
        assert reply.status == 200, reply
        content += reply.body
        offset = reply.next_offset
        if reply.headers["Stream-Up-To-Date"] == "true":
            return content


def read_json(server: PidleaseServer, path: str) -> list[Any]:
    """All values of a JSON stream of one page."""
    reply = send(server, "GET", path)
    assert reply.status == 200, reply
    assert reply.headers["Stream-Up-To-Date"] == "true"
    return list(json.loads(reply.body))
