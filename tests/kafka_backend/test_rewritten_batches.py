"""Kafka rewrites batches: an honest retry is not reported as one with other bytes.

The server is killed, so it reads from Kafka's log what a retry is compared with.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka.cimpl import NewTopic

from pidlease.kafka.records.record_batch import BatchHeader, read_header
from pidlease.testing.loopback_ports import LOOPBACK
from tests.kafka_backend.new_topics import create_topic
from tests.kafka_backend.test_writer import post
from tests.kafka_listener.batches import batches_of
from tests.kafka_listener.client import WireClient
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import until

pytestmark = [needs_kafka, pytest.mark.kafka]

_DIFFERING: Final = "pidlease_differing_duplicates"
_SETTINGS: Final = {"snapshot_seconds": "3600"}
_KEYS: Final = (b"a", b"b", b"a")


def _keyed(keys: Sequence[bytes], pid: int, first: int, *, codec: int = 0, salt: str = "") -> bytes:
    builder: Any = DefaultRecordBatchBuilder(2, codec, 0, pid, 0, first, 1 << 20)
    for number, key in enumerate(keys):
        value = f"{salt}{first + number} {'x' * 50}".encode()
        assert builder.append(number, 1_700_000_000_000, key, value, [])
    return bytes(builder.build())


async def _stored(kafka: KafkaServer, topic: str) -> list[BatchHeader]:
    host, port = kafka.bootstrap.split(":")
    async with await WireClient.connect(host, int(port)) as client:
        found = await client.fetch(topic)
    return [read_header(each) for each in batches_of(found.data)]


async def _leased(server: PidleaseServer) -> int:
    async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
        return await client.lease()


async def _send(server: PidleaseServer, topic: str, batches: Sequence[bytes]) -> list[int]:
    """Send batches one by one; return their offsets."""
    offsets = []
    async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
        for data in batches:
            answer = await client.produce(topic, data)
            assert answer.code == 0, answer
            offsets.append(answer.offset)
    return offsets


async def _prepared(server: PidleaseServer, topic: str, **config: str) -> int:
    """Create a topic, and have a snapshot of it; return a PID."""
    server.start()
    settings = {name.replace("_", "."): value for name, value in config.items()}
    create_topic(server.bootstrap, NewTopic(topic, 1, config=settings))
    pid = await _leased(server)
    await _send(server, topic, [_keyed((b"first",), pid, 0)])
    assert server.stop() == 0
    server.start()
    return await _leased(server)


def _post(server: PidleaseServer, topic: str) -> dict[str, Any]:
    """Append over HTTP, as soon as the partition's writer is there."""
    answers: list[tuple[int, dict[str, Any]]] = []

    def appended() -> bool:
        answers.append(post(server, topic, b"http", "producer", 0))
        return answers[-1][0] == 200

    until(appended, "an append over HTTP")
    return answers[-1][1]


def _start_anew(server: PidleaseServer) -> None:
    """Kill it, and have it read the log from its last snapshot on."""
    server.kill9()
    server.start()
    assert server.metric(_DIFFERING) == 0


@pytest.mark.parametrize(
    "config",
    [{"compression_type": "zstd"}, {"message_timestamp_type": "LogAppendTime"}],
    ids=["compression", "time"],
)
async def test_a_batch_that_the_broker_rewrote(
    kafka: KafkaServer, tmp_path: Path, config: Mapping[str, str]
) -> None:
    """Clients' own batches, and those under the partition's writer."""
    topic = f"rewritten-{min(config)[0]}"
    with in_front_of(kafka, tmp_path, **_SETTINGS) as server:
        pid = await _prepared(server, topic, **config)
        batches = [_keyed(_KEYS, pid, first, codec=1) for first in (0, 3)]
        offsets = await _send(server, topic, batches)
        appended = await asyncio.to_thread(_post, server, topic)
        sent = [read_header(each) for each in batches]
        stored = (await _stored(kafka, topic))[1 : 1 + len(sent)]
        assert all(one.crc != other.crc for one, other in zip(sent, stored, strict=True))
        _start_anew(server)
        assert await _send(server, topic, batches) == offsets
        again = await asyncio.to_thread(_post, server, topic)
        assert again == {**appended, "duplicate": True}
        assert server.metric(_DIFFERING) == 0
        assert "has other bytes" not in server.log_text()
