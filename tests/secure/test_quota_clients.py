"""Real clients under quotas: they go on, slowly, and lose and repeat nothing."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as Part

from pidlease.client import BlockingProducer
from tests.secure.secured_process import HANG_S, SECRETS, Running, started
from tests.servers.authority import needs_openssl
from tests.servers.pidlease import PidleaseServer

pytestmark = needs_openssl
_COUNT = 60
_SIZE = 10_000
#: 200 KB/s: 20 KB at once, and 600 KB in about 3 s.
_RATE = 200_000
_EARLIEST_S = (_COUNT * _SIZE - 3 * 20_000) / _RATE - 0.5


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    settings = {"quota_window_num": "2", "quota_window_size_seconds": "0.1",
                "connections_max_reauth_ms": "0"}  # fmt: skip
    with started(tmp_path / "server", "t", settings=settings) as server:
        path = server.data / "security" / "quotas"
        path.write_text(
            f'{{"user": "alice", "producer_byte_rate": {_RATE}, "consumer_byte_rate": {_RATE}}}\n'
        )
        asyncio.run(_until_loaded(server))
        yield server


async def _until_loaded(server: Running) -> None:
    async with asyncio.timeout(HANG_S):
        while "quotas reloaded" not in server.server.log_text():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


def _values() -> list[bytes]:
    return [b"%d:" % number + b"x" * _SIZE for number in range(_COUNT)]


def test_librdkafka_and_aiokafka(running: Running) -> None:
    began = time.monotonic()
    # Small batches: a large one takes longer than librdkafka waits for the next response.
    settings = {"enable.idempotence": True, "batch.size": 30_000, "linger.ms": 5}
    producer = Producer(running.librdkafka("alice", "SCRAM-SHA-512", **settings))
    for value in _values():
        producer.produce("t", value)
    assert producer.flush(HANG_S) == 0
    assert time.monotonic() - began >= _EARLIEST_S

    began = time.monotonic()
    consumer = Consumer(running.librdkafka("alice", "SCRAM-SHA-512", **{"group.id": "g"}))
    consumer.assign([Part("t", 0, OFFSET_BEGINNING)])
    found: list[bytes] = []
    while len(found) < _COUNT and time.monotonic() < began + HANG_S:
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None
            found.append(message.value() or b"")
    consumer.close()
    assert found == _values()
    assert time.monotonic() - began >= _EARLIEST_S

    assert asyncio.run(_read(running)) == _values()
    with running.http("root") as root:
        text = root.get("/metrics").text
    for quota in ("producer_byte_rate", "consumer_byte_rate"):
        assert f'throttles_total{{listener="kafka",quota="{quota}"}}' in text
    assert "Traceback" not in running.server.log_text()


async def _read(running: Running) -> list[bytes]:
    consumer = AIOKafkaConsumer(**running.aiokafka("alice", "SCRAM-SHA-512"))
    await consumer.start()
    try:
        consumer.assign([TopicPartition("t", 0)])
        await consumer.seek_to_beginning()
        found: list[bytes] = []
        async with asyncio.timeout(HANG_S):
            while len(found) < _COUNT:
                message = await consumer.getone()
                found.append(message.value or b"")
        return found
    finally:
        await consumer.stop()


def test_our_own_producer(running: Running) -> None:
    """It leases by HTTP, and writes by Kafka's protocol."""
    authority = str(running.authority.root.certificate)
    began = time.monotonic()
    with BlockingProducer(
        bootstrap_servers=running.server.bootstrap,
        leases=f"https://{running.server.http_address}", name="alice-1",
        security_protocol="SASL_SSL", ssl_cafile=authority, sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="alice", sasl_plain_password=SECRETS["alice"],
    ) as producer:  # fmt: skip
        for value in _values():
            producer.send("t", value)
        producer.flush()
    assert time.monotonic() - began >= _EARLIEST_S
    with running.http("root") as root:
        found = root.get("/v1/topics/t/partitions").json()["partitions"]
    assert found[0]["log_end"] == _COUNT


def test_a_server_without_names_says_that_no_quota_counts(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "security"
    folder.mkdir(parents=True)
    (folder / "quotas").write_text('{"user": null, "request_rate": 1}\n')
    with PidleaseServer(tmp_path, data_dir=tmp_path / "data") as server:
        assert "no quota is in force" in server.log_text()
        for _ in range(20):
            assert server.get("/v1/topics")[0] == 200
