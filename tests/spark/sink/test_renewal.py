"""Renewals of a run's leases that succeed for some of its source partitions only."""

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pidlease.client.errors import LeaseUnavailableError
from pidlease.client.lease_client import Answer, LeaseClient
from pidlease.core.lease import LeaseWanted
from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.sink import run_preparation
from pidlease.spark.sink.name_leases import NameLeases
from pidlease.spark.sink.run_preparation import RunPreparation
from pidlease.spark.sink.run_state import Chain, RunState, SourceProducer
from tests.client.fake_leases import FakeLeases

#: More than one request takes.
_SOURCES = 150
_NAME = "spark/x"


async def test_what_was_renewed_before_the_server_went_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the tasks went on under PIDs that the renewal had replaced."""
    monkeypatch.setattr(run_preparation, "_RENEWAL_S", 0.0)
    async with FakeLeases() as leases, LeaseClient(leases.url) as client:
        destination = TopicPartition("t", 0)
        wanted = {TopicPartition("src", n): [destination] for n in range(_SOURCES)}
        granted = await NameLeases(client, _NAME, 5).grant(wanted)
        now_ms = int(time.time() * 1000)
        sources = {
            source: SourceProducer(
                lease.pid, lease.generation, now_ms - 90_000, now_ms + 1_000,
                {destination: Chain(5, 5)},
            )
            for source, lease in granted.items()
        }  # fmt: skip
        ask, requests = client.lease_pids, []

        async def one_request(leases: Sequence[LeaseWanted]) -> Sequence[Answer]:
            requests.append(leases)
            if len(requests) > 1:
                raise LeaseUnavailableError("connection refused")
            return await ask(leases)

        monkeypatch.setattr(client, "lease_pids", one_request)
        settings: Any = SimpleNamespace(delivery_timeout_ms=5_000, renamed=lambda topic: topic)
        state = RunState(_NAME, 3, 3, "q", {}, False, {}, sources)
        renewed = await RunPreparation(settings, cast(Any, None), client).renew(state)
        assert len(requests) > 1
        now = {source: leases.names[f"{_NAME}/src/{source.partition}"].pid for source in sources}
        assert {source: each.pid for source, each in renewed.sources.items()} == now
        moved = [each for source, each in renewed.sources.items() if each != sources[source]]
        assert 0 < len(moved) < _SOURCES
        assert all(each.chains == {destination: Chain(0, 5)} for each in moved)
