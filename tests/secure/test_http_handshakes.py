"""TLS handshakes at the HTTP listener: bounded in time and number, and logged."""

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from structlog.testing import capture_logs

from pidlease.observability.repeated_lines import LINES
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http.connection_limit import ConnectionLimit
from proxy.security.certificate_names import PrincipalMapper
from proxy.security.server_certificates import ServerCertificates
from tests.client.harness import until
from tests.http_api.appending import listening
from tests.secure.test_tls import Pki
from tests.servers.authority import needs_openssl
from tests.servers.waiting import WAIT_S

pytestmark = needs_openssl
_REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


def _context(pki: Pki) -> ssl.SSLContext:
    return ServerCertificates(pki.files(), None, PrincipalMapper("DEFAULT")).context


def _app() -> Starlette:
    return Starlette(routes=[Route("/", lambda _: Response(b"served"))])


async def _request(port: int, pki: Pki) -> bytes:
    reader, writer = await asyncio.open_connection(
        LOOPBACK, port, ssl=pki.context(), server_hostname="localhost"
    )
    writer.write(_REQUEST)
    found = await asyncio.wait_for(reader.readuntil(b"served"), WAIT_S)
    writer.transport.abort()
    return found


async def test_a_handshake_that_takes_too_long(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.security.tls_acceptor._HANDSHAKE_SECONDS", 0.5)
    async with listening(_app(), tls=_context(pki)) as port:
        LINES.flush(everything=True)
        with capture_logs() as lines:
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
            writer.close()
        assert [each["reason"] for each in lines] == ["it was not done in 0.5 s"]
        assert lines[0]["peer"].startswith("('127.0.0.1', ")
        assert b" 200 " in await _request(port, pki)


async def test_a_stop_ends_handshakes(pki: Pki) -> None:
    async with listening(_app(), tls=_context(pki)) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        assert b" 200 " in await _request(port, pki)  # so the other one is accepted as well
    assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
    writer.close()


async def test_silent_clients_count_as_connections(pki: Pki) -> None:
    limit = ConnectionLimit(5)
    async with listening(_app(), limit, _context(pki)) as port:
        silent = [await asyncio.open_connection(LOOPBACK, port) for _ in range(50)]
        await until(lambda: limit.closed == 45)
        assert limit.open == 5
        for reader, _ in silent[:45]:
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        assert b" 200 " in await _request(port, pki)
        assert limit.closed == 46
        for _, writer in silent:
            writer.close()
        await until(lambda: limit.open == 0)


async def test_a_client_that_ends_tls_has_its_connection_closed(
    pki: Pki, caplog: pytest.LogCaptureFixture
) -> None:
    """Also with a request in progress; nothing is logged."""
    caplog.set_level(logging.WARNING)
    limit = ConnectionLimit(10)

    def end_tls(sent: bytes) -> None:
        with (
            socket.create_connection((LOOPBACK, port), WAIT_S) as connection,
            pki.context().wrap_socket(connection, server_hostname="localhost") as client,
        ):
            client.sendall(sent)
            with suppress(OSError):  # a response may be on its way
                client.unwrap()

    async with listening(_app(), limit, _context(pki)) as port:
        for sent in (_REQUEST, _REQUEST[:-1], _REQUEST * 2, b""):
            await asyncio.to_thread(end_tls, sent)
            async with asyncio.timeout(WAIT_S):
                await until(lambda: not limit.open)
    assert not caplog.records
