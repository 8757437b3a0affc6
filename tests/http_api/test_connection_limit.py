"""More connections than the limit: idle ones give way, and no request loses its response."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http.connection_limit import ConnectionLimit
from tests.http_api.appending import OFFERS, door, listening, path_of, post
from tests.http_api.test_pipelined_requests import statuses
from tests.servers.waiting import WAIT_S

#: A request that has begun to be served: its body is on the way.
_BEGUN = (
    f"POST {path_of()} HTTP/1.1\r\nhost: x\r\ncontent-type: application/octet-stream\r\n"
    "content-length: 100\r\nexpect: 100-continue\r\n\r\n"
).encode()


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
