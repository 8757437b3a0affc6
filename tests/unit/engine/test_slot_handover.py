"""A slot that changes hands between two servers: nothing is lost, doubled or out of order."""

import asyncio

import pytest

from pidlease.engine import named_leases
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.engine.topics import partition_moves
from tests.crash.seeds import SOAK, new_random
from tests.unit.engine.handover_sim import HandoverWorld

#: Histories in one test.
EACH = 25
RUNS = 400 if SOAK else 8


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


@pytest.mark.parametrize("number", range(RUNS))
async def test_exactly_once_while_a_slot_changes_hands(number: int) -> None:
    random = new_random(f"handover-{number}")
    happened: dict[str, int] = {}
    for _ in range(EACH):
        world = await HandoverWorld(random, kafkas=1, named=2, batches=20).start()
        await world.run(900)
        world.check()
        for what, count in world.happened.items():
            happened[what] = happened.get(what, 0) + count
    print(happened)
    for what in ("moved", "suspended", "killed", "granted", "cut", "fenced writer", "late"):
        assert happened.get(what), f"none was {what}: {happened}"
