"""Clients that end their side of a connection: requests that arrived whole have responses."""

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Final

import pytest

from pidlease.http_api.problems import MEDIA_TYPE
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http.connection_limit import ConnectionLimit
from tests.client.harness import until
from tests.http_api.appending import Door, door, listening, path_of, post
from tests.http_api.test_pipelined_requests import statuses
from tests.servers.waiting import WAIT_S

#: Less than the time for which a read waits.
_SOON_S: Final = 20.0
_STREAM: Final = "/v1/stream/s"
_TEXT: Final = {"content-type": "text/plain"}


def _request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


def _append(body: bytes) -> bytes:
    return _request("POST", _STREAM, body, "content-type: text/plain")


async def _until_the_end(port: int, sent: bytes) -> bytes:
    """Send requests, half-close, and return all that comes until the end of the connection."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(sent)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), _SOON_S)
    finally:
        writer.close()


async def _make_stream(here: Door) -> None:
    assert (await here.client.put(_STREAM, headers=_TEXT)).status_code == 201


async def _values(here: Door) -> list[str | bytes | None]:
    return [each.value for each in (await here.records()).records]


@pytest.mark.parametrize("size", [5, 100_000], ids=["in the protocol", "in a task"])
async def test_an_append_has_its_response(size: int, tmp_path: Path) -> None:
    body = b"x" * size
    async with door(tmp_path) as here, listening(here.app) as port:
        await _make_stream(here)
        answer = await _until_the_end(port, post(body))
        assert statuses(answer) == [200]
        assert b"connection: close\r\n" in answer
        assert statuses(await _until_the_end(port, _append(body))) == [204]
        assert await _values(here) == [body]
        read = await _until_the_end(port, _request("GET", f"{_STREAM}?offset=-1"))
        assert read.endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (_request("POST", "/v1/leases", b'{"topic":"t","partition":0}',
                  "content-type: application/json"), 200),
        (_request("PUT", "/v1/stream/new", b"a", "content-type: text/plain"), 201),
        (_request("DELETE", _STREAM), 204),
        (_request("GET", _STREAM), 200),
        (_request("HEAD", _STREAM), 200),
        (_request("GET", path_of()), 200),
        (_request("GET", "/v1/topics"), 200),
    ],
)  # fmt: skip
async def test_any_request_has_its_response(request_: bytes, status: int, tmp_path: Path) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        await _make_stream(here)
        assert statuses(await _until_the_end(port, request_)) == [status]


@pytest.mark.parametrize("rest", [b"", b"POST /v1/top"], ids=["", "with a part of a head"])
async def test_all_requests_of_a_connection_have_their_responses(
    rest: bytes, tmp_path: Path
) -> None:
    """More than are parsed ahead of their turn."""
    count = 300
    async with door(tmp_path) as here, listening(here.app) as port:
        read = _request("GET", path_of() + "?max_bytes=1")
        requests = b"".join(post(b"%d" % number) + read for number in range(count))
        answer = await _until_the_end(port, requests + rest)
        assert statuses(answer) == [200] * (2 * count)
        assert await _values(here) == [b"%d" % number for number in range(count)]


async def test_a_malformed_request_is_refused_after_the_others(tmp_path: Path) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        answer = await _until_the_end(port, post(b"a") + post(b"b") + b"no request\r\n\r\n")
        assert statuses(answer) == [200, 200, 400]


@pytest.mark.parametrize("rest", [b"", b"GET /v1/topics HTTP/1.1\r\nhost: x\r\n"])
async def test_without_a_request_the_connection_ends_at_once(rest: bytes, tmp_path: Path) -> None:
    """Also after one with its response."""
    async with door(tmp_path) as here, listening(here.app) as port:
        assert await _until_the_end(port, rest) == b""
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(post(b"a"))
        assert statuses(await asyncio.wait_for(reader.readuntil(b"}"), WAIT_S)) == [200]
        writer.write(rest)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), _SOON_S) == b""
        writer.close()


_CUT: Final = {
    "a small append": post(b"value")[:-1],
    "a large append": post(b"x" * 200_000)[:-1],
    "an append without any of its body": post(b"value")[:-5],
    "an append that waits for 100 Continue": post(b"value", "expect: 100-continue")[:-5],
    "chunks": post(b"").replace(b"content-length: 0", b"transfer-encoding: chunked") + b"5\r\nva",
    "a stream's append": _append(b"value")[:-1],
    "a stream's large append": _append(b"x" * 200_000)[:-1],
    "a stream": _request("PUT", "/v1/stream/cut", b"value", "content-type: text/plain")[:-1],
    "a lease": _request("POST", "/v1/leases", b"{}", "content-type: application/json")[:-1],
    "leases": _request("POST", "/v1/leases/batch", b"{}", "content-type: application/json")[:-1],
}


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("kind", _CUT)
async def test_a_body_that_is_cut_off(
    kind: str, before: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with door(tmp_path) as here, listening(here.app) as port:
        await _make_stream(here)
        answer = await _until_the_end(port, post(b"before") * before + _CUT[kind])
        final = [each for each in statuses(answer) if each != 100]
        assert final == [200] * before + [400]
        head, _, body = answer.rpartition(b"\r\n\r\n")
        assert f"content-type: {MEDIA_TYPE}\r\n".encode() in head
        assert b"connection: close" in head
        assert json.loads(body)["code"] == "incomplete_body"
        assert await _values(here) == [b"before"] * before
        assert (await here.client.get(_STREAM)).content == b""
        assert (await here.client.get("/v1/stream/cut")).status_code == 404
    assert not caplog.records


_WAITING: Final = {
    "records": f"{path_of()}?wait_ms=60000",
    "long poll": f"{_STREAM}?offset=now&live=long-poll",
    "events": f"{_STREAM}?offset=now&live=sse",
}


@pytest.mark.parametrize("kind", _WAITING)
@pytest.mark.parametrize("half", [True, False], ids=["half-closed", "closed"])
@pytest.mark.parametrize("late", [True, False], ids=["while it waits", "at once"])
async def test_a_read_that_waits_ends_with_its_client(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, half: bool, late: bool
) -> None:
    """The client may have closed its connection, which looks the same until something is sent."""
    caplog.set_level(logging.WARNING)
    limit = ConnectionLimit(10)
    async with door(tmp_path) as here, listening(here.app, limit) as port:
        await _make_stream(here)
        stream = here.server.engine.partition("s", 0)
        assert stream is not None
        watched = here.partition if kind == "records" else stream
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(_request("GET", _WAITING[kind]))
        if late:
            await until(lambda: len(watched._watchers) == 1)
        if half:
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), _SOON_S)
            assert statuses(answer) == [204 if kind == "long poll" else 200]
        writer.close()
        async with asyncio.timeout(_SOON_S):
            await until(lambda: not watched._watchers and not limit.open)
    assert not caplog.records


async def test_an_append_after_a_read_that_waits(tmp_path: Path) -> None:
    """The read ends, and the append is stored."""
    async with door(tmp_path) as here, listening(here.app) as port:
        read = _request("GET", _WAITING["records"])
        answer = await _until_the_end(port, read + post(b"a", partition=1) + read)
        assert statuses(answer) == [200, 200, 200]
        assert re.findall(rb'"next_offset":(\d+)', answer) == [b"0", b"0"]


async def test_a_client_that_closes_while_its_append_is_served(tmp_path: Path) -> None:
    """The record is stored, and the connection ends."""
    limit = ConnectionLimit(10)
    async with door(tmp_path) as here, listening(here.app, limit) as port:
        for body in (b"a", b"x" * 100_000):
            _, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.write(post(body))
            await writer.drain()
            writer.close()
        async with asyncio.timeout(_SOON_S):
            await until(lambda: here.partition.next_offset == 2 and not limit.open)
