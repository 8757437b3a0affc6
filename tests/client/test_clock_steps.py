"""Leases of seconds, and a server's clock that is put forward and back: nothing is doubled.

A lease that ends too early by such a clock costs a session, never a record that was acknowledged.
"""

import asyncio
from pathlib import Path
from random import Random

import pytest

from pidlease.client import LeasedProducer, ProducerError
from pidlease.client.metrics import ProducerMetrics
from tests.crash.readback import consume
from tests.crash.seeds import SOAK, new_random
from tests.crash.stepped import SteppedServer
from tests.kafka_listener.client import WireClient

RUNS = 12 if SOAK else 2
SECONDS = 8.0 if SOAK else 4.0
TOPIC = "t"
#: The clock is put by as much at most, in seconds.
STEP_MAX = 3600.0
_KILLS_MAX = 2
#: Of each direction, however slow the machine.
_STEPS_MIN = 2
#: Of each application.
_ACKNOWLEDGED_MIN = 100


class Application:
    """Sends numbers through one producer after the other, as sessions end."""

    def __init__(self, server: SteppedServer, partition: int, name: str | None) -> None:
        self.server = server
        self.partition = partition
        self.name = name
        self.acknowledged: list[int] = []
        self.unknown: set[int] = set()
        self.sessions = 0
        self._metrics: list[ProducerMetrics] = []
        self._next = 0

    @property
    def switches(self) -> int:
        """How often a producer has gone on under another lease."""
        return sum(each.switches for each in self._metrics)

    async def run(self, until: asyncio.Event) -> None:
        while not until.is_set():
            self.sessions += 1
            producer = LeasedProducer(
                bootstrap_servers=self.server.bootstrap,
                leases=self.server.http_url,
                name=self.name,
                retry_backoff_ms=10,
                delivery_timeout_ms=20_000,
            )
            self._metrics.append(producer.metrics)
            try:
                async with producer:
                    await self._session(producer, until)
            except ProducerError:
                await asyncio.sleep(0.05)

    async def _session(self, producer: LeasedProducer, until: asyncio.Event) -> None:
        while not until.is_set():
            futures = []
            for _ in range(5):
                value = b"%d/%d" % (self.partition, self._next)
                futures.append(
                    (self._next, await producer.send(TOPIC, value, partition=self.partition))
                )
                self._next += 1
            await asyncio.gather(*(future for _, future in futures), return_exceptions=True)
            for number, future in futures:
                if future.exception() is None:
                    self.acknowledged.append(number)
                else:
                    self.unknown.add(number)  # this application gives it up
            await asyncio.sleep(0.002)


def _got_on(apps: list[Application]) -> bool:
    """Whether each application has sent enough, and a lease has ended."""
    ended = sum(app.sessions + app.switches for app in apps) > len(apps)
    return ended and all(len(app.acknowledged) > _ACKNOWLEDGED_MIN for app in apps)


async def _steps(
    server: SteppedServer, random: Random, apps: list[Application], until: asyncio.Event
) -> dict[str, int]:
    done = {"forward": 0, "back": 0, "kills": 0}
    at = 0.0
    loop = asyncio.get_running_loop()
    end = loop.time() + SECONDS
    while loop.time() < end or min(done["forward"], done["back"]) < _STEPS_MIN or not _got_on(apps):
        await asyncio.sleep(random.uniform(0.05, 0.6))
        if random.random() < 0.15 and done["kills"] < _KILLS_MAX:
            done["kills"] += 1
            await asyncio.to_thread(server.kill9)
            await asyncio.to_thread(server.restart)
            continue
        before, at = at, random.uniform(-STEP_MAX, STEP_MAX) * random.choice((0.001, 0.01, 1))
        done["forward" if at > before else "back"] += 1
        server.step(at)
    until.set()
    return done


@pytest.mark.timeout(900)
@pytest.mark.parametrize("run", range(RUNS))
def test_clock_steps(tmp_path: Path, run: int) -> None:
    random = new_random(f"clock-{run}")

    async def play(server: SteppedServer) -> tuple[list[Application], dict[str, int]]:
        async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
            await client.create(TOPIC, 3)
        names = [None, "a", "b/c"]
        apps = [Application(server, each, name) for each, name in enumerate(names)]
        until = asyncio.Event()
        running = [asyncio.create_task(app.run(until)) for app in apps]
        done = await _steps(server, random, apps, until)
        await asyncio.gather(*running)
        return apps, done

    settings = {"lease_seconds": "2", "fsync": "never"}
    with SteppedServer(tmp_path, settings=settings) as server:
        apps, done = asyncio.run(play(server))
        server.step(0)
        stored = consume(server.bootstrap, TOPIC, 3)
    print(done, [(app.sessions, app.switches, len(app.acknowledged)) for app in apps])
    assert sum(app.sessions + app.switches for app in apps) > len(apps), "no lease has ended"
    for app in apps:
        mine = [each.value for each in stored if each.partition == app.partition]
        numbers = [int(value.partition(b"/")[2]) for value in mine]
        assert numbers == sorted(set(numbers)), "doubled, or out of order"
        assert set(app.acknowledged) <= set(numbers), "an acknowledged record is lost"
        assert set(numbers) <= set(app.acknowledged) | app.unknown
        assert len(app.acknowledged) > _ACKNOWLEDGED_MIN
