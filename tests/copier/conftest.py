"""A real Kafka to copy from, and servers to copy to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of, not_started


@pytest.fixture(scope="package")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One Kafka for many tests; each has topics of its own."""
    # It looks for what it can compact every 15 s otherwise.
    often = {"log.cleaner.backoff.ms": "500"}
    with KafkaServer(tmp_path_factory.mktemp("source"), overrides=often) as running:
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PidleaseServer]:
    """A destination on the embedded log; it is not started yet."""
    with not_started(tmp_path / "server", snapshot_seconds="2") as found:
        yield found


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    """A destination that nothing is ever written to."""
    with PidleaseServer(tmp_path_factory.mktemp("idle")) as running:
        yield running


@pytest.fixture
def in_front(tmp_path: Path, source: KafkaServer) -> Iterator[PidleaseServer]:
    """A destination in front of the source's own Kafka; it is not started yet."""
    with in_front_of(source, tmp_path / "in-front") as found:
        yield found
