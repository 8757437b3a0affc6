"""How soon a server serves a cluster that has held millions of records before.

The first server of a cluster begins at the ends of the logs. One with a new directory begins where
the first one did.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pidlease.testing.loopback_ports import LOOPBACK
from tests.benchmarks.scale.figure import Figure
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.waiting import WAIT_S

_TOPIC = "old"
_PARTITIONS = 12
_BATCHES = 2_000
_RECORDS_EACH = 10_000
_IN_FLIGHT = 4
_ZSTD = 4
_NOT_LEADER = 6
_READY_S_MAX = 5.0
_ROUNDS = 3


def measure(folder: Path) -> list[Figure]:
    """Put the records straight into Kafka, and start servers in front of it."""
    with TemporaryDirectory(dir=folder) as below, KafkaServer(Path(below, "kafka")) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic(_TOPIC, _PARTITIONS)])[_TOPIC].result(WAIT_S)
        stored = asyncio.run(_fill(int(kafka.bootstrap.rpartition(":")[2])))
        named = f"of a cluster with {stored / 1e6:g} million records"
        with in_front_of(kafka, Path(below, "first")) as first:
            ready_s = _started(first)
            _write(first)
            if first.stop():
                raise RuntimeError("the stop of the server failed")
        later = []
        for number in range(_ROUNDS):
            with in_front_of(kafka, Path(below, f"new-{number}")) as new:
                later.append(_started(new))
                if new.stop():
                    raise RuntimeError("the stop of the server failed")
    return [
        Figure(f"First start in front {named}: ready after", ready_s, "s", _READY_S_MAX),
        Figure(f"Start with a new directory {named}, at most", max(later), "s", _READY_S_MAX),
    ]


def _started(server: PidleaseServer) -> float:
    began = time.monotonic()
    server.start()
    return time.monotonic() - began


def _write(server: PidleaseServer) -> None:
    """Send a record to each partition, so that there is something to read later."""
    failed: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer({
        "bootstrap.servers": server.bootstrap, "enable.idempotence": True, "on_delivery": delivered,
    })  # fmt: skip
    for partition in range(_PARTITIONS):
        producer.produce(_TOPIC, b"new", partition=partition)
    if producer.flush(WAIT_S) or failed:
        raise RuntimeError(f"records were not stored: {failed[:3]}")


async def _fill(port: int) -> int:
    """Store the same batch again and again; return the number of records."""
    values = [b"%d" % number for number in range(_RECORDS_EACH)]
    data = batch(values, codec=_ZSTD, timestamp=int(time.time() * 1000))
    async with await WireClient.connect(LOOPBACK, port) as client:
        waiting = Counter(number % _PARTITIONS for number in range(_BATCHES))
        while left := waiting.total():
            sent = [each for each, count in waiting.items() if count][:_IN_FLIGHT]
            for partition in sent:
                client.send_produce(_TOPIC, data, partition=partition)
            for partition in sent:
                answer = await client.receive_produce()
                if answer.code == 0:
                    waiting[partition] -= 1
                elif answer.code != _NOT_LEADER or left < _BATCHES - _PARTITIONS:
                    raise RuntimeError(f"a batch was not stored: {answer}")
    return _BATCHES * _RECORDS_EACH
