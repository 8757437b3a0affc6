"""Size: many partitions, many connections, many short-lived clients, many producers."""

import asyncio
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pidlease.core.packed import Packed
from pidlease.testing.loopback_ports import LOOPBACK
from tests.benchmarks.scale.full_server import fill, make_topic, start
from tests.crash.seeds import SOAK, new_random
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import INIT, WireClient
from tests.kafka_listener.messages import INIT_PRODUCER_ID
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

TIMEOUT_S = WAIT_S


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PidleaseServer]:
    with PidleaseServer(tmp_path, settings={"fsync": "never", "log_level": "warning"}) as running:
        yield running


def files_open(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.timeout(900)
def test_ten_thousand_partitions(tmp_path: Path) -> None:
    """More than could each hold their files open; written to all over, and known after a crash."""
    random = new_random("ten thousand partitions")
    names = [f"t{number}" for number in range(100)]
    quiet = {"fsync": "never", "log_level": "warning", "connections_max": "100"}
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with PidleaseServer(tmp_path, settings=quiet, start_timeout_s=TIMEOUT_S) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        made = admin.create_topics(
            [NewTopic(name, 100) for name in names], request_timeout=TIMEOUT_S
        )
        for future in made.values():
            future.result(TIMEOUT_S)
        failed: list[str] = []
        producer = Producer(
            {"bootstrap.servers": server.bootstrap, "enable.idempotence": True, "linger.ms": 50}
        )
        places = [(name, number) for name in names for number in range(100)]
        chosen = random.sample(places, 4000)
        for turn in range(2):
            for name, number in chosen:
                producer.produce(
                    name,
                    b"%d" % turn,
                    partition=number,
                    on_delivery=lambda error, _: failed.append(str(error)) if error else None,
                )
                producer.poll(0)
            assert producer.flush(TIMEOUT_S) == 0
        assert not failed
        assert files_open(server.pid) < min(limit, 4 * 5000 + 500)
        server.kill9()
        server.start()
        assert server.metric("pidlease_partitions") == 10_000
        assert server.metric("pidlease_partitions_stopped") == 0
        assert server.metric("pidlease_producers") == 4000
        listed = AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(timeout=TIMEOUT_S)
        assert sum(len(listed.topics[name].partitions) for name in names) == 10_000
        consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "size"})
        for name, number in random.sample(chosen, 50):
            ends = consumer.get_watermark_offsets(TopicPartition(name, number), TIMEOUT_S)
            assert ends == (0, 2)
        consumer.close()


async def _one_client(server: PidleaseServer, partition: int) -> tuple[WireClient, int]:
    """A client that leases a PID and writes one record under it."""
    client = await WireClient.connect(LOOPBACK, server.kafka_port)
    pid = await _lease(client)
    data = batch([b"x"], pid=pid, epoch=0, first=0)
    answer = await client.produce("t", data, partition=partition)
    assert answer.code == 0, answer
    return client, pid


async def _lease(client: WireClient) -> int:
    """A PID; retried as every client does while there is none (14)."""
    while True:
        answer = await client.call(INIT_PRODUCER_ID, 4, **INIT)
        if answer.error_code == 0:
            return int(answer.producer_id)
        assert answer.error_code == 14, answer
        await asyncio.sleep(0.05)


async def _topic(server: PidleaseServer, partitions: int) -> None:
    async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
        await client.create("t", partitions)


@pytest.mark.timeout(900)
async def test_two_thousand_connections(server: PidleaseServer) -> None:
    await _topic(server, 10)
    clients: list[WireClient] = []
    pids: set[int] = set()
    try:
        for start_at in range(0, 2000, 200):
            made = await asyncio.gather(
                *(_one_client(server, number % 10) for number in range(start_at, start_at + 200))
            )
            clients += [client for client, _ in made]
            pids |= {pid for _, pid in made}
        assert len(pids) == 2000
        metrics = await asyncio.to_thread(server.metrics)
        assert metrics["pidlease_kafka_connections"] == 2000
        assert metrics["pidlease_producers"] == 2000
        again = await asyncio.gather(*map(_lease, clients))
        assert len(pids | set(again)) == 4000, "all are still served"
    finally:
        for client in clients:
            client.writer.transport.abort()


@pytest.mark.timeout(900)
async def test_ten_thousand_short_lived_clients_a_minute_and_a_small_ring(tmp_path: Path) -> None:
    """Who is turned away comes again; nobody's slot is taken; nobody's PID is given twice."""
    settings = {
        "fsync": "never",
        "log_level": "warning",
        "ring_capacity": "250",
        "lease_seconds": "1",
    }
    seconds, rate = (60, 170) if SOAK else (8, 170)
    pids: list[int] = []
    with PidleaseServer(tmp_path, settings=settings) as server:
        await _topic(server, 4)

        async def live(number: int) -> None:
            client, pid = await _one_client(server, number % 4)
            pids.append(pid)
            client.writer.transport.abort()

        lives: list[asyncio.Task[None]] = []
        used: list[float] = []
        for second in range(seconds):
            lives += [asyncio.create_task(live(second * rate + n)) for n in range(rate)]
            await asyncio.sleep(1)
            used.append(await asyncio.to_thread(server.metric, "pidlease_lease_ring_used"))
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*lives)
        assert len(pids) == len(set(pids)) == seconds * rate
        assert max(used) <= 250
        assert server.metric("pidlease_producers") <= 250, "what has ended is forgotten"
        assert server.metric("pidlease_leases_expired_total") >= seconds * rate - 250
        refused = server.metric("pidlease_leases_refused_total", reason="ring_full")
        assert refused, "the ring was never full: this test shows nothing"


@pytest.mark.timeout(900)
async def test_many_producers_come_back_from_a_snapshot(tmp_path: Path) -> None:
    """A million by the soak, and as many as take a second otherwise."""
    entries = 1_000_000 if SOAK else 100_000
    engine, pool = await start(tmp_path / "data")
    await make_topic(engine, 1000 if SOAK else 100)
    fill(engine, entries // 10, 10)
    before: dict[str, dict[int, Packed]] = {
        str(partition.name): dict(partition.producers) for partition in engine.partitions()
    }
    assert sum(map(len, before.values())) == entries
    await engine.stop()
    pool.close()
    again, pool = await start(tmp_path / "data")
    assert {str(p.name): p.producers for p in again.partitions()} == before
    assert len(again.leases) == entries // 10
    await again.stop()
    pool.close()
