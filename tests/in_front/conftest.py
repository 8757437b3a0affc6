"""A real Kafka, and a server in front of it."""

from collections.abc import Iterator

import pytest

from tests.servers.kafka import KafkaCluster, KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One Kafka for many tests; each has topics of its own."""
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="package")
def server(
    kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PidleaseServer]:
    """One server for many tests."""
    with in_front_of(kafka, tmp_path_factory.mktemp("server")) as running:
        running.start()
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers, whose start takes long; each test has topics of its own."""
    with KafkaCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
