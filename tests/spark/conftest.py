"""One Spark session for all tests of a worker: starting one takes ten seconds."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.kafka import KafkaServer
from tests.servers.kafka.install import unavailable_reason
from tests.servers.pidlease import PidleaseServer, in_front_of, not_started
from tests.servers.spark import spark_missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A session on this machine, with Spark's own Kafka connector."""
    if reason := spark_missing():
        pytest.skip(reason)
    from tests.servers.spark import session_for_tests

    folder: Path = tmp_path_factory.mktemp("spark")
    found = session_for_tests(folder)
    yield found
    found.stop()


@pytest.fixture(scope="package")
def kafka_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One real Kafka for many tests; each has topics of its own."""
    reason = unavailable_reason() or spark_missing()
    if reason:
        pytest.skip(reason)
    # It looks for what it can compact every 15 s otherwise.
    often = {"log.cleaner.backoff.ms": "500"}
    with KafkaServer(tmp_path_factory.mktemp("kafka"), overrides=often) as running:
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PidleaseServer]:
    """A destination on the embedded log, not started yet."""
    with not_started(tmp_path / "server") as found:
        yield found


@pytest.fixture
def in_front(tmp_path: Path, kafka_source: KafkaServer) -> Iterator[PidleaseServer]:
    """A destination on a Kafka-backed log, on the source's own Kafka, not started yet."""
    with in_front_of(kafka_source, tmp_path / "in-front") as found:
        yield found
