"""Slow disks, little memory and slow clients: the server pushes back, and serves everybody else."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from pidlease.core.log_config import FsyncPolicy
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.kafka import client_connection as connection_module
from proxy.kafka import kafka_listener as door_module
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient, fetched
from tests.kafka_listener.harness import Wanted, serving
from tests.kafka_listener.messages import API_VERSIONS, CREATE_TOPICS, FETCH

_MIB = 1 << 20
#: Longer than this nothing takes, on however busy a machine.
_HANG_S = 60


async def _settled(holds: Callable[[], bool], within_s: float = _HANG_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it does not settle"
        await asyncio.sleep(0.01)


async def test_a_slow_disk_pushes_back_and_other_connections_are_answered(tmp_path: Path) -> None:
    faults = "slow=0.05 before fsync *.log 1"
    wanted = Wanted(fsync=FsyncPolicy.BATCH, faults=faults, memory_bytes_max=4 * _MIB)
    async with serving(tmp_path, wanted) as server:
        async with await server.connect() as client, await server.connect() as other:
            await client.create("t")
            big = batch([bytes(500_000)])
            for _ in range(30):
                client.send_produce("t", big)
            slowest, highest = 0.0, 0
            for _ in range(20):
                started = time.monotonic()
                await other.metadata("t")
                await other.call(API_VERSIONS, 3)
                slowest = max(slowest, time.monotonic() - started)
                highest = max(highest, server.door.budget.used)
                await asyncio.sleep(0.005)
            answers = [await client.receive_produce() for _ in range(30)]
            assert [answer.offset for answer in answers] == list(range(30))
            assert slowest < 0.5
            assert _MIB < highest < 4 * _MIB + 600_000
        await _settled(lambda: server.door.budget.used == 0)


async def test_little_memory_and_many_clients_get_everything_through(tmp_path: Path) -> None:
    wanted = Wanted(fsync=FsyncPolicy.BATCH, memory_bytes_max=_MIB)
    async with serving(tmp_path, wanted) as server:
        clients = [await server.connect() for _ in range(12)]
        await clients[0].create("t", 12)
        highest = 0

        async def run(client: WireClient, partition: int) -> None:
            nonlocal highest
            pid = await client.lease()
            for number in range(6):
                size = 700_000 if number % 2 else 20_000
                data = batch([bytes(size)], pid, 0, number)
                client.send_produce("t", data, partition=partition)
            for number in range(6):
                answer = await client.receive_produce()
                assert (answer.code, answer.offset) == (0, number)
                highest = max(highest, server.door.budget.used)

        async with asyncio.timeout(_HANG_S):
            await asyncio.gather(*(run(each, n) for n, each in enumerate(clients)))
        assert highest < 2 * _MIB + 12 * 64_000
        await _settled(lambda: server.door.budget.used == 0)
        for client in clients:
            await client.__aexit__()


async def test_a_request_larger_than_all_memory_gets_through_alone(tmp_path: Path) -> None:
    wanted = Wanted(memory_bytes_max=100_000)
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        for _ in range(3):
            client.send_produce("t", batch([bytes(800_000)]))
        assert [(await client.receive_produce()).offset for _ in range(3)] == [0, 1, 2]


async def test_disconnects_in_the_middle_of_a_fetch_give_their_memory_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, await server.connect() as client:
        await client.create("t", 4)
        for partition in range(4):
            for _ in range(3):
                await client.produce("t", batch([bytes(900_000)]), partition=partition)
        for turn in range(40):
            async with await server.connect() as reader:
                parts = [("t", partition, 0) for partition in range(4)]
                reader.send(FETCH, 11, **fetched(parts, partition_max_bytes=3 * _MIB))
                await reader.writer.drain()
                await asyncio.sleep(0.0005 * (turn % 10))
        await _settled(lambda: len(server.door.connections) == 1)
        await _settled(lambda: server.door.budget.used == 0)


async def test_answers_that_nobody_takes_are_bounded(tmp_path: Path) -> None:
    """A client asks for far more than it reads: what is read for it stays within the limit."""
    wanted = Wanted(memory_bytes_max=8 * _MIB, fetch_bytes_max=2 * _MIB)
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        for _ in range(4):
            await client.produce("t", batch([bytes(900_000)]))
        greedy = await server.connect()
        greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(60):
            greedy.send(FETCH, 11, **fetched([("t", 0, 0)], partition_max_bytes=2 * _MIB))
        await asyncio.sleep(0.5)
        waiting = sum(_unsent(connection) for connection in server.door.connections)
        assert waiting < 12 * _MIB, f"{waiting >> 20} MiB wait in the transports"
        # Others go on.
        async with asyncio.timeout(_HANG_S):
            await client.metadata("t")
            assert (await client.produce("t", batch([bytes(100_000)]))).code == 0
        await greedy.__aexit__()
        await _settled(lambda: server.door.budget.used == 0)


async def test_many_that_take_nothing_are_bounded_together(tmp_path: Path) -> None:
    wanted = Wanted(memory_bytes_max=64 * _MIB)
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        for _ in range(18):
            await client.produce("t", batch([bytes(900_000)]))
        greedy = [await _deaf(server.port) for _ in range(40)]
        for each in greedy:
            for _ in range(3):
                each.send(
                    FETCH, 11, **fetched([("t", 0, 0)], wait_ms=500, partition_max_bytes=16 * _MIB)
                )
        await asyncio.sleep(1.5)
        waiting = sum(_unsent(connection) for connection in server.door.connections)
        print(f"{waiting >> 20} MiB wait in the transports")
        for each in greedy:
            await each.__aexit__()
        assert waiting < 80 * _MIB
        await _settled(lambda: server.door.budget.used == 0)


async def _deaf(port: int) -> WireClient:
    """A client that reads nothing, and whose system takes little for it."""
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    connected.connect((LOOPBACK, port))
    reader, writer = await asyncio.open_connection(sock=connected)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return WireClient(reader, writer)


def _unsent(connection: object) -> int:
    transport = getattr(connection, "_transport", None)
    return 0 if transport is None else int(transport.get_write_buffer_size())


@pytest.mark.parametrize("memory", [100_000, _MIB])
async def test_a_fetch_with_less_memory_than_its_limit(tmp_path: Path, memory: int) -> None:
    async with (
        serving(tmp_path, Wanted(memory_bytes_max=memory)) as server,
        await server.connect() as client,
    ):
        await client.create("t")
        for _ in range(3):
            await client.produce("t", batch([bytes(400_000)]))
        async with asyncio.timeout(_HANG_S):
            for offset in range(3):
                assert (await client.fetch("t", offset, wait_ms=100)).data
        await _settled(lambda: server.door.budget.used == 0)


async def test_a_long_poll_does_not_hold_up_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The stop gives connections no time limit here, and the poll's own is twice the bound.
    monkeypatch.setattr(door_module, "_CLOSE_SECONDS", 10 * _HANG_S)
    async with serving(tmp_path) as server, await server.connect() as client:
        await client.create("t")
        client.send(FETCH, 11, **fetched([("t", 0, 0)], wait_ms=2 * _HANG_S * 1000))
        await client.writer.drain()
        await asyncio.sleep(0.05)
        started = time.monotonic()
        await server.door.close()
        assert time.monotonic() - started < _HANG_S / 2


async def test_idle_and_stalled_connections_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "_SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(connection_module, "STALLED_SECONDS", 0.3)
    async with serving(tmp_path, Wanted(idle_seconds=0.4)) as server:
        idle, stalled, large = [await server.connect() for _ in range(3)]
        stalled.send_bytes(struct.pack(">i", 1000) + b"begun")
        large.send_bytes(struct.pack(">i", 100_000) + b"begun")
        for connection in (idle, stalled, large):
            assert await connection.is_closed(_HANG_S)
        await _settled(lambda: server.door.budget.used == 0)


async def test_a_client_that_reads_slowly_is_not_stalled(tmp_path: Path) -> None:
    """Once it was cut off after 30 s of one large response, and fetched the same again."""
    async with serving(tmp_path) as server, await server.connect() as client:
        await client.create("t")
        for _ in range(24):
            await client.produce("t", batch([bytes(900_000)], first=0, pid=0))
        reading = cast("asyncio.Transport", client.writer.transport)
        reading.pause_reading()
        client.send(FETCH, 11, **fetched([("t", 0, 0)], max_bytes=16 * _MIB,
                                         partition_max_bytes=16 * _MIB))  # fmt: skip
        (connection,) = server.door.connections
        await _settled(lambda: connection._write_paused)
        overdue = connection_module.STALLED_SECONDS + 1
        # The system's own buffers take some of it.
        await _settled(lambda: connection.is_stalled(connection.write_paused_at + overdue))
        began, transport = connection.write_paused_at, connection._transport
        assert transport is not None
        before = transport.get_write_buffer_size()
        while transport.get_write_buffer_size() > before - connection_module._READ_BYTES_LEAST:
            reading.resume_reading()
            await asyncio.sleep(0)
            reading.pause_reading()
        assert not connection.is_stalled(began + overdue)
        assert not connection.is_stalled(began + overdue + connection_module.STALLED_SECONDS)
        assert connection.is_stalled(began + 2 * overdue)


async def test_slow_drops_do_not_keep_a_request_alive_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "_SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(connection_module, "STALLED_SECONDS", 0.3)
    async with serving(tmp_path) as server:
        slow = await server.connect()
        slow.send_bytes(struct.pack(">i", 3000) + b"begun")
        started = time.monotonic()
        with suppress(RuntimeError, ConnectionError):  # it is closed while it is written to
            while not slow.reader.at_eof() and time.monotonic() - started < _HANG_S:
                slow.send_bytes(b".")
                await asyncio.sleep(0.1)
        assert time.monotonic() - started < _HANG_S


async def test_requests_that_only_announce_themselves_do_not_starve_others(tmp_path: Path) -> None:
    wanted = Wanted(memory_bytes_max=4 * _MIB, request_bytes_max=2 * _MIB)
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        slow = [await server.connect() for _ in range(4)]
        for each in slow:
            each.send_bytes(struct.pack(">i", 2 * _MIB) + b"begun")
            await each.writer.drain()
        await asyncio.sleep(0.1)
        try:
            async with asyncio.timeout(_HANG_S):
                for number in range(5):
                    await client.metadata("t")
                    assert (await client.produce("t", batch([bytes(50_000)]))).offset == number
        finally:
            for each in slow:
                await each.__aexit__()


async def test_too_many_connections(tmp_path: Path) -> None:
    async with serving(tmp_path, Wanted(connections_max=5)) as server:
        inside = [await server.connect() for _ in range(5)]
        for each in inside:
            await each.call(API_VERSIONS, 0)
        for _ in range(20):
            outside = await server.connect()
            assert await outside.is_closed()
        assert server.door.counts.refused_connections == 20
        await inside[0].__aexit__()
        await _settled(lambda: len(server.door.connections) == 4)
        async with await server.connect() as again:
            await again.call(API_VERSIONS, 0)


async def test_ten_thousand_topics_in_one_request_do_not_stop_the_clock(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as server,
        await server.connect() as client,
        await server.connect() as other,
    ):
        topics = [
            {"name": f"name-{n}", "num_partitions": 1, "replication_factor": 1}
            for n in range(10_000)
        ]
        client.send(CREATE_TOPICS, 5, topics=topics, validate_only=True)
        await client.writer.drain()
        slowest = 0.0
        for _ in range(10):
            started = time.monotonic()
            await other.call(API_VERSIONS, 0)
            slowest = max(slowest, time.monotonic() - started)
            await asyncio.sleep(0.01)
        assert len((await client.receive()).topics) == 10_000
        assert slowest < 1


async def test_a_full_disk_is_retriable_and_loses_nothing(tmp_path: Path) -> None:
    wanted = Wanted(fsync=FsyncPolicy.BATCH, faults="fail-from before write *.log 4")
    acknowledged = 0
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        pid = await client.lease()
        for number in range(6):
            answer = await client.produce("t", batch([b"%d" % number], pid, 0, number))
            if number < 3:
                assert (answer.code, answer.offset) == (0, number)
                acknowledged += 1
            else:
                assert (answer.code, answer.offset) == (19, -1), answer
        assert (await client.fetch("t")).end == acknowledged
    async with serving(tmp_path) as server, await server.connect() as client:
        for number in range(2, 6):
            answer = await client.produce("t", batch([b"%d" % number], pid, 0, number))
            assert (answer.code, answer.offset) == (0, number)
        assert (await client.fetch("t")).end == 6
