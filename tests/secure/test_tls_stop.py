"""The HTTP listener with TLS stops, whatever its clients do."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http.http_protocol import http_config
from proxy.http.http_server import HttpServer
from proxy.security.certificate_names import PrincipalMapper
from proxy.security.server_certificates import ServerCertificates
from tests.client.harness import until
from tests.secure.test_tls import Pki
from tests.servers.authority import needs_openssl

pytestmark = needs_openssl
#: Less than the time for which the event loop waits for the end of TLS.
_STOP_SECONDS = 20
#: More than the system's buffers have.
_LARGE = 8 << 20


async def _respond(request: Request) -> Response:
    return Response(b"x" * int(request.query_params["size"]))


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


async def test_a_stop_waits_for_responses_and_not_for_idle_clients(pki: Pki) -> None:
    """One that has its response does not read any more, so it does not end TLS. Another active
    server's idle connections are such clients."""
    app = Starlette(routes=[Route("/", _respond)])
    config = http_config(app, 3 * _STOP_SECONDS)
    config.load()
    config.ssl = ServerCertificates(pki.files(), None, PrincipalMapper("DEFAULT")).context
    listener = socket.create_server((LOOPBACK, 0))
    running = HttpServer(config, [listener])
    task = asyncio.create_task(running._serve())
    port = listener.getsockname()[1]

    def request(size: int) -> ssl.SSLSocket:
        connection = socket.create_connection((LOOPBACK, port))
        client = pki.context().wrap_socket(connection, server_hostname="localhost")
        client.sendall(f"GET /?size={size} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        return client

    def rest(client: ssl.SSLSocket, size: int) -> int:
        found = 0
        while found < size and (data := client.recv(1 << 16)):
            found += len(data)
        return found

    idle, slow = [await asyncio.to_thread(request, size) for size in (1, _LARGE)]
    assert await asyncio.to_thread(rest, idle, 1) == 1
    running.should_exit = True
    connections = running.server_state.connections
    async with asyncio.timeout(_STOP_SECONDS):
        await until(lambda: len(connections) < 2)
        assert await asyncio.to_thread(rest, slow, _LARGE) == _LARGE
        slow.close()
        await task
    idle.close()
