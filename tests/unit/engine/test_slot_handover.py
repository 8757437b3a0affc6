"""A slot that changes hands between two servers: nothing is lost, doubled or out of order."""

import asyncio
from collections import Counter

import pytest

from pidlease.engine import named_leases
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.engine.topics import partition_moves
from tests.crash.seeds import SOAK, new_random
from tests.unit.engine.handover_sim import HandoverWorld

#: What must have happened, in each test.
FAULTS = ("moved", "suspended", "killed", "granted", "cut", "late", "fenced producer",
          "fenced writer")  # fmt: skip
#: Histories in one test, at least.
EACH = 25
RUNS = 400


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of the world take the place of all timers."""

    async def never(self: SharedCluster) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(SharedCluster, "_run", never)
    monkeypatch.setattr(SharedCluster, "note_alive", lambda self: None)
    for module in (partition_moves, named_leases):
        monkeypatch.setattr(module, "_LANDING_POLL_SECONDS", 0)
        monkeypatch.setattr(module, "_LANDING_SECONDS", 10**6)
    monkeypatch.setattr(partition_moves, "_AGAIN_SECONDS", 0)


@pytest.mark.skipif(not SOAK, reason="many histories; run them with PIDLEASE_SOAK=1")
@pytest.mark.parametrize("number", range(RUNS if SOAK else 1))
async def test_exactly_once_while_a_slot_changes_hands(number: int) -> None:
    random = new_random(f"handover-{number}")
    happened: Counter[str] = Counter()
    for history in range(10 * EACH):
        if history >= EACH and all(happened[each] for each in FAULTS):
            break
        world = await HandoverWorld(random, kafkas=1, named=2, batches=20).start()
        await world.run(900)
        world.check()
        happened += Counter(world.happened)
    print(dict(happened))
    assert all(happened[each] for each in FAULTS), happened
