"""What a server in front of Kafka takes of memory, with many connections and partitions."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from aiokafka.record.memory_records import MemoryRecords
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pidlease.testing.loopback_ports import LOOPBACK
from tests.benchmarks.scale.figure import Figure
from tests.benchmarks.scale.memory import memory_bytes
from tests.crash.raw import lease_on
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient, answers_of, fetched, fetched_of, produced
from tests.kafka_listener.messages import FETCH, PRODUCE
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer

CONNECTIONS = 200
PARTITIONS = 1000
_PARTITIONS_EACH = 10
_BATCHES = 5  # of each producer on each of its partitions
_RECORDS = 16  # of 1 KB: what a producer gathers by default, in 16 KB batches
_WRITTEN = CONNECTIONS * _PARTITIONS_EACH * _BATCHES * _RECORDS // PARTITIONS  # on each partition
#: Kafka is not ready, or did not answer in time: a producer sends the same again.
_RETRIABLE = (3, 5, 6, 7, 19)
_RETRY_S = 0.1
_HEAP = "1g"
_TOPIC = "wide"
_TIMEOUT_S = 300


def partitions_of(number: int) -> list[int]:
    """Where a connection writes and reads: together they cover all partitions, evenly."""
    first = number * _PARTITIONS_EACH
    return [(first + each) % PARTITIONS for each in range(_PARTITIONS_EACH)]


def _make_topic(server: PidleaseServer) -> float:
    """How long it takes (s) until the server has all partitions, which may be after its answer."""
    began_s = time.monotonic()
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(_TOPIC, PARTITIONS)])[_TOPIC].result(_TIMEOUT_S)
    while len(admin.list_topics(_TOPIC, _TIMEOUT_S).topics[_TOPIC].partitions) < PARTITIONS:
        if time.monotonic() - began_s > _TIMEOUT_S:
            raise RuntimeError(f"the topic is not there after {_TIMEOUT_S} s")
        time.sleep(0.1)
    return time.monotonic() - began_s


async def _produce(client: WireClient, number: int, values: list[bytes]) -> None:
    """Under a lease of its own, as any idempotent producer of Kafka's."""
    pid = await lease_on(client)
    for sequence in range(0, _BATCHES * _RECORDS, _RECORDS):
        data = batch(values, pid, 0, sequence, timestamp=int(time.time() * 1000))
        left = partitions_of(number)
        while left:
            parts = [(_TOPIC, partition, data) for partition in left]
            answers = answers_of(await client.call(PRODUCE, 9, **produced(parts)))
            codes = {each: answer.code for each, answer in zip(left, answers, strict=True)}
            if not set(codes.values()) <= {0, *_RETRIABLE}:
                raise RuntimeError(f"batches are refused, by partition: {codes}")
            if left := [each for each, code in codes.items() if code]:
                await asyncio.sleep(_RETRY_S)


def _end_of(data: bytes, offset: int) -> int:
    """The offset behind the last whole batch, of which the first must stand at `offset`."""
    batches = MemoryRecords(data)
    while (each := batches.next_batch()) is not None:
        if each.base_offset != offset:
            raise RuntimeError(f"a batch stands at {each.base_offset}, and not at {offset}")
        offset = each.next_offset
    return offset


async def _consume(client: WireClient, number: int) -> None:
    """All that stands on its partitions, by as many requests as it takes."""
    offsets = dict.fromkeys(partitions_of(number), 0)
    while left := [each for each in offsets.items() if each[1] < _WRITTEN]:
        parts = [(_TOPIC, partition, offset) for partition, offset in left]
        found = fetched_of(await client.call(FETCH, 11, **fetched(parts, wait_ms=500)))
        for (partition, offset), each in zip(left, found, strict=True):
            if each.code:
                raise RuntimeError(f"partition {partition} is not read: error {each.code}")
            offsets[partition] = _end_of(each.data, offset)


@asynccontextmanager
async def _connected(server: PidleaseServer) -> AsyncIterator[list[WireClient]]:
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(await WireClient.connect(LOOPBACK, server.kafka_port))
            for _ in range(CONNECTIONS)
        ]
        for client in clients:
            client.timeout_s = _TIMEOUT_S  # all begin at once
            await client.metadata(_TOPIC)
        yield clients


async def _worked(server: PidleaseServer) -> tuple[int, int, int]:
    """Memory with all connected, when all have produced, and when all have consumed as well."""
    values = [os.urandom(1000) for _ in range(_RECORDS)]
    async with _connected(server) as clients, asyncio.timeout(_TIMEOUT_S):
        connected = memory_bytes("Rss", server.pid)
        await asyncio.gather(*(_produce(each, n, values) for n, each in enumerate(clients)))
        produced = memory_bytes("Rss", server.pid)
        await asyncio.gather(*(_consume(each, n) for n, each in enumerate(clients)))
        return connected, produced, memory_bytes("Rss", server.pid)


def _most_bytes(pid: int) -> int:
    """Resident memory of a process when it was at its largest."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/status has no VmHWM")


def measure(folder: Path) -> list[Figure]:
    """Memory of one server, as it stands idle, and as topic, connections and records come.

    Parameters:
        folder: for the data directories.
    """
    with (
        tempfile.TemporaryDirectory(dir=folder) as data,
        KafkaServer(Path(data) / "kafka", heap=_HEAP) as kafka,
        PidleaseServer(
            Path(data) / "server",
            settings={"log": "kafka", "upstream": kafka.bootstrap, "coordination": "auto"},
        ) as server,
    ):
        idle = memory_bytes("Rss", server.pid)
        made_s = _make_topic(server)
        partitions = memory_bytes("Rss", server.pid)
        connected, written, consumed = asyncio.run(_worked(server))
        most = _most_bytes(server.pid)
    steps = {
        f"  with {PARTITIONS:,} partitions, more than idle": partitions - idle,
        f"  and {CONNECTIONS} connections, more than idle": connected - idle,
        f"  each has produced to {_PARTITIONS_EACH} partitions, more than idle": written - idle,
        "  and consumed what stands there, more than idle": consumed - idle,
        "  at its largest, more than idle": most - idle,
    }
    return [
        Figure("resident memory in front of Kafka, idle", idle / 1e6, "MB"),
        *(Figure(name, grown / 1e6, "MB") for name, grown in steps.items()),
        Figure("resident memory in front of Kafka, with all that", consumed / 1e6, "MB"),
        Figure(f"in front of Kafka, a topic of {PARTITIONS:,} partitions is made", made_s, "s"),
    ]
