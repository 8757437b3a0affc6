"""Scraping a server that has much to tell."""

import asyncio
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from pidlease.testing.loopback_ports import LOOPBACK
from tests.benchmarks.scale.full_server import fill, make_topic, start
from tests.crash.seeds import SOAK
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until

PRODUCERS, PARTITIONS, CONNECTIONS = 100_000, 100, 2_000
#: What the issue of the metrics asks for.
PAGE_BYTES_MAX, PAGE_SECONDS_MAX, LATE_SECONDS = 1 << 20, 0.25, 0.02
SCRAPES = 30


@pytest.mark.skipif(not SOAK, reason="load, and a bound in seconds: make soak")
@pytest.mark.timeout(900)
async def test_many_producers_and_connections(tmp_path: Path) -> None:
    """A page within its bounds, and a loop that is not held up by it, with clients at work."""
    engine, pool = await start(tmp_path / "data")
    await make_topic(engine, PARTITIONS)
    fill(engine, PRODUCERS, 1)
    await engine.stop()
    pool.close()
    server = PidleaseServer(
        tmp_path / "server", data_dir=tmp_path / "data",
        settings={"fsync": "never", "log_level": "warning"},
    )  # fmt: skip
    with server:
        assert server.metric("pidlease_producers") == PRODUCERS
        connections = [
            await asyncio.open_connection(LOOPBACK, server.kafka_port) for _ in range(CONNECTIONS)
        ]
        until(lambda: server.metric("pidlease_kafka_connections") == CONNECTIONS, "connections")
        await asyncio.to_thread(_scrape_under_load, server)
        for _, writer in connections:
            writer.transport.abort()


def _scrape_under_load(server: PidleaseServer) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    name = "pidlease_event_loop_lag_seconds"
    before = server.metrics()
    seconds, sizes = [], []
    for _ in range(SCRAPES):
        for number in range(500):
            producer.produce("t", b"x" * 100, partition=number % PARTITIONS)
        producer.poll(0)
        began = time.monotonic()
        sizes.append(len(server.get("/metrics")[1]))
        seconds.append(time.monotonic() - began)
        time.sleep(1)
    assert producer.flush(WAIT_S) == 0
    after = server.metrics()
    looks = after[f"{name}_count"] - before[f"{name}_count"]
    bucket = f'{name}_bucket{{le="{LATE_SECONDS}"}}'
    in_time = after[bucket] - before[bucket]
    usual, longest = sorted(seconds)[SCRAPES // 2], max(seconds)
    print(f"pages of {max(sizes):,} bytes, {usual * 1000:.0f} ms, at most {longest * 1000:.0f};"
          f" {in_time / looks:.4f} of {looks:.0f} looks in time")  # fmt: skip
    assert looks > SCRAPES
    assert max(sizes) < PAGE_BYTES_MAX
    assert usual < PAGE_SECONDS_MAX
    assert in_time / looks >= 0.99
