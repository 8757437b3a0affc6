"""More connections than the limit: idle ones give way, and no request loses its response."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from pidlease.http_api.ping_messages import PING_PATH
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http import connection_limit, http_server
from proxy.http.connection_limit import ConnectionLimit
from proxy.http.forwarding_headers import FORWARDED
from tests.client.harness import until
from tests.http_api.appending import OFFERS, door, listening, path_of, post
from tests.http_api.test_pipelined_requests import statuses
from tests.servers.waiting import WAIT_S

#: A request that has begun to be served: its body is on the way.
_BEGUN = (
    f"POST {path_of()} HTTP/1.1\r\nhost: x\r\ncontent-type: application/octet-stream\r\n"
    "content-length: 100\r\nexpect: 100-continue\r\n\r\n"
).encode()
#: Of another active server; this one is none, and says so.
_PING = f"GET {PING_PATH}?to=1&version=1 HTTP/1.1\r\nhost: x\r\n{FORWARDED}: 1\r\n\r\n".encode()


async def _ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(_PING)
    answer = await asyncio.wait_for(reader.readuntil(b"}"), WAIT_S)
    assert b"this server is no member" in answer


async def _busy(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(_BEGUN)
    assert statuses(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)) == [100]
    return reader, writer


async def _wait_end(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), WAIT_S)


@pytest.mark.parametrize("first", [b"", b"POST /v1/to", post(b"x"), OFFERS])
async def test_an_idle_connection_gives_way(first: bytes, tmp_path: Path) -> None:
    """Also one with a part of a head."""
    limit = ConnectionLimit(2)
    async with door(tmp_path) as here, listening(here.app, limit) as port:
        busy, busy_writer = await _busy(port)
        old, old_writer = await asyncio.open_connection(LOOPBACK, port)
        old_writer.write(first)
        if first.endswith((b"x", b"\n")):
            assert b" 200 " in await asyncio.wait_for(old.readuntil(b"}"), WAIT_S)
        new, new_writer = await asyncio.open_connection(LOOPBACK, port)
        await _wait_end(old)
        assert limit.closed == 1
        new_writer.write(post(b"new"))
        assert statuses(await new.readuntil(b"}")) == [200]
        busy_writer.write(b"y" * 100)
        assert statuses(await busy.readuntil(b"}")) == [200]
        for each in (busy_writer, old_writer, new_writer):
            each.close()


async def test_no_connection_is_idle(tmp_path: Path) -> None:
    limit = ConnectionLimit(3)
    async with door(tmp_path) as here, listening(here.app, limit) as port:
        busy = [await _busy(port) for _ in range(3)]
        for _ in range(10):
            new, new_writer = await asyncio.open_connection(LOOPBACK, port)
            await _wait_end(new)
            new_writer.close()
        assert limit.closed == 10
        for reader, writer in busy:
            writer.write(b"y" * 100)
            assert statuses(await reader.readuntil(b"}")) == [200]
            writer.close()
        again, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(post(b"again"))
        assert statuses(await again.readuntil(b"}")) == [200]
        writer.close()


async def test_another_server_s_connection_does_not_give_way(tmp_path: Path) -> None:
    """Unless it is used by a client; and none does at a server that shares no cluster."""
    for shared, requests in ((True, 2), (True, 3), (False, 2)):
        limit = ConnectionLimit(2, shared=shared)
        async with door(tmp_path) as here, listening(here.app, limit) as port:
            member, member_writer = await asyncio.open_connection(LOOPBACK, port)
            for _ in range(2):
                await _ping(member, member_writer)
            if requests == 3:
                member_writer.write(post(b"x"))
                await member.readuntil(b"}")
            others = []
            for number in range(5):
                other, other_writer = await asyncio.open_connection(LOOPBACK, port)
                other_writer.write(post(b"x"))
                await other.readuntil(b"}")
                others.append(other_writer)
                if shared and requests == 2:
                    await _ping(member, member_writer)
                    assert limit.closed == max(0, number)
            if not shared or requests == 3:
                await _wait_end(member)
            for each in (member_writer, *others):
                each.close()


async def test_another_server_connects_while_all_connections_are_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if clients open as many connections as the server accepts beyond its limit."""
    monkeypatch.setattr(connection_limit, "_RESERVE", 3)
    limit = ConnectionLimit(2, shared=True)
    async with door(tmp_path) as here, listening(here.app, limit) as port:
        busy = [await _busy(port) for _ in range(2)]
        silent = [await asyncio.open_connection(LOOPBACK, port) for _ in range(3)]
        member, member_writer = await asyncio.open_connection(LOOPBACK, port)
        await _wait_end(silent[0][0])
        for _ in range(2):
            await _ping(member, member_writer)
        client, client_writer = silent[1]
        client_writer.write(post(b"x"))
        refusal = await asyncio.wait_for(client.read(), WAIT_S)
        assert statuses(refusal) == [503]
        assert b"too many connections" in refusal
        assert limit.closed == 2
        busy[0][1].write(b"y" * 100)
        assert statuses(await busy[0][0].readuntil(b"}")) == [200]
        busy[0][1].close()
        busy[1][1].close()
        await until(lambda: limit.open == 2)
        silent[2][1].write(post(b"there is room now"))
        assert statuses(await silent[2][0].readuntil(b"}")) == [200]
        for _, writer in (*silent, (member, member_writer)):
            writer.close()
        await until(lambda: limit.open == 0)


class _Member:
    """A connection of another server, which counts how often it is looked at."""

    looks = 0

    def is_of_member(self) -> bool:
        _Member.looks += 1
        return True

    def give_way(self) -> bool:
        raise AssertionError("it is another server's")


def test_many_refused_connections_cost_few_looks() -> None:
    _Member.looks = 0
    limit = ConnectionLimit(1000, shared=True)
    port = limit.add_port()
    for _ in range(1000):
        assert port.opened(_Member())
    new = [_Member() for _ in range(limit.reserve)]
    assert all(port.opened(each) for each in new)
    for each in new:
        assert port.began(each)
    for _ in range(1000):
        assert not port.opened(_Member())
    assert _Member.looks == 1000 + limit.reserve
    assert limit.open == 1000 + limit.reserve


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_a_client_that_does_not_read(
    connection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection ends, also one that the server has closed."""
    monkeypatch.setattr(http_server, "_UNREAD_MS", 300)
    limit = ConnectionLimit(2)
    request = f"GET /openapi.json HTTP/1.1\r\nhost: x\r\nconnection: {connection}\r\n\r\n"
    async with door(tmp_path) as here, listening(here.app, limit) as port:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 10)
            client.connect((LOOPBACK, port))
            client.sendall(request.encode())
            await until(lambda: limit.open == 1)
            await until(lambda: limit.open == 0)
