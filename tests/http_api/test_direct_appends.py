"""Appends and reads past the framework: the same responses as through it, and bounded heads."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http.http_protocol import HEAD_BYTES_MAX
from tests.http_api.appending import (
    JSON,
    RAW,
    Answer,
    Door,
    door,
    listening,
    path_of,
    producer,
    values,
)

#: A partition number in the usual form, and one that only the framework reads.
_DIRECT: Final = "0"
_FRAMEWORK: Final = "00"
REQUESTS: Final[list[tuple[str, dict[str, str | bytes], object]]] = [
    ("t", {}, values("a", "b")),
    ("t", producer("p", 0, 0), values("a")),
    ("t", producer("p", 0, 0), values("a")),
    ("t", producer("p", 0, 7), values("a")),
    ("t", producer("p", 1, 0), values("a")),
    ("t", producer("p", 0, 1), values("a")),
    ("t", {"producer-id": "p"}, values("a")),
    ("t", producer("p", 2**60, 0), values("a")),
    ("t", {}, {"records": []}),
    ("t", {}, {"records": [{"value": "a", "colour": "red"}]}),
    ("t", {}, "no object"),
    ("t", {"content-type": "text/plain"}, values("a")),
    ("t", {"content-encoding": "gzip"}, values("a")),
    ("no!body", {}, values("a")),
    ("t", {"content-length": "9" * 30}, values("a")),
]


async def test_both_ways_give_the_same_responses(
    tmp_path: Path, framework_calls: Counter[str]
) -> None:
    given: dict[str, list[Answer]] = {_DIRECT: [], _FRAMEWORK: []}
    for way, responses in given.items():
        async with door(tmp_path / way) as here:
            for topic, headers, body in REQUESTS:
                status, answer = await here.append(body, headers, topic=topic, partition=way)
                responses.append((status, answer))
        assert framework_calls["append"] == (0 if way == _DIRECT else len(REQUESTS))
    assert given[_DIRECT] == given[_FRAMEWORK]
    statuses = [status for status, _ in given[_DIRECT]]
    assert statuses == [200, 200, 200, 409, 200, 409, 400, 400, 400, 400, 400, 415, 400, 400, 413]


async def test_a_large_partition_number_is_refused_by_the_framework(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        status, answer = await here.append(values("a"), partition=2**31)
        assert (status, answer["field"]) == (400, "partition")
        status, answer = await here.append(values("a"), partition=999_999_999)
        assert (status, answer["code"]) == (404, "unknown_partition")


async def _exchange(port: int, *sent: bytes) -> bytes:
    """Send bytes to the port, and return everything that comes until the end."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        for part in sent:
            writer.write(part)
            await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""  # reset: the server had closed while bytes were still on their way
    finally:
        writer.close()


async def _serves_on(here: Door) -> None:
    status, answer = await here.append(values("fine"))
    assert (status, answer["offset"]) == (200, 0)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /" + b"x" * HEAD_BYTES_MAX,
        b"POST / HTTP/1.1\r\nhost: x\r\na: " + b"x" * HEAD_BYTES_MAX,
        b"POST / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * (HEAD_BYTES_MAX // 6),
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
        + b"a: b\r\n" * HEAD_BYTES_MAX,
    ],
    ids=["url", "header", "headers", "trailers"],
)
async def test_a_head_without_an_end_closes_the_connection(tmp_path: Path, head: bytes) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        answer = await asyncio.wait_for(_exchange(port, head), 20)
        assert answer == b"" or b" 400 " in answer.split(b"\r\n")[0] or b" 404 " in answer
        await _serves_on(here)


async def test_a_body_longer_than_a_head_may_be(tmp_path: Path) -> None:
    body = b"x" * (4 * HEAD_BYTES_MAX)
    head = f"POST {path_of()} HTTP/1.1\r\nhost: x\r\ncontent-type: {RAW['content-type']}\r\n"
    request = f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with door(tmp_path) as here, listening(here.app) as port:
        answer = await _exchange(port, request, body[:100_000], body[100_000:])
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_an_upgrade_to_http2_is_declined_and_the_append_served(tmp_path: Path) -> None:
    """Java's client offers it with its first request."""
    body = json.dumps(values("a")).encode()
    request = (
        f"POST {path_of()} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\n"
        f"upgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
        f"content-type: {JSON['content-type']}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    # On the same connection, which h11 serves now.
    last = f"GET {path_of()} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
    async with door(tmp_path) as here, listening(here.app) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        try:
            writer.write(request + body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            await reader.readuntil(b"}")
            writer.write(last)
            assert b'"log_end":1' in await reader.read()
        finally:
            writer.close()


async def test_both_ways_to_read_give_the_same_responses(
    tmp_path: Path, framework_calls: Counter[str]
) -> None:
    queries = [
        "", "offset=0", "offset=1&max_bytes=1", "max_bytes=1&offset=1&wait_ms=1",
        "offset=3&wait_ms=1", "offset=99", "offset=9223372036854775807", "max_bytes=4194304",
    ]  # fmt: skip
    #: In another form, or invalid: the framework reads, or refuses, them on both paths.
    others = [
        "offset=", "offset=-1", "offset=%30", "offset=00", "offset=0&offset=1", "limit=1",
        "offset=9223372036854775808", "max_bytes=0", "max_bytes=4194305", "wait_ms=60001",
        "offset=1&", "offset=+1", "offset=1_0",
    ]  # fmt: skip
    found: dict[str, list[tuple[int, dict[str, str], bytes]]] = {}
    async with door(tmp_path) as here:
        await here.append({"records": [{"value": "a"}, {"value": {"base64": "/w=="}, "key": '"ä'}]})
        await here.append(values("c"), producer("p", 0, 0))
        for way in (_DIRECT, _FRAMEWORK):
            found[way] = []
            for query in queries + others:
                before = framework_calls["read"]
                response = await here.client.get(f"{path_of('t', way)}?{query}")
                found[way].append((response.status_code, dict(response.headers), response.content))
                if query in queries:
                    assert framework_calls["read"] - before == (way == _FRAMEWORK), query
            response = await here.client.get(path_of("none", way))
            found[way].append((response.status_code, dict(response.headers), response.content))
    assert found[_DIRECT] == found[_FRAMEWORK]
    statuses = [status for status, _, _ in found[_DIRECT]]
    assert statuses[: len(queries)] == [200, 200, 200, 200, 200, 416, 416, 200]
    assert statuses[len(queries) :].count(400) >= 9
    assert statuses[-1] == 404
