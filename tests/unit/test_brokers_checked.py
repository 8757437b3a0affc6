"""Before several servers share a cluster, each broker is asked whether it reports writers."""

from typing import Any, NamedTuple, cast

import pytest
from structlog.testing import capture_logs

from pidlease.kafka.api import API_DESCRIBE_TRANSACTIONS
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.errors import UpstreamAwayError
from pidlease.storage.errors import DataFolderError
from proxy.backends.shared_partitions import check_brokers

_NEW = {API_DESCRIBE_TRANSACTIONS: (0, 0)}


class _Connection(NamedTuple):
    versions: dict[int, tuple[int, int]]


class _Brokers:
    """A cluster of so many brokers; None: it does not answer."""

    def __init__(self, *versions: dict[int, tuple[int, int]] | None) -> None:
        self.versions = dict(enumerate(versions, 1))
        self.view = self
        self.brokers = {number: (f"kafka{number}", 9092) for number in self.versions}

    async def connection_to(self, broker: int) -> Any:
        found = self.versions[broker]
        if found is None:
            raise UpstreamAwayError("away")
        return _Connection(found)


async def test_an_old_broker_among_new_ones_is_refused() -> None:
    with pytest.raises(DataFolderError, match=r"broker 2 \(kafka2:9092\)"):
        await check_brokers(cast("Cluster", _Brokers(_NEW, {}, None)))


async def test_one_that_does_not_answer_is_named() -> None:
    with capture_logs() as lines:
        await check_brokers(cast("Cluster", _Brokers(_NEW, None, _NEW)))
    assert [(each["log_level"], each["brokers"]) for each in lines] == [("warning", [2])]
    with capture_logs() as lines:
        await check_brokers(cast("Cluster", _Brokers(_NEW, _NEW)))
    assert not lines
