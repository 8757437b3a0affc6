"""How many verdicts a second one core gives, among a million producers in no order."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path

from pidlease.core.judge import Kind
from pidlease.core.packed import judge_packed, unpack
from pidlease.core.rules import KAFKA, rules_of
from pidlease.core.state import Batch
from pidlease.engine.partition import Partition
from tests.benchmarks.scale.figure import Figure
from tests.benchmarks.scale.full_server import as_in_a_server, fill, make_topic, start
from tests.benchmarks.scale.memory import ENTRIES, PARTITIONS

VERDICTS_MIN = 500_000.0
_ASKED = 300_000
_ROUNDS = 3

_Question = tuple[Partition, int, Batch]


def _questions(partitions: list[Partition], *, repeated: bool) -> list[_Question]:
    """Next batches, or ones that stand in the log already, of producers in no order."""
    order = random.Random(1)
    pids = [list(partition.producers) for partition in partitions]
    found: list[_Question] = []
    for _ in range(_ASKED):
        place = order.randrange(len(partitions))
        pid = order.choice(pids[place])
        state = unpack(KAFKA, partitions[place].producers[pid])
        last = state.batches[order.randrange(5)]
        first = last.first if repeated else state.high + 1
        found.append((partitions[place], pid, Batch(0, first, first, 1, last.crc)))
    return found


def _rate(questions: list[_Question], kind: Kind) -> float:
    """Verdicts a second of processor time; the best of some rounds, for the machine is shared."""
    best = 0.0
    for _ in range(_ROUNDS):
        right = 0
        began = time.process_time()
        for partition, pid, batch in questions:
            rules = rules_of(pid)
            if rules is None:
                raise RuntimeError(f"PID {pid} is of no policy")
            verdict = judge_packed(rules, partition.producers[pid], batch)
            right += verdict.kind is kind
        took = time.process_time() - began
        if right != len(questions):
            raise RuntimeError(f"{right} of {len(questions)} verdicts are {kind}")
        best = max(best, len(questions) / took)
    return best


async def _measure(folder: Path) -> list[Figure]:
    engine, pool = await start(folder)
    await make_topic(engine, PARTITIONS)
    fill(engine, ENTRIES // 10, 10)
    partitions = engine.partitions()
    admit = _rate(_questions(partitions, repeated=False), Kind.ADMIT)
    duplicate = _rate(_questions(partitions, repeated=True), Kind.DUPLICATE)
    pool.close()
    return [
        Figure("verdicts, next batches", admit, "a second", VERDICTS_MIN, "at least"),
        Figure("verdicts, repeated batches", duplicate, "a second"),
    ]


def measure(folder: Path) -> list[Figure]:
    """Verdicts a second.

    Parameters:
        folder: for the data directory.
    """
    as_in_a_server()
    with tempfile.TemporaryDirectory(dir=folder) as data:
        return asyncio.run(_measure(Path(data) / "data"))
