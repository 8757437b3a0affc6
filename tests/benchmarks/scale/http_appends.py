"""Appends and duplicates over HTTP: requests a second, and the server's processor time for each."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pidlease.testing.loopback_ports import LOOPBACK
from tests.benchmarks.scale.figure import Figure
from tests.servers.pidlease import PidleaseServer

APPEND_US_MAX = 60.0
DUPLICATE_US_MAX = 50.0
_SECONDS = 4.0
_CLIENTS = 16
_VALUE = b"v" * 100
_PATH = "/v1/topics/t/partitions/0/records"
_REQUEST = (
    f"POST {_PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
    f"Content-Length: {len(_VALUE)}\r\nProducer-Id: client-%d\r\nProducer-Epoch: 0\r\n"
    "Producer-Seq: %d\r\n\r\n"
).encode()


async def _send_all(port: int, clients: int, *, duplicates: bool) -> int:
    """Send requests one by one from each client for some seconds; return their number."""
    end = time.monotonic() + _SECONDS
    wanted = b'"duplicate":true' if duplicates else b'"duplicate":false'

    async def one(number: int) -> int:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        numbers: Iterator[int] = itertools.repeat(0) if duplicates else itertools.count()
        sent = 0
        while time.monotonic() < end:
            writer.write(_REQUEST % (number, next(numbers)) + _VALUE)
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readuntil(b"}")
            # The first one of a repeated number is no duplicate.
            if not head.startswith(b"HTTP/1.1 200 ") or (wanted not in body and sent):
                raise RuntimeError(f"{head!r} {body!r}")
            sent += 1
        writer.close()
        return sent

    return sum(await asyncio.gather(*(one(number) for number in range(clients))))


def measure(folder: Path) -> list[Figure]:
    """Measure values of 100 bytes, with `fsync=never`: the server's own part.

    Parameters:
        folder: for the data directories.
    """
    figures: list[Figure] = []
    for what, duplicates, target in (
        ("append", False, APPEND_US_MAX),
        ("duplicate", True, DUPLICATE_US_MAX),
    ):
        for clients in (1, _CLIENTS):
            with (
                tempfile.TemporaryDirectory(dir=folder) as data,
                PidleaseServer(Path(data), settings={"fsync": "never"}) as server,
            ):
                before_s = server.process.cpu_s()
                sent = asyncio.run(_send_all(server.http_port, clients, duplicates=duplicates))
                cpu_us = (server.process.cpu_s() - before_s) / sent * 1e6
            name = f"HTTP {what}, {clients} connection{'s' if clients > 1 else ''}"
            figures += [
                Figure(f"{name}, processor time", cpu_us, "us", target),
                Figure(f"{name}, requests", sent / _SECONDS, "a second"),
            ]
    return figures
