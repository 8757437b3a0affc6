"""The coordinator of a writer dies: the next one is looked for, whatever is asked first."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_DESCRIBE_TRANSACTIONS
from pidlease.kafka.client import transactions as module
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.client.coordinators import Coordinators
from pidlease.kafka.client.transactions import Fencing
from pidlease.kafka.errors import UpstreamAwayError
from pidlease.kafka.records.writer_batch import Writer

PLACE = TopicPartition("orders", 0)
WRITER = Writer(7, 3)


class TwoBrokers:
    """The second one is the coordinator, until it dies."""

    def __init__(self) -> None:
        self.coordinator = 2
        self.dead: set[int] = set()
        self.served: dict[int, tuple[int, int]] = {API_DESCRIBE_TRANSACTIONS: (0, 0)}
        self.view = SimpleNamespace(cluster_id="c", brokers={1: "a", 2: "b"})
        self.config = SimpleNamespace(request_seconds=2.0)

    async def ask(self, _: int, **__: object) -> Any:
        return SimpleNamespace(error_code=ErrorCode.none, node_id=self.coordinator)

    async def connection_to(self, broker: int) -> BrokerConnection:
        if broker in self.dead:
            raise UpstreamAwayError(f"broker {broker} refuses connections")
        return cast(
            "BrokerConnection",
            SimpleNamespace(versions=self.served, broker=broker, client_id="test"),
        )


def fencing(monkeypatch: pytest.MonkeyPatch, cluster: TwoBrokers) -> Fencing:
    async def ask(connection: Any, *_: object) -> Any:
        assert connection.broker == cluster.coordinator
        state = SimpleNamespace(
            error_code=ErrorCode.none, producer_id=WRITER.pid, producer_epoch=WRITER.epoch
        )
        return SimpleNamespace(transaction_states=(state,))

    monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(module, "request_for", lambda *_: SimpleNamespace(encode=lambda **__: b""))
    known = cast("Cluster", cluster)
    return Fencing(known, Coordinators(known))


async def test_a_dead_coordinator_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it was, until it came back: leases by name got 503, and a renewal was refused."""
    cluster = TwoBrokers()
    fences = fencing(monkeypatch, cluster)
    assert await fences.current(PLACE) == WRITER
    cluster.dead.add(2)
    cluster.coordinator = 1
    async with asyncio.timeout(60):
        assert await fences.current(PLACE) == WRITER


async def test_an_old_broker_cannot_say_who_the_writer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = TwoBrokers()
    cluster.served = {}
    assert await fencing(monkeypatch, cluster).current(PLACE) is None
