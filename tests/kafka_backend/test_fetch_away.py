"""A leader is away: consumers ask at the pace of their long polls, and the log has a few lines."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.clients.client import java_options
from tests.crash.lives import wait_for
from tests.kafka_backend.test_clients import new_topic
from tests.servers.kafka import KafkaServer
from tests.servers.kafka.install import java_command
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [
    needs_kafka, pytest.mark.kafka,
    pytest.mark.timeout(900),
]  # fmt: skip

_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_AWAY_S = 8.0
#: A long poll of the Java client, by default.
_POLL_S = 0.5


@contextmanager
def _consuming(folder: Path, bootstrap: str, topic: str) -> Iterator[Path]:
    """Java's own consumer, reading one partition from its start; what it prints is in a file."""
    printed = folder / "consumed"
    with printed.open("wb") as out, (folder / "consumer-log").open("wb") as log:
        command = [*java_command(_CONSUMER, *java_options()), "--bootstrap-server", bootstrap]
        consumer = subprocess.Popen(
            [*command, "--topic", topic, "--partition", "0", "--offset", "earliest"],
            stdout=out, stderr=log, cwd=folder,
        )  # fmt: skip
        try:
            yield printed
            assert consumer.poll() is None, (folder / "consumer-log").read_text()
        finally:
            consumer.kill()
            consumer.wait()


def _produce(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT_S) == 0


def _fetches(server: PidleaseServer) -> float:
    return server.metric("pidlease_kafka_request_seconds_count", api="Fetch")


def test_a_consumer_does_not_hammer_while_kafka_is_dead(tmp_path: Path) -> None:
    with (
        KafkaServer(tmp_path / "kafka") as kafka,
        in_front_of(kafka, tmp_path / "server", log_level="info") as server,
    ):
        server.start()
        topic = new_topic(server, 1)
        _produce(server.bootstrap, topic, b"before")
        with _consuming(tmp_path, server.bootstrap, topic) as printed:
            wait_for(
                lambda: b"before" in printed.read_bytes(),
                "the first record to be read",
                lambda: None,
            )
            kafka.process.kill9()
            lines = len(server.log_text().splitlines())
            began, fetches = time.monotonic(), _fetches(server)
            time.sleep(_AWAY_S)
            seconds, fetches = time.monotonic() - began, _fetches(server) - fetches
            lines = len(server.log_text().splitlines()) - lines
            print(f"{fetches / seconds:.1f} fetches and {lines / seconds:.1f} log lines a second")
            kafka.start()
            _produce(server.bootstrap, topic, b"after")
            wait_for(
                lambda: b"after" in printed.read_bytes(),
                "the second record to be read",
                lambda: None,
            )
        assert server.stop() == 0
    assert fetches > 0, "nobody asked: the test looks at nothing"
    assert fetches / seconds < 2 / _POLL_S
    assert lines / seconds < 10
