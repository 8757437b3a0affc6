"""What a producer takes of memory, with five batches on a partition."""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
from pathlib import Path
from typing import Literal

from tests.benchmarks.scale.figure import Figure
from tests.benchmarks.scale.full_server import as_in_a_server, fill, make_topic, start

PARTITIONS = 1000
ENTRIES = 1_000_000
BYTES_MAX = 250.0


def memory_bytes(kind: Literal["Pss", "Rss"], pid: int | None = None) -> int:
    """Resident memory of a process, of this one unless told; Pss shares out what is shared."""
    rollup = Path("/proc", "self" if pid is None else str(pid), "smaps_rollup")
    for line in rollup.read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{rollup} has no {kind}")


async def _measure(folder: Path, partitions_each: int) -> list[Figure]:
    as_in_a_server()
    engine, pool = await start(folder)
    await make_topic(engine, PARTITIONS)
    gc.collect()
    before = memory_bytes("Pss")
    fill(engine, ENTRIES // partitions_each, partitions_each)
    gc.collect()
    after = memory_bytes("Pss")
    partitions = engine.partitions()
    known = sum(len(partition.producers) for partition in partitions)
    states = sum(sum(map(sys.getsizeof, p.producers.values())) for p in partitions)
    tables = sum(sys.getsizeof(p.producers) for p in partitions)
    name = f"{ENTRIES // partitions_each:,} PIDs on {partitions_each:,} partitions each"
    figures = [
        Figure(f"memory of an entry, {name}", (after - before) / known, "bytes", BYTES_MAX),
        Figure("  of it the state", states / known, "bytes"),
        Figure("  of it the partition's table", tables / known, "bytes"),
        Figure(
            "  of it the lease and the key", (after - before - states - tables) / known, "bytes"
        ),
    ]
    pool.close()
    return figures


def measure(folder: Path, partitions_each: int) -> list[Figure]:
    """Memory of a million entries.

    Parameters:
        folder: for the data directory.
        partitions_each: on how many partitions each PID writes.
    """
    with tempfile.TemporaryDirectory(dir=folder) as data:
        return asyncio.run(_measure(Path(data) / "data", partitions_each))
