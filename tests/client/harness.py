"""A producer over the fake broker and the fake leases."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from pidlease.client import LeasedProducer
from tests.client.fake_broker import FakeBroker
from tests.client.fake_leases import FakeLeases


async def until(happened: Callable[[], Any]) -> None:
    """Wait until something has happened."""
    give_up = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.0005)


class World(NamedTuple):
    """All that there is."""

    broker: FakeBroker
    leases: FakeLeases

    def producer(self, **options: Any) -> LeasedProducer:
        """One that is not started."""
        given: dict[str, Any] = {
            "bootstrap_servers": self.broker.bootstrap,
            "leases": self.leases.url,
            "retry_backoff_ms": 2,
            "retry_backoff_max_ms": 10,
            "delivery_timeout_ms": 30_000,
        }
        return LeasedProducer(**{**given, **options})


@asynccontextmanager
async def world(lease_ms: float = 3_600_000, nodes: int = 1, **topics: int) -> AsyncIterator[World]:
    async with (
        FakeLeases(lease_ms) as leases,
        FakeBroker(leases, topics or {"t": 1}, nodes) as broker,
    ):
        yield World(broker, leases)
