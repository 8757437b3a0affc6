"""A real Kafka, and a server in front of it."""

from collections.abc import Iterator
from random import Random

import pytest

from tests.kafka_backend.between import Between
from tests.kafka_backend.spoiling import Spoiler
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


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Between]:
    """One for all: each test has a topic of its own."""
    folder = tmp_path_factory.mktemp("bad-upstream")
    kafka = KafkaServer(folder / "kafka", listeners={"RELAYED": "PLAINTEXT"})
    port = int(kafka.listeners["RELAYED"].rpartition(":")[2])
    with Spoiler(port, Random(0)) as spoiler:
        kafka.advertised["RELAYED"] = spoiler.bootstrap
        settings = {"upstream": spoiler.bootstrap, "upstream_timeout_seconds": "1",
                    "upstream_metadata_seconds": "0.5", "log_level": "info",
                    "log_repeat_seconds": "0"}  # fmt: skip
        with kafka, in_front_of(kafka, folder / "server", **settings) as server:
            server.start()
            yield Between(kafka, spoiler, server)
            assert server.stop() == 0
