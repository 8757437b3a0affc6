"""Clean stops under the demo's clients: nothing is lost or doubled by them."""

import asyncio
import logging
from pathlib import Path

from deploy.demo.audit import audit
from deploy.demo.clients import AiokafkaClient, Client, LibrdkafkaClient
from deploy.demo.crashes import served
from deploy.demo.pace import Pace, send_all
from deploy.demo.proxy_process import Proxy
from deploy.demo.readback import read_back
from deploy.demo.rows import PARTITIONS, TOPICS, load_records
from deploy.demo.topics import create_topics

STOPS = 3


async def test_stops_under_the_clients_of_the_demo(tmp_path: Path) -> None:
    """SIGTERM with batches in flight, three times; each ends by itself, with a snapshot."""
    proxy = Proxy(tmp_path)
    left = STOPS
    try:
        await proxy.start()
        await asyncio.to_thread(create_topics, proxy.bootstrap, dict.fromkeys(TOPICS, PARTITIONS))
        clients: list[Client] = [
            LibrdkafkaClient(proxy.bootstrap, logging.getLogger("stops")),
            AiokafkaClient(proxy.bootstrap),
        ]
        for client in clients:
            await client.start()
        pace = Pace(12, lambda: left)
        records = load_records()

        async def stops() -> None:
            nonlocal left
            while left:
                await served(clients)
                await asyncio.sleep(1)
                async with asyncio.timeout(60):
                    while not any(each.batches_in_flight() for each in clients):  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
                    await proxy.stop()
                assert await proxy.ended() == 0
                assert "snapshot" in proxy.log_of_life().rpartition("stopping")[2]
                await proxy.start()
                left -= 1

        async with asyncio.TaskGroup() as group:
            group.create_task(stops())
            for client in clients:
                group.create_task(send_all(client, records[client.ledger.client], pace))
        for client in clients:
            await client.finish()
        stored = await asyncio.to_thread(read_back, proxy.bootstrap)
        await proxy.stop()
    finally:
        await proxy.destroy()
    found = audit([client.ledger for client in clients], stored)
    assert not any(client.ledger.failures for client in clients)
    assert found.total.sent == found.total.stored == sum(map(len, records.values()))
    assert (found.total.lost, found.total.doubled, found.foreign, found.misplaced) == (0, 0, 0, 0)
