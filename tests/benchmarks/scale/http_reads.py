"""Catch-up over HTTP: a stream, and the records of a partition, from the beginning to the end."""

from __future__ import annotations

import re
import socket
import tempfile
import time
from pathlib import Path

from pidlease.testing.loopback_ports import LOOPBACK
from tests.benchmarks.scale.figure import Figure
from tests.servers.pidlease import PidleaseServer

STREAM_MB_S_MIN = 300.0
_VALUES = 40_000
_VALUE = b"v" * 1024
_STREAM = "/v1/stream/s"
_RECORDS = "/v1/topics/t/partitions/0/records"
_BINARY = "Content-Type: application/octet-stream"
_LENGTH = re.compile(rb"content-length: (\d+)")
#: Where the next page begins; the end of the log is there, too.
_NEXT_OF_STREAM = re.compile(rb"stream-next-offset: (\S+)")
_NEXT_OF_RECORDS = re.compile(rb'"next_offset":(\d+),"log_start":0,"log_end":(\d+)')


class _Client:
    """Reads responses from a socket, and keeps no more of them than their beginning and end."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((LOOPBACK, port))
        self._buffer = bytearray(1 << 20)

    def send(self, method: str, path: str, *headers: str, content: bytes = b"") -> bytes:
        """The head of the response, and the end of its body."""
        lines = (f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(content)}")
        self._socket.sendall("\r\n".join((*lines, *headers, "", "")).encode() + content)
        return self.response()

    def response(self) -> bytes:
        view, have = memoryview(self._buffer), 0
        while (end := self._buffer.find(b"\r\n\r\n", 0, have)) < 0:
            have += self._socket.recv_into(view[have:])
        head = bytes(view[:end])
        if not head.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(repr(head))
        found = _LENGTH.search(head)
        left = end + 4 + (int(found[1]) if found else 0) - have
        while left > 0:
            have = self._socket.recv_into(view)
            left -= have
        return head + bytes(view[max(have - 100, 0) : have])


def _fill(client: _Client, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{_BINARY}\r\nContent-Length: {len(_VALUE)}\r\n\r\n"
    for _ in range(_VALUES):
        client._socket.sendall(head.encode() + _VALUE)
        client.response()


def _catch_up(client: _Client, *, stream: bool) -> None:
    offset = b"-1" if stream else b"0"
    path, following = (_STREAM, _NEXT_OF_STREAM) if stream else (_RECORDS, _NEXT_OF_RECORDS)
    while True:
        response = client.send("GET", f"{path}?offset={offset.decode()}")
        found = following.search(response)
        if found is None:
            raise RuntimeError(repr(response))
        offset = found[1]
        if (b"stream-up-to-date: true" in response) if stream else found[1] == found[2]:
            return


def measure(folder: Path) -> list[Figure]:
    """Measure values of 1 KB, each appended by a request of its own; one connection reads.

    Parameters:
        folder: for the data directory.
    """
    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(dir=folder) as data,
        PidleaseServer(Path(data), settings={"fsync": "never"}) as server,
    ):
        client = _Client(server.http_port)
        client.send("PUT", _STREAM, _BINARY)
        client.send("POST", "/v1/topics", "Content-Type: application/json", content=b'{"name":"t"}')
        megabytes = _VALUES * len(_VALUE) / 1e6
        for name, path, target in (
            ("a stream", _STREAM, STREAM_MB_S_MIN), ("records", _RECORDS, None),
        ):  # fmt: skip
            _fill(client, path)
            rates, cpu_ms = [], []
            for _ in range(5):
                before_s, began = server.process.cpu_s(), time.monotonic()
                _catch_up(client, stream=path == _STREAM)
                rates.append(megabytes / (time.monotonic() - began))
                cpu_ms.append((server.process.cpu_s() - before_s) / megabytes * 1e3)
            figures += [
                Figure(f"HTTP catch-up of {name}", sorted(rates)[2], "MB/s", target, "at least"),
                Figure(f"HTTP catch-up of {name}, processor time", sorted(cpu_ms)[2], "ms a MB"),
            ]
    return figures
