"""The programs, once for all tests; without them the tests are skipped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.observability.install import PrometheusUnavailableError, tool
from tests.servers.kafka import KafkaServer


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus's own checker; Prometheus itself is beside it."""
    try:
        tool("prometheus")
        return tool("promtool")
    except PrometheusUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One Kafka for the tests in front of it."""
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as running:
        yield running
