"""Leases over HTTP, with a real ZooKeeper behind them: many at once, and one by one."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pidlease.http_api.lease_messages import LEASES_MAX
from pidlease.testing.loopback_ports import LOOPBACK
from tests.benchmarks.scale.figure import Figure
from tests.servers.pidlease import PidleaseServer
from tests.servers.zookeeper import ZooKeeperServer

BATCH_MIN = 20_000.0
SINGLE_MIN = 1_000.0
NAMED_MIN, NAMED_P99_MS_MAX = 2_000.0, 25.0
_SECONDS = 5.0
#: Clients at once.
_BATCHING = 2
_SINGLE = 16
_TOPIC = "leases"


class HttpClient:
    """One connection that is kept; what comes back is looked at as little as can be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> HttpClient:
        """Connect to this machine."""
        return cls(*await asyncio.open_connection(LOOPBACK, port, limit=16 << 20))

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of the answer, which must be 200."""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"{path} was answered {answer!r}")
        length = next(
            int(line.partition(b":")[2])
            for line in answer.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        return await self._reader.readexactly(length)

    def close(self) -> None:
        """End the connection."""
        self._writer.close()


async def lease_all(port: int, topic: str, count: int) -> list[dict[str, Any]]:
    """Lease so many PIDs over HTTP, as many as possible with each request."""
    client = await HttpClient.connect(port)
    body = json.dumps({"leases": [{"topic": topic, "partition": 0}] * LEASES_MAX}).encode()
    leases: list[dict[str, Any]] = []
    while len(leases) < count:
        response = json.loads(await client.post("/v1/leases/batch", body))
        leases += [each for each in response["leases"] if not each.get("error")]
    client.close()
    return leases[:count]


async def _post_all(
    port: int, path: str, bodies: Callable[[int], bytes], clients: int
) -> tuple[float, list[float]]:
    """Post for some seconds; how many a second, and how long each took (s)."""
    took: list[float] = []
    end = time.perf_counter() + _SECONDS

    async def one(number: int) -> None:
        client = await HttpClient.connect(port)
        while (began := time.perf_counter()) < end:
            answer = await client.post(path, bodies(number))
            took.append(time.perf_counter() - began)
            if b'"status":503' in answer:
                raise RuntimeError("no PID was to be had")
        client.close()

    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(clients)))
    return len(took) / (time.perf_counter() - began), took


def measure(folder: Path) -> list[Figure]:
    """Leases a second.

    Parameters:
        folder: for the data directories.
    """
    lease = {"topic": _TOPIC, "partition": 0}
    with (
        tempfile.TemporaryDirectory(dir=folder) as data,
        ZooKeeperServer(Path(data) / "zookeeper", tick_ms=2000) as zookeeper,
        PidleaseServer(
            Path(data) / "pidlease",
            settings={"zookeeper": zookeeper.hosts + "/bench", "ring_capacity": "10000000"},
        ) as server,
    ):
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic(_TOPIC, 1)])[_TOPIC].result(30)
        batch = json.dumps({"leases": [lease] * LEASES_MAX}).encode()
        port = server.http_port
        batches, _ = asyncio.run(_post_all(port, "/v1/leases/batch", lambda _: batch, _BATCHING))
        single = json.dumps(lease).encode()
        singles, took = asyncio.run(_post_all(port, "/v1/leases", lambda _: single, _SINGLE))
        named = [
            json.dumps({**lease, "name": f"producer {number}"}).encode()
            for number in range(_SINGLE)
        ]
        names, named_took = asyncio.run(
            _post_all(port, "/v1/leases", lambda number: named[number], _SINGLE)
        )
    percentiles = statistics.quantiles(took, n=100)
    named_percentiles = statistics.quantiles(named_took, n=100)
    return [
        Figure("leases, 1,000 at once", batches * LEASES_MAX, "a second", BATCH_MIN, "at least"),
        Figure(
            f"leases, one by one, {_SINGLE} clients", singles, "a second", SINGLE_MIN, "at least"
        ),
        Figure("  a lease takes, p50", percentiles[49] * 1000, "ms"),
        Figure("  a lease takes, p99", percentiles[98] * 1000, "ms"),
        Figure(
            f"leases by name, {_SINGLE} clients of a name each", names, "a second", NAMED_MIN,
            "at least",
        ),
        Figure("  a lease by name takes, p50", named_percentiles[49] * 1000, "ms"),
        Figure("  a lease by name takes, p99", named_percentiles[98] * 1000, "ms",
               NAMED_P99_MS_MAX),
    ]  # fmt: skip
