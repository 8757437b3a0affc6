"""Small appends to streams in the protocol of their connection: the same as by the application."""

import asyncio
import re
from pathlib import Path
from typing import Final

import pytest

from tests.http_api.appending import door, listening, noted_submits, producer
from tests.http_api.test_immediate_appends import Connection

_HANG_S: Final = 60.0
_DATE: Final = re.compile(rb"date: [^\r]*\r\n")
_TEXT: Final = "Content-Type: text/plain"
_JSON: Final = "Content-Type: application/json"


def _request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} /v1/stream/{path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, *headers, "", "")).encode() + body


def _post(path: str, body: bytes, *headers: str) -> bytes:
    return _request("POST", path, body, *headers)


def _numbered(name: str, epoch: int, seq: int) -> list[str]:
    return [_TEXT, *(f"{key}: {value!s}" for key, value in producer(name, epoch, seq).items())]


#: Each with its status, and whether it is submitted in the protocol; None: it is not tried.
_REQUESTS: Final[list[tuple[bytes, int, bool | None]]] = [
    (_post("s", b"early", _TEXT), 404, False),
    (_request("PUT", "s", b"first", _TEXT), 201, None),
    (_post("s", b"a", _TEXT), 204, True),
    (_post("s", b"b", "Content-Type: TEXT/plain; charset=utf-8"), 204, True),
    (_post("s", b"c"), 400, False),
    (_post("s", b"d", _JSON), 409, False),
    (_post("s", b"", _TEXT), 400, False),
    (_post("s", b"e", *_numbered("p", 0, 0)), 200, True),
    (_post("s", b"e", *_numbered("p", 0, 0)), 204, True),
    (_post("s", b"f", *_numbered("p", 0, 5)), 409, True),
    (_post("s", b"f", *_numbered("p", 3, 1)), 400, True),
    (_post("s", b"f", *_numbered("p", 3, 0)), 200, True),
    (_post("s", b"g", *_numbered("p", 0, 1)), 403, True),
    (_post("s", b"h", _TEXT, "Producer-Id: p"), 400, False),
    (_post("s", b"i", _TEXT, "Stream-Seq: 5"), 204, True),
    (_post("s", b"j", _TEXT, "Stream-Seq: 4"), 409, True),
    (_post("s", b"k", _TEXT, "Stream-Seq: " + "9" * 300), 400, False),
    (_post("s", b"l", _TEXT, "Origin: https://x"), 204, None),
    (_post("s", b"z", _TEXT, "Content-Encoding: Identity"), 204, True),
    (_post("s", b"packed", _TEXT, "Content-Encoding: gzip"), 415, False),
    (_post("s", b"packed", _TEXT, "Content-Encoding: identity, br"), 415, False),
    (_request("PUT", "s", b"packed", _TEXT, "Content-Encoding: gzip"), 415, None),
    (_request("PUT", "packed", b"packed", _JSON, "Content-Encoding: zstd"), 415, None),
    (_post("packed", b"1", _JSON), 404, False),
    (_post("s", b"m" * 9000, _TEXT), 204, None),  # a task reads its body
    (_post("%2e%2e", b"n", _TEXT), 400, False),
    (_request("PUT", "j", b"", _JSON), 201, None),
    (_post("j", b'[1, {"a": 2}]', _JSON), 204, True),
    (_post("j", b"[]", _JSON), 400, False),
    (_post("j", b"{", _JSON), 400, False),
    (_post("s", b"last", _TEXT, "Stream-Closed: true"), 204, True),
    (_post("s", b"more", _TEXT), 409, True),
    (_post("s", b"", "Stream-Closed: true"), 204, True),
    (_post("j", b"", "Stream-Closed: true"), 204, True),
    (_request("DELETE", "j"), 204, None),
    (_post("j", b"1", _JSON), 404, False),
    (_request("PUT", "short", b"", _TEXT, "Stream-TTL: 0"), 201, None),
    (_post("short", b"x", _TEXT), 404, False),
]  # fmt: skip


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    return noted_submits(monkeypatch)


async def _response(client: Connection) -> tuple[int, bytes]:
    """A response, without its date."""
    async with asyncio.timeout(_HANG_S):
        head = await client.reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head)
        body = await client.reader.readexactly(int(found[1])) if found else b""
    return int(head.split()[1]), _DATE.sub(b"", head) + body


async def test_the_same_by_both_ways(tmp_path: Path, submitted: list[bool]) -> None:
    found: list[list[bytes]] = []
    contents: list[bytes] = []
    for immediate in (True, False):
        async with door(tmp_path / str(immediate)) as here:
            if not immediate:
                del here.app.state.immediate
            async with listening(here.app) as port:
                client = await Connection.open(port)
                responses = []
                for request, status, is_submitted in _REQUESTS:
                    del submitted[:]
                    client.writer.write(request)
                    got, response = await _response(client)
                    assert got == status, (request, response)
                    tried = [] if is_submitted is None else [is_submitted]
                    # One that is refused is tried again when its turn comes.
                    assert submitted[:1] == (tried if immediate else []), request
                    responses.append(response)
                client.writer.write(_request("GET", "s?offset=-1"))
                contents.append((await _response(client))[1])
        found.append(responses)
    assert found[0] == found[1]
    without_topic = [re.sub(rb'etag: "[^:]*', b"", each) for each in contents]
    assert without_topic[0] == without_topic[1]
    assert b"firstab" + b"e" + b"f" + b"i" + b"lz" in contents[0]


async def test_pipelined_appends_of_a_stream(tmp_path: Path, submitted: list[bool]) -> None:
    """They share writes of the log; a close among them refuses those after it."""
    count = 200
    async with door(tmp_path) as here, listening(here.app) as port:
        client = await Connection.open(port)
        client.writer.write(_request("PUT", "s", b"", _TEXT))
        assert (await _response(client))[0] == 201
        before = here.server.engine.partition("s", 0)
        assert before is not None
        appends = before.totals.appends
        values = [_post("s", b"%d," % number, _TEXT) for number in range(count)]
        close = _post("s", b"end", _TEXT, "Stream-Closed: true")
        client.writer.write(b"".join((*values, close, _post("s", b"after", _TEXT))))
        statuses = [(await _response(client))[0] for _ in range(count + 2)]
        assert statuses == [204] * (count + 1) + [409]
        assert submitted == [True] * (count + 2)
        assert before.totals.appends - appends < count / 4
        client.writer.write(_request("GET", "s?offset=-1"))
        _, content = await _response(client)
        assert content.endswith(b"".join(b"%d," % number for number in range(count)) + b"end")
