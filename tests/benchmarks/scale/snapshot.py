"""A million producers and a snapshot: how long it holds a producer up, and how fast it is back."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from pidlease.core.pid import Policy
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.batch_identity import batch_of
from pidlease.engine.engine import Engine
from pidlease.engine.pending_batches import Submitted
from pidlease.kafka.records.record_batch import read_header
from tests.benchmarks.scale.figure import Figure
from tests.benchmarks.scale.full_server import TOPIC, as_in_a_server, fill, make_topic, start
from tests.benchmarks.scale.memory import ENTRIES, PARTITIONS
from tests.sim.batches import make_batch

SNAPSHOTS = 10
DELAY_MS_MAX = 6.0
READY_SECONDS_MAX = 3.0
_PARTITIONS_EACH = 10
_PAUSE_SECONDS = 0.001


class Prober:
    """A producer that sends one small batch after the other, and notes how long each took.

    Parameters:
        engine: with the topic.
    """

    def __init__(self, engine: Engine) -> None:
        partition = engine.partition(TOPIC, 0)
        if partition is None:
            raise RuntimeError("the topic is not there")
        self._partition = partition
        self._pid = engine.leases.lease(Policy.KAFKA)
        self._sequence = 0
        self.delays_s: list[float] = []

    async def run(self, until: asyncio.Event) -> None:
        """Send until it is set."""
        loop = asyncio.get_running_loop()
        while not until.is_set():
            data = make_batch([b"x" * 100], pid=self._pid, epoch=0, first=self._sequence)
            header = read_header(data)
            told: asyncio.Future[Outcome] = loop.create_future()
            began = time.perf_counter()
            self._partition.produce(
                Submitted(self._pid, header, data, batch_of(header), told.set_result)
            )
            outcome = await told
            self.delays_s.append(time.perf_counter() - began)
            if outcome.status is not Status.APPENDED:
                raise RuntimeError(f"the producer was refused: {outcome}")
            self._sequence += 1
            # Late waking is a delay, too: the next request would have waited in the socket.
            began = time.perf_counter()
            await asyncio.sleep(_PAUSE_SECONDS)
            self.delays_s.append(time.perf_counter() - began - _PAUSE_SECONDS)


async def _delays(engine: Engine, *, snapshots: int) -> tuple[float, float]:
    """The longest delay (s), and how long a snapshot took (s); without one, for as long."""
    prober, done = Prober(engine), asyncio.Event()
    probing = asyncio.create_task(prober.run(done))
    took = 0.0
    if snapshots:
        for _ in range(snapshots):
            began = time.perf_counter()
            await engine.maintenance.snapshot()
            took = max(took, time.perf_counter() - began)
    else:
        await asyncio.sleep(10)
    done.set()
    await probing
    return max(prober.delays_s), took


async def _before(folder: Path) -> list[Figure]:
    engine, pool = await start(folder)
    await make_topic(engine, PARTITIONS)
    fill(engine, ENTRIES // _PARTITIONS_EACH, _PARTITIONS_EACH)
    quiet, _ = await _delays(engine, snapshots=0)
    delay, took = await _delays(engine, snapshots=SNAPSHOTS)
    await engine.stop()
    pool.close()
    return [
        Figure("longest delay without a snapshot", quiet * 1000, "ms"),
        Figure(f"longest delay by {SNAPSHOTS} snapshots", delay * 1000, "ms", DELAY_MS_MAX),
        Figure("a snapshot takes", took, "s"),
    ]


async def _after(folder: Path) -> list[Figure]:
    began = time.perf_counter()
    engine, pool = await start(folder)
    took = time.perf_counter() - began
    known = sum(len(partition.producers) for partition in engine.partitions())
    if known < ENTRIES:
        raise RuntimeError(f"only {known} producers are known")
    pool.close()
    return [Figure("ready again from the snapshot", took, "s", READY_SECONDS_MAX)]


def measure(folder: Path) -> list[Figure]:
    """Delays by snapshots of a million entries, and the start from the last one.

    Parameters:
        folder: for the data directory.
    """
    as_in_a_server()
    with tempfile.TemporaryDirectory(dir=folder) as data:
        path = Path(data) / "data"
        return [*asyncio.run(_before(path)), *asyncio.run(_after(path))]
