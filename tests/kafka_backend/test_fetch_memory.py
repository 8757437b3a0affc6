"""Clients that ask for far more than they read cost no more memory than there is for them."""

import asyncio
import os
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kafka_backend.test_clients import new_topic
from tests.kafka_listener.client import WireClient, fetched
from tests.kafka_listener.messages import FETCH
from tests.kafka_listener.test_load import _deaf
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [needs_kafka, pytest.mark.kafka]

_MIB = 1 << 20
_RECORDS, _RECORD_BYTES = 32, 500_000


async def test_who_reads_nothing_gets_no_more(kafka: KafkaServer, tmp_path: Path) -> None:
    """Once all that was asked for came from Kafka, and waited in the server."""
    with in_front_of(kafka, tmp_path) as server:
        server.start()
        topic = new_topic(server, 1)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for _ in range(_RECORDS):
            producer.produce(topic, os.urandom(_RECORD_BYTES))
        assert producer.flush(WAIT_S) == 0
        async with await WireClient.connect("127.0.0.1", server.kafka_port) as reader:
            await _read_all(reader, topic)
            before = server.process.resident_bytes()
            greedy = [await _deaf(server.kafka_port) for _ in range(2)]
            for each in greedy:
                for _ in range(120):
                    each.send(FETCH, 11, **fetched([(topic, 0, 0)], partition_max_bytes=16 * _MIB))
                await each.writer.drain()
            # In that time the others would have got all of it: 3.8 GB.
            highest = 0
            for _ in range(12):
                await _read_all(reader, topic)
                highest = max(highest, server.process.resident_bytes())
        for each in greedy:
            await each.__aexit__()
        grown = (highest - before) // _MIB
        print(f"grown by {grown} MiB")
        assert grown < 200
        assert server.stop() == 0


async def _read_all(client: WireClient, topic: str) -> None:
    """Records of others wait for memory at times: then there are none, and it is asked again."""
    size, offset = 0, 0
    async with asyncio.timeout(WAIT_S):
        while size < _RECORDS * _RECORD_BYTES:
            found = await client.fetch(topic, offset, wait_ms=100, partition_max_bytes=16 * _MIB)
            size += len(found.data)
            offset += len(found.data) // _RECORD_BYTES
