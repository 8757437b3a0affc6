"""What docs/understand/guarantees.md says is not guaranteed, shown so that no one believes more."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PidleaseServer]:
    with PidleaseServer(tmp_path) as server:
        yield server


def stored(server: PidleaseServer, topic: str) -> int:
    """How many records a topic's one partition has."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "nobody"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S)
    finally:
        consumer.close()
    return int(high) - int(low)


def test_what_a_restarted_client_sends_again_is_stored_again(server: PidleaseServer) -> None:
    """It has another PID: to the server these are another producer's records. The application,
    which died without knowing what was stored, is the only one who could know better."""
    for _life in range(2):
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        for n in range(10):
            producer.produce("again", str(n).encode(), partition=0)
        assert producer.flush(WAIT_S) == 0
    assert stored(server, "again") == 20


async def test_a_retry_without_idempotence_is_stored_again(server: PidleaseServer) -> None:
    """Nothing tells a retry from new records where there is no PID."""
    async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
        await client.create("plain")
        data = batch([b"once"])
        first = await client.produce("plain", data)
        second = await client.produce("plain", data)
    assert (first.code, second.code) == (0, 0)
    assert second.offset == first.offset + 1
