"""A server in a process of its own, spoken to over HTTP while it is killed and started again."""

import asyncio
import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any, Final

from pidlease.testing.loopback_ports import LOOPBACK
from tests.http_api.appending import RAW, path_of
from tests.kafka_listener.client import WireClient
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_TIMEOUT_S: Final = WAIT_S


def make_topic(server: PidleaseServer, partitions: int = 1) -> None:
    """The topic `t`; topics are made by the Kafka door."""

    async def make() -> None:
        async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
            await client.create("t", partitions)

    asyncio.run(make())


def ask(
    server: PidleaseServer,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, Any] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> tuple[int, dict[str, Any]]:
    """One request, on a connection of its own."""
    connection = http.client.HTTPConnection(LOOPBACK, server.http_port, timeout=timeout_s)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")
    finally:
        connection.close()


def append(
    server: PidleaseServer, content: bytes, producer: Mapping[str, Any], partition: int = 0
) -> tuple[int, dict[str, Any]]:
    """A raw append of one record."""
    return ask(server, "POST", path_of("t", partition), content, {**RAW, **producer})


def read_back(server: PidleaseServer, partition: int = 0) -> list[str]:
    """The values of all records there are."""
    found: list[str] = []
    offset = 0
    while True:
        path = f"{path_of('t', partition)}?offset={offset}"
        status, answer = ask(server, "GET", path)
        assert status == 200, answer
        found += [each["value"] for each in answer["records"]]
        offset = answer["next_offset"]
        if offset == answer["log_end"]:
            assert len(found) == offset
            return found


def send_only(server: PidleaseServer, content: bytes, producer: Mapping[str, Any]) -> socket.socket:
    """Send an append, and do not wait; what is answered comes on the socket."""
    connection = socket.create_connection((LOOPBACK, server.http_port), _TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = [f"POST {path_of()} HTTP/1.1", "Host: x", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in {**RAW, **producer}.items()]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
    return connection


def answered(connection: socket.socket) -> bool:
    """Whether an answer had come in full when the other side died; it must be 200 then."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionResetError:
        pass  # what had come before is lost as well: nobody was answered
    finally:
        connection.close()
    assert not data or data.startswith(b"HTTP/1.1 200 "), data
    return data.endswith(b"}")
