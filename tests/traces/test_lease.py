"""One lease over HTTP, with a block of PIDs at hand, and where the next block is taken."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.servers.zookeeper import ZooKeeperServer
from tests.servers.zookeeper.marks import needs_zookeeper
from tests.traces.record import RUNS, check
from tests.traces.server import traced
from tests.traces.tracer import Calls

pytestmark = needs_zookeeper


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zookeeper") as running:
        yield running


async def test_lease_from_zookeeper(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    hosts = f"{zookeeper.hosts}/{uuid.uuid4().hex}"
    warm: list[Calls] = []
    taking: list[Calls] = []
    async with (
        traced(tmp_path / "data", zookeeper=hosts) as server,
        httpx.AsyncClient(base_url=server.http_url) as http,
    ):
        async with await server.connect() as client:
            await client.create("t")
        assert server.app._engine is not None
        blocks = server.app._engine.leases.blocks
        while len(taking) <= RUNS:
            before = blocks.left
            with server.tracer.recording() as calls:
                answer = await http.post("/v1/leases", json={"topic": "t", "partition": 0})
                async with asyncio.timeout(30):
                    while blocks._fetching:  # noqa: ASYNC110 - it sets no event
                        await asyncio.sleep(0.001)
            assert answer.status_code == 200, answer.text
            (taking if blocks.left > before else warm).append(calls)
    check("lease_warm", warm[-RUNS:])
    # The first one begins in another way: it reads the node to which the next ones are added.
    check("lease_with_the_next_block", taking[1:], side_by_side=True)
