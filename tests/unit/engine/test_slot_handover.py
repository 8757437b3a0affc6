"""A slot that changes hands between two servers: nothing is lost, doubled or out of order."""

import asyncio
from collections import Counter

import pytest

from pidlease.engine import named_leases, state_follower
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.engine.topics import partition_moves
from tests.crash.seeds import SOAK, new_random
from tests.unit.engine.handover_sim import HandoverWorld

#: What must have happened, in each test.
FAULTS = ("moved", "suspended", "killed", "granted", "cut", "late", "fenced producer",
          "fenced writer", "followed")  # fmt: skip
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
    monkeypatch.setattr(state_follower, "_ASK_SECONDS", None)
    monkeypatch.setattr(state_follower, "_FETCH_SECONDS", None)
    monkeypatch.setattr(state_follower, "_FRESH_SECONDS", 0)
    monkeypatch.setattr(state_follower, "_WORTH_OFFSETS", 1)


@pytest.mark.skipif(not SOAK, reason="many histories; run them with TESTS_SOAK=1")
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


#: What must have happened while servers follow each other: a takeover begins with what was pulled.
FOLLOWED = ("moved", "followed", "waited", "lost answer")
FEW = 6


@pytest.mark.parametrize("number", range(RUNS // 4 if SOAK else 1))
async def test_exactly_once_while_servers_follow_each_other(number: int) -> None:
    """So much time passes between the moves that takeovers read little of the log."""
    random = new_random(f"followed-{number}")
    happened: Counter[str] = Counter()
    for history in range(10 * EACH):
        if history >= (EACH if SOAK else FEW) and all(happened[each] for each in FOLLOWED):
            break
        world = await HandoverWorld(random, kafkas=1, named=2, batches=60, calm=5).start()
        await world.run(2500)
        world.check()
        happened += Counter(world.happened)
    print(dict(happened))
    assert all(happened[each] for each in FOLLOWED), happened
