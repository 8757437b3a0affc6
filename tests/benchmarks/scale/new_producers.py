"""Many producers that lease a PID and append one record each, every append on the disk first."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pidlease.client import LeasedProducer
from pidlease.kafka.records.identity_header import Identity
from pidlease.testing.loopback_ports import LOOPBACK
from tests.benchmarks.scale.figure import Figure
from tests.benchmarks.scale.leases import HttpClient, lease_all
from tests.benchmarks.scale.one_topic_server import TOPIC, one_topic_server
from tests.kafka_listener.batches import identified
from tests.kafka_listener.client import produced
from tests.kafka_listener.messages import PRODUCE, encode_request
from tests.servers.pidlease import PidleaseServer

#: The times are scaled to so many producers.
PRODUCERS = 200_000
SECONDS_MAX = 30.0
_VALUE = b"v" * 100
#: In a Produce response of version 9 for one partition: the error code and the offset.
_CODE_AT = 4 + 1 + 1 + 1 + len(TOPIC) + 1 + 4
_LENGTH_BYTES = 4

_FSYNCS = "pidlease_fsync_seconds_count"

_Append = Callable[[Sequence[bytes]], Awaitable[list[int]]]


def _frame(lease: dict[str, Any]) -> bytes:
    """A Produce request of one record under a lease, with its length."""
    identity = Identity(lease["pid"], "", lease["generation"], 0, 0)
    parts = [(TOPIC, 0, identified([_VALUE], identity))]
    frame = encode_request(PRODUCE, 9, produced(parts), 1)
    return len(frame).to_bytes(_LENGTH_BYTES, "big") + frame


def _body(lease: dict[str, Any]) -> bytes:
    """The same as a request over HTTP."""
    return json.dumps(
        {
            "records": [{"value": _VALUE.decode()}],
            "pid": lease["pid"],
            "generation": lease["generation"],
            "first_sequence": 0,
        }
    ).encode()


async def _append_by_kafka(port: int, in_flight: int, frames: Sequence[bytes]) -> list[int]:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    offsets = []
    writer.writelines(frames[:in_flight])
    for number in range(len(frames)):
        size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        response = await reader.readexactly(size)
        if response[_CODE_AT : _CODE_AT + 2] != b"\0\0":
            raise RuntimeError(f"not appended: {response!r}")
        offsets.append(int.from_bytes(response[_CODE_AT + 2 : _CODE_AT + 10], "big"))
        writer.writelines(frames[number + in_flight : number + in_flight + 1])
    writer.close()
    return offsets


async def _append_by_http(port: int, bodies: Sequence[bytes]) -> list[int]:
    client = await HttpClient.connect(port)
    path = f"/v1/topics/{TOPIC}/partitions/0/records"
    offsets = [json.loads(await client.post(path, body))["offset"] for body in bodies]
    client.close()
    return offsets


async def _append_all(requests: Sequence[bytes], append: _Append, connections: int) -> float:
    """Append all by some connections at once; return the seconds, up to the last response."""
    shares = [requests[number::connections] for number in range(connections)]
    began = time.perf_counter()
    found = await asyncio.gather(*map(append, shares))
    seconds = time.perf_counter() - began
    if sorted(offset for offsets in found for offset in offsets) != list(range(len(requests))):
        raise RuntimeError("not every record was appended once")
    return seconds


class _Way(NamedTuple):
    """A way to append.

    Attributes:
        producers: how many append in a run.
        in_flight: requests to the Kafka listener that a connection has in flight; 0: HTTP.
        target: the most seconds for `PRODUCERS`.
    """

    name: str
    producers: int
    connections: int
    in_flight: int
    target: float | None = None


_WAYS = (
    _Way("Kafka listener, one connection that waits for each response", 5_000, 1, 1),
    _Way("Kafka listener, 16 connections that wait", 20_000, 16, 1, SECONDS_MAX),
    _Way("Kafka listener, 16 connections, 8 in flight each", 40_000, 16, 8, SECONDS_MAX),
    _Way("HTTP, 16 connections", 10_000, 16, 0),
)
#: Producers of the Python client: how many in a run, and how many at once.
_CLIENTS, _CLIENTS_AT_ONCE = 300, 4


def _append_by(way: _Way, folder: Path) -> list[Figure]:
    with one_topic_server(folder, "batch") as server:
        began = time.perf_counter()
        leases = asyncio.run(lease_all(server.http_port, TOPIC, way.producers))
        leased_s = time.perf_counter() - began
        requests = list(map(_frame if way.in_flight else _body, leases))
        append: _Append = partial(_append_by_http, server.http_port)
        if way.in_flight:
            append = partial(_append_by_kafka, server.kafka_port, way.in_flight)
        fsyncs, cpu_s = server.metric(_FSYNCS), server.process.cpu_s()
        seconds = asyncio.run(_append_all(requests, append, way.connections))
        fsyncs, cpu_s = server.metric(_FSYNCS) - fsyncs, server.process.cpu_s() - cpu_s
    scale = PRODUCERS / way.producers
    return [
        Figure(f"{PRODUCERS:,} new producers, {way.name}", seconds * scale, "s", way.target),
        Figure("  their leases, 1,000 at once", leased_s * scale, "s"),
        Figure("  an append's processor time", cpu_s / way.producers * 1e6, "us"),
        Figure("  appends that share an fsync", way.producers / max(fsyncs, 1), "appends"),
    ]


async def _produce_all(server: PidleaseServer) -> None:
    """A client for each record: started, one record sent, stopped."""
    numbers = iter(range(_CLIENTS))

    async def work() -> None:
        for _ in numbers:
            producer = LeasedProducer(
                bootstrap_servers=server.bootstrap, leases=server.http_url, linger_ms=0
            )
            await producer.start()
            await producer.send_and_wait(TOPIC, _VALUE, partition=0)
            await producer.stop()

    await asyncio.gather(*(work() for _ in range(_CLIENTS_AT_ONCE)))


def _by_clients(folder: Path) -> list[Figure]:
    with one_topic_server(folder, "batch") as server:
        cpu_s, own_cpu_s = server.process.cpu_s(), time.process_time()
        began = time.perf_counter()
        asyncio.run(_produce_all(server))
        seconds = time.perf_counter() - began
        cpu_s, own_cpu_s = server.process.cpu_s() - cpu_s, time.process_time() - own_cpu_s
    return [
        Figure("a LeasedProducer for each record", _CLIENTS / seconds, "a second"),
        Figure("  the client's processor time", own_cpu_s / _CLIENTS * 1e3, "ms"),
        Figure("  the server's processor time", cpu_s / _CLIENTS * 1e3, "ms"),
    ]


def measure(folder: Path) -> list[Figure]:
    """Measure a part of the producers; the times are scaled.

    Parameters:
        folder: for the data directories.
    """
    figures = [figure for way in _WAYS for figure in _append_by(way, folder)]
    return figures + _by_clients(folder)
