"""Refreshes of a cluster's metadata."""

import asyncio

from typing_extensions import override

from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.client.settings import UpstreamConfig


class SlowCluster(Cluster):
    """Its metadata loads when the test says so."""

    def __init__(self) -> None:
        super().__init__(UpstreamConfig((("x", 1),)))
        self.begun = 0
        self.goes_on = asyncio.Semaphore(0)

    @override
    async def _load(self) -> None:
        self.begun += 1
        await self.goes_on.acquire()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_running_refresh_is_not_the_one_that_is_waited_for() -> None:
    """Its request left before: it may not show what the caller has seen."""
    cluster = SlowCluster()
    cluster.goes_on.release()
    await cluster.start()
    cluster.stale()
    await turns()
    assert cluster.begun == 2
    refreshed = asyncio.create_task(cluster.refresh())
    await turns()
    cluster.goes_on.release()
    async with asyncio.timeout(60):
        while cluster.begun < 3:  # noqa: ASYNC110 - a pause between refreshes is waited for
            await asyncio.sleep(0.01)
    assert not refreshed.done()
    cluster.goes_on.release()
    async with asyncio.timeout(60):
        await refreshed
    await cluster.close()
