"""Quiet Kafka clients beside one that floods the server, and beside thousands of idle ones."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import threading
import time
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

from pidlease.testing.loopback_ports import LOOPBACK
from tests.benchmarks.scale.figure import Figure
from tests.benchmarks.scale.memory import memory_bytes
from tests.benchmarks.scale.one_topic_server import TOPIC, one_topic_server
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import produced
from tests.kafka_listener.messages import PRODUCE, encode_request
from tests.servers.pidlease import PidleaseServer

P99_TIMES_MAX = 2.0
_QUIET = 50
#: Requests a second of each quiet client.
_PER_SECOND = 10.0
_ROUNDS, _ROUND_SECONDS = 7, 3.0
_IDLE, _ACTIVE = 5_000, 500
_LENGTH_BYTES = 4
#: More than the server handles of one connection at once.
_FLOOD_FRAMES = 256
#: The default of Linux is too small for thousands of new connections at once.
_CONNECTING_AT_ONCE = 50


def _frame(value: bytes, acks: int = -1) -> bytes:
    """A Produce request of one record without a PID, with its length."""
    frame = encode_request(PRODUCE, 9, produced([(TOPIC, 0, batch([value]))], acks), 1)
    return len(frame).to_bytes(_LENGTH_BYTES, "big") + frame


class _Client:
    """A client with one request in flight, and how long its responses took."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frame = _frame(b"quiet" * 20)

    @classmethod
    async def connect(cls, port: int) -> _Client:
        return cls(*await asyncio.open_connection(LOOPBACK, port))

    async def run(self, first_s: float, until_s: float, took_s: list[float]) -> None:
        """Send a request each tenth of a second; late ones are not made up for.

        Parameters:
            first_s: when the first one is due, by the performance counter.
        """
        due_s = first_s
        while due_s < until_s:
            await asyncio.sleep(max(due_s - time.perf_counter(), 0))
            began_s = time.perf_counter()
            self._writer.write(self._frame)
            size = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            await self._reader.readexactly(size)
            took_s.append(time.perf_counter() - began_s)
            due_s = max(due_s + 1 / _PER_SECOND, time.perf_counter())

    def close(self) -> None:
        self._writer.close()


async def _p99_ms(clients: list[_Client]) -> tuple[float, float]:
    """Let clients work for a round, evenly shifted; return p50 and p99 in ms."""
    took_s: list[float] = []
    began_s = time.perf_counter()
    shift_s = 1 / _PER_SECOND / len(clients)
    await asyncio.gather(
        *(
            each.run(began_s + number * shift_s, began_s + _ROUND_SECONDS, took_s)
            for number, each in enumerate(clients)
        )
    )
    percentiles = statistics.quantiles(took_s, n=100)
    return percentiles[49] * 1000, percentiles[98] * 1000


def _flood(port: int, flooding: Event, received: Synchronized[int]) -> None:
    """Send requests as fast as the server reads them; runs in a process of its own.

    Parameters:
        flooding: set while it sends.
        received: counts the bytes of the responses.
    """
    frames = _frame(b"flood" * 20) * _FLOOD_FRAMES
    with socket.create_connection((LOOPBACK, port)) as connection:

        def read() -> None:
            buffer = bytearray(1 << 20)
            while size := connection.recv_into(buffer):
                received.value += size

        threading.Thread(target=read, daemon=True).start()
        while True:
            flooding.wait()
            connection.sendall(frames)


def _measure_flood(server: PidleaseServer) -> list[Figure]:
    context = multiprocessing.get_context("spawn")
    flooding, received = context.Event(), context.Value("q", 0)
    process = context.Process(
        target=_flood, args=(server.kafka_port, flooding, received), daemon=True
    )
    process.start()

    async def run() -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        clients = [await _Client.connect(server.kafka_port) for _ in range(_QUIET)]
        alone, beside = [], []
        await _p99_ms(clients)  # the first requests of a connection are handled differently
        for _ in range(_ROUNDS):
            alone.append(await _p99_ms(clients))
            flooding.set()
            beside.append(await _p99_ms(clients))
            flooding.clear()
            before = -1
            while before != received.value:  # until the flood has drained
                before = received.value
                await asyncio.sleep(0.3)
        for each in clients:
            each.close()
        return alone, beside

    try:
        alone, beside = asyncio.run(run())
    finally:
        process.kill()
        process.join()
    if not received.value:
        raise RuntimeError("nothing was flooded")
    times = [after / before for (_, before), (_, after) in zip(alone, beside, strict=True)]
    return [
        Figure(f"{_QUIET} quiet clients, p50", statistics.median(p50 for p50, _ in alone), "ms"),
        Figure("  p99", statistics.median(p99 for _, p99 in alone), "ms"),
        Figure("  p50 beside a flood", statistics.median(p50 for p50, _ in beside), "ms"),
        Figure("  p99 beside a flood", statistics.median(p99 for _, p99 in beside), "ms"),
        Figure("  p99 beside a flood, against without", statistics.median(times), "times",
               P99_TIMES_MAX),
        Figure("  the least and", min(times), "times"),
        Figure("  the most of the rounds", max(times), "times"),
    ]  # fmt: skip


async def _connect_many(port: int, count: int) -> list[_Client]:
    clients: list[_Client] = []
    while len(clients) < count:
        some = min(_CONNECTING_AT_ONCE, count - len(clients))
        clients += await asyncio.gather(*(_Client.connect(port) for _ in range(some)))
    return clients


def _measure_idle(server: PidleaseServer) -> list[Figure]:
    async def run() -> list[Figure]:
        empty = memory_bytes("Rss", server.pid)
        silent = await _connect_many(server.kafka_port, _IDLE)
        idle = memory_bytes("Rss", server.pid)
        active = await _connect_many(server.kafka_port, _ACTIVE)
        await _p99_ms(active)
        p50_ms, p99_ms = await _p99_ms(active)
        busy = memory_bytes("Rss", server.pid)
        for each in (*silent, *active):
            each.close()
        return [
            Figure(f"memory of {_IDLE:,} idle connections", (idle - empty) / 1e6, "MB"),
            Figure(f"  and of {_ACTIVE} active ones", (busy - idle) / 1e6, "MB"),
            Figure(f"  p50 of the active ones, {_ACTIVE * _PER_SECOND:,.0f} requests a second",
                   p50_ms, "ms"),
            Figure("  p99", p99_ms, "ms"),
        ]  # fmt: skip

    return asyncio.run(run())


def measure(folder: Path) -> list[Figure]:
    """Measure on the embedded log, with `fsync=never`: the server's own part.

    Parameters:
        folder: for the data directories.
    """
    figures: list[Figure] = []
    for each in (_measure_flood, _measure_idle):
        with one_topic_server(folder, "never") as server:
            figures += each(server)
    return figures
