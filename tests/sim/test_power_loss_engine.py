"""The whole engine, killed and unplugged at any point: every record once, in order, no holes.

A run is repeated by its seed: `run_seed(Setup(seed))`, or `run_step(...)` as the message says.
Runs with threads are as random as the threads are.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import structlog

from pidlease.core.log_config import FsyncPolicy, LogConfig
from tests.crash.seeds import SOAK
from tests.sim.broken import BROKEN_CODE, BROKEN_FILES, Break
from tests.sim.scenarios import count_short_steps, run_seed, run_step, short_setup
from tests.sim.world import Setup, Violation

#: Seconds for each of the tests that go on for a time; about 40 in all.
SECONDS = 8.0 * (20 if SOAK else 1)
FIRST_SEED = int(os.environ.get("TESTS_SEED", "1"))

pytestmark = pytest.mark.timeout(60 + 30 * SECONDS)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of crashes have much to say."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def run_for(seconds: float, run: Callable[[int], Counter[str]], least: int) -> Counter[str]:
    """Run seed after seed for a while, and so many at least; what happened in all of them."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    seed = FIRST_SEED
    while time.monotonic() < end or seed < FIRST_SEED + least:
        counts += run(seed)
        seed += 1
    counts["runs"] = seed - FIRST_SEED
    print(f"seeds {FIRST_SEED} to {seed - 1}: {dict(counts)}")
    return counts


def assert_happened(counts: Counter[str], *what: str) -> None:
    assert not [each for each in what if not counts[each]], "this never happened; it proves nothing"


def test_crashes_by_seed() -> None:
    counts = run_for(SECONDS, lambda seed: run_seed(Setup(seed)), 100)
    assert_happened(
        counts, "crash points hit", "power cuts", "kills", "lost writes", "lost names",
        "torn files", "disk faults", "snapshots", "partitions retained", "upkeep failed",
        "proper stops", "appended", "duplicate", "failed",
    )  # fmt: skip


def test_crashes_by_seed_with_real_threads() -> None:
    counts = run_for(SECONDS, lambda seed: run_seed(Setup(seed, threads=4, streams=4)), 20)
    assert_happened(counts, "crash points hit", "lost writes", "torn files", "duplicate")


@pytest.mark.parametrize("step_seed", [1])
def test_a_crash_at_every_step_of_a_short_life(step_seed: int) -> None:
    setup = short_setup(step_seed)
    steps = count_short_steps(step_seed)
    counts: Counter[str] = Counter()
    started = time.monotonic()
    for step in range(1, steps + 1):
        for power in (None, *range(20)) if SOAK else (None if step % 3 == 0 else step,):
            counts += run_step(setup, step, torn=step % 2 == 0, power=power)
    print(f"{steps} steps in {time.monotonic() - started:.1f} s: {dict(counts)}")
    assert counts["crash points hit"] >= steps
    assert_happened(counts, "lost writes", "lost names", "torn files", "duplicate", "kills")


@pytest.mark.parametrize("policy", [FsyncPolicy.NEVER, FsyncPolicy.INTERVAL])
def test_without_fsync_a_kill_loses_nothing(policy: FsyncPolicy) -> None:
    """What the operating system has, a crash of the process does not take back."""
    log = LogConfig(1500, retention_ms=-1, retention_bytes=4000, fsync=policy)
    counts = run_for(SECONDS / 8, lambda seed: run_seed(Setup(seed, log=log, power_cuts=False)), 10)
    assert_happened(counts, "kills", "duplicate", "crash points hit")
    assert not counts["power cuts"]


# ---------------------------------------------------------------------- the harness can fail

#: Runs within which a broken variant must be noticed.
PATIENCE = 600


def first_violation(run: Callable[[int], Counter[str]]) -> str:
    for seed in range(PATIENCE):
        try:
            run(seed)
        except Violation as violation:
            return str(violation)
    return ""


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_a_broken_file_system_is_noticed(name: str) -> None:
    found = first_violation(lambda seed: run_seed(Setup(seed, wrap=BROKEN_FILES[name])))
    print(f"{name}: {found}")
    assert found, f"{name}: nobody noticed in {PATIENCE} runs"


@pytest.mark.parametrize("name", BROKEN_CODE)
def test_broken_code_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: Break = BROKEN_CODE[name]
    broken(monkeypatch)
    found = first_violation(lambda seed: run_seed(Setup(seed)))
    print(f"{name}: {found}")
    assert found, f"{name}: nobody noticed in {PATIENCE} runs"
