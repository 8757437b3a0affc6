"""One Produce of one batch through the proxy into a real Kafka; only the proxy is traced."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient
from tests.servers.kafka import KafkaServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S
from tests.traces.batch_traces import traces_of_batches
from tests.traces.record import RUNS, check
from tests.traces.server import traced

pytestmark = [needs_kafka, pytest.mark.kafka]

#: NOT_LEADER_OR_FOLLOWER: the client looks where the partition is, and sends again.
_NOT_YET = 6


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path / "kafka") as running:
        yield running


async def _accepted(client: WireClient, topic: str, partition: int) -> None:
    """Wait until a batch is: a topic that was just made cannot be read at once."""
    code = _NOT_YET
    async with asyncio.timeout(WAIT_S):
        while code == _NOT_YET:
            answer = await client.produce(topic, batch([b"value"]), partition=partition)
            code = answer.code
    assert code == 0, answer


async def test_produce_in_front_of_kafka(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    await asyncio.to_thread(admin.create_topics([NewTopic(topic, RUNS)])[topic].result, 30)
    settings = {"log": "kafka", "upstream": kafka.bootstrap, "coordination": "files"}
    async with traced(tmp_path / "data", **settings) as server, await server.connect() as client:
        partitions = list(range(RUNS))
        for partition in partitions:
            await _accepted(client, topic, partition)
        # The connections to the leaders are made with the first batches.
        await traces_of_batches(server, client, topic, partitions)
        traces = await traces_of_batches(server, client, topic, partitions)
    check("produce_in_front_of_kafka_first_of_the_producer", traces.first)
    check("produce_in_front_of_kafka_warm", traces.warm)
