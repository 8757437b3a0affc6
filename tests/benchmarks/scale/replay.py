"""How fast a log is read again by a start that has no snapshot."""

from __future__ import annotations

import asyncio
import os
import shutil
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
from tests.benchmarks.scale.full_server import TOPIC, as_in_a_server, make_topic, start
from tests.sim.batches import make_batch

MEGABYTES_A_SECOND_MIN = 200.0
_MEGABYTES = 400
_PARTITIONS = 8
_RECORDS = 16  # of 1 KB: what a producer gathers by default, in 16 KB batches
_ROUNDS = 3


async def _write(engine: Engine) -> int:
    """Fill the log; how many bytes were written."""
    loop = asyncio.get_running_loop()
    values = [os.urandom(1000) for _ in range(_RECORDS)]
    partitions = list(engine.partitions_of(TOPIC))
    pids = [engine.leases.lease(Policy.KAFKA) for _ in partitions]
    written = sequence = 0
    while written < _MEGABYTES * 10**6:
        told: list[asyncio.Future[Outcome]] = []
        for partition, pid in zip(partitions, pids, strict=True):
            data = make_batch(values, pid=pid, epoch=0, first=sequence)
            header = read_header(data)
            future: asyncio.Future[Outcome] = loop.create_future()
            partition.produce(Submitted(pid, header, data, batch_of(header), future.set_result))
            told.append(future)
            written += len(data)
        sequence += _RECORDS
        if any(outcome.status is not Status.APPENDED for outcome in await asyncio.gather(*told)):
            raise RuntimeError("a batch was refused")
    return written


async def _measure(folder: Path) -> list[Figure]:
    engine, pool = await start(folder)
    await make_topic(engine, _PARTITIONS)
    written = await _write(engine)
    await engine.stop()
    pool.close()
    best = 0.0
    for _ in range(_ROUNDS):
        shutil.rmtree(folder / "snapshots")
        began = time.perf_counter()
        engine, pool = await start(folder)
        took = time.perf_counter() - began
        if sum(len(partition.producers) for partition in engine.partitions()) != _PARTITIONS:
            raise RuntimeError("the producers are not known again")
        best = max(best, written / 1e6 / took)
        await engine.stop()
        pool.close()
    return [Figure("replay of the log", best, "MB/s", MEGABYTES_A_SECOND_MIN, "at least")]


def measure(folder: Path) -> list[Figure]:
    """Megabytes a second; batches of 16 KB, in the page cache.

    Parameters:
        folder: for the data directory.
    """
    as_in_a_server()
    with tempfile.TemporaryDirectory(dir=folder) as data:
        return asyncio.run(_measure(Path(data) / "data"))
