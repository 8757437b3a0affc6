"""Requests that do not arrive: each connection ends, with a response where there is a request."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from pidlease.http_api.ping_messages import PING_PATH
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http import body_limit, direct_leases, http_protocol, request_memory
from proxy.http.forwarding_headers import MEMBER_PATHS
from proxy.http.record_routes import RecordLimits
from tests.http_api.appending import OFFERS, door, listening, path_of, post
from tests.http_api.test_pipelined_requests import exchange, statuses
from tests.servers.waiting import WAIT_S

_HEAD = (
    "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)
_JSON = {"Content-Type": "application/json"}
_BATCH, _LEASE = "/v1/leases/batch", "/v1/leases"


@asynccontextmanager
async def impatient(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of a server that waits for a short time only."""
    monkeypatch.setattr(http_protocol, "_HEAD_SECONDS", 0.2)
    monkeypatch.setattr(http_protocol, "_IDLE_SECONDS", 0.2)
    monkeypatch.setattr(request_memory, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(direct_leases, "IDLE_SECONDS", 0.2)
    limits = RecordLimits(batch_bytes_max=5000)
    async with door(folder, limits=limits) as here, listening(here.app) as port:
        yield port


@pytest.mark.parametrize("before", [0, 3])
async def test_a_head_that_does_not_arrive(
    before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after other requests on its connection; these have their responses."""
    async with impatient(tmp_path, monkeypatch) as port:
        requests = [post(b"%d" % number) for number in range(before)]
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        found = b""
        for each in requests:
            writer.write(each)
            found += await reader.readuntil(b"}")
        writer.write(b"GET /v1/topics HTTP/1.1\r\nHost: x\r\n")
        found += await asyncio.wait_for(reader.read(), WAIT_S)
        writer.close()
        assert statuses(found) == [200] * before + [400]
        assert b"head did not arrive" in found


async def test_a_second_head_that_does_not_arrive_after_an_offer_of_http2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with impatient(tmp_path, monkeypatch) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(OFFERS)
        assert statuses(await reader.readuntil(b"}")) == [200]
        writer.write(b"GET /v1/topics HTTP/1.1\r\nHost: x\r\n")
        found = await asyncio.wait_for(reader.read(), WAIT_S)
        assert b"head did not arrive" in found
        writer.close()


@pytest.mark.parametrize("size", [0, 1, 10_000], ids=["none", "a part", "all"])
async def test_a_body_that_comes_after_the_response(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends as any that is idle."""
    async with impatient(tmp_path, monkeypatch) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(_HEAD.format(path_of(), 10_000).encode())
        assert statuses(await reader.readuntil(b"}")) == [413]
        writer.write(b"x" * size)
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()


async def test_a_connection_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with impatient(tmp_path, monkeypatch) as port:
        assert await exchange(port) == b""


@pytest.mark.parametrize(("path", "size"), [(_BATCH, 1_000_000), (_LEASE, 100), (_LEASE, 100_000)])
async def test_a_body_that_does_not_arrive(
    path: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with impatient(tmp_path, monkeypatch) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(_HEAD.format(path, size).encode() + b"x" * (size - 1))
        answer = await asyncio.wait_for(reader.readuntil(b"}"), WAIT_S)
        assert statuses(answer) == [408]
        writer.close()


@pytest.mark.parametrize(
    ("path", "size"),
    [
        (path_of(), 100),
        ("/v1/topics/t/records", 100),
        ("/v1/stream/s", 100),
        (_BATCH, 1_000_000),
        (_LEASE, 100),
        (_LEASE, 100_000),
    ],
)
async def test_a_body_that_has_not_arrived_when_the_server_stops(
    path: str, size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with door(tmp_path) as here:
        async with listening(here.app, stop_seconds=0) as port:
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            head = _HEAD.replace("Host: x", "Host: x\r\nExpect: 100-continue")
            writer.write(head.format(path, size).encode())
            begun = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
            assert statuses(begun) == [100]
            writer.write(b"x" * (size - 1))
        answer = await asyncio.wait_for(reader.read(), WAIT_S)
        writer.close()
    assert statuses(answer) == [503]
    fields, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in fields
    assert b"retry-after: 1" in fields
    assert json.loads(body)["code"] == "not_ready"
    assert not [each for each in caplog.records if each.exc_info]


@pytest.mark.parametrize("path", [_BATCH, path_of()])
async def test_a_body_that_comes_byte_by_byte(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_memory, "_BODY_SECONDS", 0.3)
    async with door(tmp_path) as here, listening(here.app) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(_HEAD.format(path, 100_000).encode())
        answer = asyncio.create_task(reader.readuntil(b"}"))
        async with asyncio.timeout(WAIT_S):
            while not answer.done():
                writer.write(b" ")
                await asyncio.sleep(0.01)
        assert statuses(await answer) == [408]
        writer.close()


async def test_a_long_body_at_a_rate_that_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_memory, "_BODY_SECONDS", 0.2)
    monkeypatch.setattr(request_memory, "_BODY_BYTES_A_SECOND", 10_000)
    async with door(tmp_path) as here, listening(here.app) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(_HEAD.format(_BATCH, 100_000).encode())
        for _ in range(10):
            writer.write(b" " * 9_999)
            await asyncio.sleep(0.1)
        writer.write(b" " * 8 + b"{}")
        assert statuses(await asyncio.wait_for(reader.readuntil(b"}"), WAIT_S)) == [400]
        writer.close()


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("HEAD", 405), ("OPTIONS", 405)])
async def test_a_body_that_no_route_reads_is_not_waited_for(
    method: str, status: int, tmp_path: Path
) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        head = _HEAD.format("/v1/topics", 1_000_000).replace("POST", method)
        writer.write(head.encode() + b"x")
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
        assert statuses(answer) == [status]
        writer.close()


async def test_a_head_in_two_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with impatient(tmp_path, monkeypatch) as port:
        whole = post(b"x")
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(whole[:20])
        await writer.drain()
        writer.write(whole[20:])
        assert statuses(await reader.readuntil(b"}")) == [200]
        writer.close()


async def test_bodies_hold_no_more_memory_than_they_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_limit, "_MEMORY_BYTES", 1 << 20)
    async with door(tmp_path) as here, listening(here.app) as port:
        large = _HEAD.format(_BATCH, 1_000_000).encode()
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(large + b" " * 900_000)
        await writer.drain()
        status = 0
        while status != 503:  # until the first body has arrived
            response = await here.client.post(_BATCH, content=b" " * 999_998 + b"{}", headers=_JSON)
            status = response.status_code
            await asyncio.sleep(0)  # the client in this process does not leave the loop
        for path in MEMBER_PATHS.keys() - {PING_PATH}:
            member, member_writer = await asyncio.open_connection(LOOPBACK, port)
            body = b" " * 199_998 + b"{}"
            member_writer.write(_HEAD.format(path, len(body)).encode() + body)
            answer = await asyncio.wait_for(member.readuntil(b"}"), WAIT_S)
            assert statuses(answer) == [400], path  # it is read: it has memory of its own
            member_writer.close()
        writer.write(b" " * 99_998 + b"{}")
        first = await asyncio.wait_for(reader.readuntil(b"}"), WAIT_S)
        assert statuses(first) == [400]
        writer.close()


async def test_a_body_holds_memory_until_the_response_begins() -> None:
    """A client that does not read its response holds none."""
    used: list[int] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"body"
        used.append(limit._memory.used)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        used.append(limit._memory.used)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"body", "more_body": False}

    async def send(_: Message) -> None:
        pass

    limit = body_limit.BodyLimit(app, 10)
    headers = [(b"content-length", b"4")]
    await limit({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)
    assert used[0] > len(b"body")
    assert used[1] == 0
