"""Servers that grant the same names at once, with a real ZooKeeper, and are killed meanwhile."""

import asyncio
import time
import uuid
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import NamedTuple

import httpx
import pytest

from pidlease.coordination.zookeeper.zookeeper_names import ZooKeeperNames
from tests.crash.seeds import SOAK, new_random
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S
from tests.servers.zookeeper import ZooKeeperServer
from tests.servers.zookeeper.marks import needs_zookeeper
from tests.zookeeper.conftest import Connect

pytestmark = [needs_zookeeper, pytest.mark.timeout(7200 if SOAK else 900)]

#: And as many more as it takes until each kind of trouble has come.
GRANTS = 100_000 if SOAK else 600
CLIENTS = 8
_NAMES = [f"name {number}" for number in range(12)]
_GRANTED = 200
#: No lease: others change the name again and again, or ZooKeeper did not respond in time.
_LATER = 503


class Grant(NamedTuple):
    """A grant as its client saw it.

    Attributes:
        began: when it was requested, by the monotonic clock.
        ended: when the response was there.
    """

    pid: int
    generation: int
    began: float
    ended: float


class Crowd:
    """Two servers, clients of both that want all names in no order, and one that kills."""

    def __init__(self, hosts: str, folder: Path, random: Random) -> None:
        settings = {"zookeeper": hosts, "zookeeper_session_seconds": "2", "log_level": "error"}
        self.servers = [
            PidleaseServer(folder / str(number), settings=settings) for number in range(2)
        ]
        self.random = random
        self.grants: dict[str, list[Grant]] = defaultdict(list)
        self.kills = [0, 0]
        self.interrupted = 0
        self.shared_transactions = 0

    @property
    def granted(self) -> int:
        return sum(map(len, self.grants.values()))

    def done(self) -> bool:
        happened = all(self.kills) and self.interrupted and self.shared_transactions
        return self.granted >= GRANTS and bool(happened)

    async def client(self, server: PidleaseServer) -> None:
        async with httpx.AsyncClient(base_url=server.http_url, timeout=WAIT_S) as http:
            while not self.done():
                name, began = self.random.choice(_NAMES), time.monotonic()
                body = {"topic": "t", "partition": 0, "name": name}
                try:
                    response = await http.post("/v1/leases", json=body)
                except httpx.TransportError:
                    self.interrupted += 1
                    await asyncio.sleep(0.05)
                    continue
                if response.status_code == _LATER:
                    continue
                assert response.status_code == _GRANTED, response.text
                lease = response.json()
                grant = Grant(lease["pid"], lease["generation"], began, time.monotonic())
                self.grants[name].append(grant)

    async def kill(self) -> None:
        while not self.done():
            await asyncio.sleep(self.random.uniform(0.3, 1.0))
            number = self.random.randrange(2)
            if self.kills[number] < (2 if not SOAK else 1000):
                self.kills[number] += 1
                self.servers[number].kill9()
                await asyncio.to_thread(self.servers[number].start)

    async def watch(self, connect: Connect, hosts: str) -> None:
        zookeeper = connect(hosts=hosts)
        bindings = ZooKeeperNames(zookeeper)
        paths = [bindings._path(name) for name in _NAMES]
        while not self.done():
            nodes = await asyncio.to_thread(zookeeper.nodes, paths)
            written = [node[1].mzxid for node in nodes if node is not None]
            self.shared_transactions += len(written) - len(set(written))
            await asyncio.sleep(0.05)


async def _run(crowd: Crowd, connect: Connect, hosts: str) -> None:
    for server in crowd.servers:
        async with httpx.AsyncClient(base_url=server.http_url, timeout=WAIT_S) as http:
            # The topic comes into being with its first append.
            response = await http.post(
                "/v1/topics/t/partitions/0/records", json={"records": [{"value": "x"}]}
            )
            assert response.status_code == _GRANTED, response.text
    clients = [crowd.client(server) for server in crowd.servers for _ in range(CLIENTS)]
    await asyncio.gather(*clients, crowd.kill(), crowd.watch(connect, hosts))


def test_two_servers_grant_the_same_names_and_are_killed(
    server: ZooKeeperServer, connect: Connect, tmp_path: Path
) -> None:
    """No generation is granted twice, and none after a higher one that a client had already."""
    hosts = f"{server.hosts}/grants-{uuid.uuid4().hex}"
    crowd = Crowd(hosts, tmp_path, new_random("names"))
    with crowd.servers[0], crowd.servers[1]:
        asyncio.run(_run(crowd, connect, hosts))
    print(f"{crowd.granted} grants, kills {crowd.kills}, {crowd.interrupted} requests without a"
          f" response, {crowd.shared_transactions} nodes of shared transactions")  # fmt: skip
    for name, grants in crowd.grants.items():
        assert len({grant.pid for grant in grants}) == 1, name
        generations = [grant.generation for grant in grants]
        assert len(set(generations)) == len(generations), name
        for grant in grants:
            before = [each.generation for each in grants if each.ended < grant.began]
            assert max(before, default=-1) < grant.generation, (name, grant)
