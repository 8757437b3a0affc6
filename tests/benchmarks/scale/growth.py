"""What a record costs the server with more partitions, and with more producers."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.benchmarks.scale.figure import Figure
from tests.servers.pidlease import PidleaseServer

_RECORDS = 100_000
_RECORD_BYTES = 1000
_TIMEOUT_S = 120
_PARTITIONS = (1, 10, 100, 1000)
_PRODUCERS = (1, 10, 100)


def _send(server: PidleaseServer, topic: str, partitions: int, producers: int) -> float:
    """Server processor time for each record, in microseconds."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions)]).values():
        future.result(_TIMEOUT_S)
    failed: list[str] = []

    def on_delivery(error: object, _message: object) -> None:
        if error is not None:
            failed.append(str(error))

    clients = [
        Producer(
            {
                "bootstrap.servers": server.bootstrap,
                "enable.idempotence": True,
                "delivery.report.only.error": True,
                "on_delivery": on_delivery,
            }
        )
        for _ in range(producers)
    ]
    payload = os.urandom(_RECORD_BYTES)
    for number, client in enumerate(clients):
        client.produce(topic, payload, partition=number % partitions)
        client.flush(_TIMEOUT_S)
    cpu_before_s = server.process.cpu_s()
    for number in range(_RECORDS):
        client = clients[number % producers]
        while True:
            try:
                client.produce(topic, payload, partition=number % partitions)
                break
            except BufferError:
                client.poll(0.01)
    until_s = time.monotonic() + _TIMEOUT_S
    left = sum(client.flush(max(until_s - time.monotonic(), 0)) for client in clients)
    if left or failed:
        raise RuntimeError(f"{left} records were never answered, {failed[:3]} failed")
    return (server.process.cpu_s() - cpu_before_s) / _RECORDS * 1e6


def measure(folder: Path) -> list[Figure]:
    """Server time for each record of 1 KB, fsync never, idempotent librdkafka producers.

    Parameters:
        folder: for the data directory.
    """
    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(dir=folder) as data,
        PidleaseServer(Path(data), settings={"fsync": "never"}) as server,
    ):
        _send(server, "warm-up", 1, 1)
        for partitions in _PARTITIONS:
            cost = _send(server, f"p-{partitions}", partitions, 1)
            figures.append(Figure(f"a record, {partitions} partitions, 1 producer", cost, "us"))
        for producers in _PRODUCERS:
            cost = _send(server, f"c-{producers}", 100, producers)
            figures.append(Figure(f"a record, 100 partitions, {producers} producers", cost, "us"))
    return figures
