"""Servers that lease from a real ZooKeeper."""

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from pidlease.coordination.zookeeper.zookeeper_sequence import ZooKeeperSequence
from pidlease.core.pid import Policy, make_pid, number_of
from tests.crash.seeds import SOAK, new_random
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import INIT, WireClient
from tests.kafka_listener.messages import INIT_PRODUCER_ID
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S
from tests.servers.zookeeper import ZooKeeperServer
from tests.servers.zookeeper.marks import needs_zookeeper
from tests.zookeeper.conftest import Connect
from tests.zookeeper.leasing import IN_FLIGHT, lease_all

pytestmark = [needs_zookeeper, pytest.mark.timeout(7200 if SOAK else 900)]

#: And as many more as it takes until each kind of trouble has come.
LEASES = 1_000_000 if SOAK else 40_000
_LOADING = 14
_FAILED, _UNKNOWN = 19, 59
_QUICK = {"zookeeper_session_seconds": "2", "zookeeper_timeout_seconds": "5", "fsync": "never"}


def start(folder: Path, hosts: str, **settings: str) -> PidleaseServer:
    return PidleaseServer(folder, settings={**_QUICK, "zookeeper": hosts, **settings})


async def lease(client: WireClient, count: int = 1) -> list[int]:
    """Lease PIDs; up to the first refusal."""
    pids: list[int] = []
    for _ in range(count):
        body = await client.call(INIT_PRODUCER_ID, 4, **INIT)
        if body.error_code == _LOADING:
            break
        assert body.error_code == 0
        pids.append(body.producer_id)
    return pids


async def connection(server: PidleaseServer) -> WireClient:
    return await WireClient.connect("127.0.0.1", server.kafka_port)


def test_without_zookeeper_leases_end_and_producing_goes_on(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    async def check(proxy: PidleaseServer) -> None:
        async with await connection(proxy) as client:
            await client.create("t")
            (pid,) = await lease(client)
            server.kill9()
            leased = [pid, *(await lease(client, 1000))]
            assert 50 <= len(leased) <= 200, "to the end of the block, and of the next if it came"
            assert len(set(leased)) == len(leased)
            assert await lease(client) == []
            for sequence in range(50):
                answer = await client.produce("t", batch([b"x"], pid, 0, sequence))
                assert (answer.code, answer.offset) == (0, sequence)
            answer = await client.produce("t", batch([b"x"], leased[-1], 0, 0))
            assert answer.code == 0, "a PID that was leased before begins"
            server.start()
            for _ in range(2000):
                if new := await lease(client):
                    break
                await asyncio.sleep(0.01)
            assert new
            assert new[0] not in leased

    with start(tmp_path, f"{server.hosts}/{uuid.uuid4().hex}") as proxy:
        asyncio.run(check(proxy))
        assert proxy.stop() == 0


def test_a_directory_stays_with_its_coordinator(server: ZooKeeperServer, tmp_path: Path) -> None:
    """Another sequence would hand out PIDs for a second time."""
    hosts = f"{server.hosts}/{uuid.uuid4().hex}"

    async def first_pid(proxy: PidleaseServer) -> int:
        async with await connection(proxy) as client:
            return number_of((await lease(client))[0])

    def refused(proxy: PidleaseServer, text: str) -> None:
        proxy.launch()
        assert proxy.wait_exit() == 2
        assert text in proxy.process.log_path.read_text()

    proxy = PidleaseServer(tmp_path, settings={"fsync": "never"})
    with proxy:
        assert asyncio.run(first_pid(proxy)) == 1
        proxy.stop()
        proxy.settings = {**_QUICK, "zookeeper": hosts}
        proxy.start()
        assert asyncio.run(first_pid(proxy)) == 201, "it goes on after the file's blocks"
        proxy.kill9()
        proxy.settings = {"fsync": "never"}
        refused(proxy, "say --zookeeper")
        proxy.settings = {**_QUICK, "zookeeper": f"{server.hosts}/{uuid.uuid4().hex}"}
        refused(proxy, "lease the same PIDs again")
        proxy.settings = {**_QUICK, "zookeeper": hosts}
        proxy.start()
        assert asyncio.run(first_pid(proxy)) > 101


def test_no_zookeeper_at_the_start_is_told(tmp_path: Path) -> None:
    proxy = start(tmp_path, "127.0.0.1:1/x", zookeeper_timeout_seconds="0.3")
    proxy.launch()
    assert proxy.wait_exit() == 2
    assert "--zookeeper 127.0.0.1:1/x: 127.0.0.1:1: no connection" in (
        proxy.process.log_path.read_text()
    )


class Crowd:
    """Servers that lease from one ZooKeeper, all at once, and what befalls them."""

    def __init__(self, server: ZooKeeperServer, folder: Path, random: Random) -> None:
        self.server = server
        self.random = random
        hosts = f"{server.hosts}/crowd-{uuid.uuid4().hex}"
        self.proxies = [
            start(folder / str(number), hosts, log_level="error") for number in range(4)
        ]
        self.hosts = hosts
        self.pids: list[int] = []
        self.refused: list[int] = []
        self.crashes = 0
        self.away = 0

    def done(self) -> bool:
        happened = self.crashes and self.away and self.refused
        return len(self.pids) >= LEASES and bool(happened)

    async def client(self, proxy: PidleaseServer) -> None:
        while not self.done():
            with suppress(OSError, asyncio.IncompleteReadError):
                work = asyncio.create_task(lease_all(proxy, self.pids, self.refused))
                while not self.done() and not work.done():
                    await asyncio.wait({work}, timeout=0.1)
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
            await asyncio.sleep(0.05)

    async def trouble(self) -> None:
        """Crash a server, or ZooKeeper, again and again."""
        while not self.done():
            await asyncio.sleep(self.random.uniform(0.3, 1))
            kind = self.random.choice(("server", "server", "kill", "pause"))
            if kind == "server":
                proxy = self.random.choice(self.proxies)
                await asyncio.to_thread(proxy.kill9)
                self.crashes += 1
                # Without ZooKeeper it does not start; it is there when this is its turn.
                await asyncio.to_thread(proxy.start)
                continue
            self.away += 1
            if kind == "kill":
                await asyncio.to_thread(self.server.kill9)
                await asyncio.sleep(self.random.uniform(0, 1))
                await asyncio.to_thread(self.server.start)
            else:
                self.server.pause()
                await asyncio.sleep(self.random.uniform(0.2, 1.5))
                self.server.resume()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.trouble())
            for proxy in self.proxies:
                group.create_task(self.client(proxy))


def test_four_servers_lease_from_one_zookeeper(
    server: ZooKeeperServer, connect: Connect, tmp_path: Path
) -> None:
    """Killed at random, ZooKeeper killed and paused: all PIDs are distinct, few are wasted."""
    crowd = Crowd(server, tmp_path, new_random("four servers"))
    for proxy in crowd.proxies:
        proxy.launch()
    try:
        for proxy in crowd.proxies:
            proxy.wait_ready(WAIT_S)
        asyncio.run(crowd.run())
    finally:
        for proxy in crowd.proxies:
            proxy.kill9()
    assert len(set(crowd.pids)) == len(crowd.pids)
    zookeeper = connect(hosts=crowd.hosts)
    blocks = ZooKeeperSequence(zookeeper, "test", lambda: 0, 0).blocks()
    on_record = sum(block.count for block in blocks)
    # Each life leaves what is left of its block, the one that was prefetched, and answers that
    # were on their way; each time that ZooKeeper was away, a block that came through unheard.
    lives = crowd.crashes + len(crowd.proxies)
    assert on_record - len(crowd.pids) <= lives * (200 + IN_FLIGHT) + 4 * crowd.away * 100


def test_a_pid_that_another_server_leased(server: ZooKeeperServer, tmp_path: Path) -> None:
    """Its block is newer than all that this server has seen: it is looked up, not refused."""

    async def check(one: PidleaseServer, other: PidleaseServer) -> None:
        async with await connection(one) as leasing, await connection(other) as writing:
            await writing.create("t")
            pids: list[int] = []
            while len(pids) < 150:  # beyond the block that the other one saw at its start
                pids += await lease(leasing, 150 - len(pids))
            for first in range(2):
                answer = await writing.produce("t", batch([b"x"], pids[-1], 0, first))
                assert answer.code == 0
            never = make_pid(Policy.KAFKA, 10**9)
            assert (await writing.produce("t", batch([b"x"], never, 0, 0))).code == _UNKNOWN
            # At once behind that look: what was leased since is not unknown.
            while len(pids) < 300:
                pids += await lease(leasing, 300 - len(pids))
            assert (await writing.produce("t", batch([b"x"], pids[-1], 0, 0))).code == 0
            beyond = make_pid(Policy.KAFKA, number_of(pids[-1]) + 1000)
            server.kill9()
            assert (await writing.produce("t", batch([b"x"], beyond, 0, 0))).code == _FAILED
            server.start()
            codes = {_FAILED}
            while _FAILED in codes:
                await asyncio.sleep(0.05)
                codes = {(await writing.produce("t", batch([b"x"], beyond, 0, 0))).code}
            assert codes == {_UNKNOWN}
            more = await lease(writing, 300) + await lease(leasing, 300)
            assert len(set(more + pids)) == len(more + pids)

    with start(tmp_path / "a", server.hosts) as one, start(tmp_path / "b", server.hosts) as other:
        asyncio.run(check(one, other))
