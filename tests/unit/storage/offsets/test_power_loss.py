"""Committed offsets over crashes and power cuts at every step: what was acknowledged is there."""

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random, SystemRandom

import pytest

from pidlease.core.log_config import FsyncPolicy
from pidlease.storage.offsets import offset_journal
from pidlease.storage.offsets import offset_store as module
from pidlease.storage.offsets.journal_records import (
    Commit,
    CommittedOffset,
    OffsetsFailedError,
    Record,
    TopicOffsets,
)
from pidlease.storage.offsets.offset_journal import OffsetJournal
from pidlease.storage.offsets.offset_store import OffsetStore
from tests.property.profile import SCALE
from tests.sim.files import SimFiles, SimulatedCrash
from tests.sim.pool import SeededPool
from tests.unit.storage.offsets.lives import (
    commit,
    offsets_in,
    open_journal,
    records_in,
    table_of,
    wide,
)

SEEDS = range(12)
WRITES: list[list[Record]] = [
    [commit("a", 1)],
    [commit("b", 2), wide("c", 3, 40), commit("a", 4)],
    [wide("d", 5, 60)],
    [commit("a", 6), commit("b", 7)],
]


def views(files: SimFiles) -> Iterator[tuple[str, SimFiles]]:
    yield "kill", files.process_death()
    for seed in SEEDS:
        yield f"power loss with seed {seed}", files.power_loss(seed)


def live(files: SimFiles, *, durable: bool) -> int:
    """Open, and write as far as it goes; how many of `WRITES` were acknowledged."""
    done = 0
    try:
        journal, _ = open_journal(files, durable=durable)
        for records in WRITES:
            journal.append(records)
            done += 1
        journal.close()
    except SimulatedCrash:
        return done
    return -1


@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_every_step_loses_nothing_that_was_acknowledged(*, torn: bool) -> None:
    everything = [record for records in WRITES for record in records]
    for step in range(1, 60):
        files = SimFiles(step)
        files.crash_at(step, torn=torn)
        done = live(files, durable=True)
        if done < 0:
            assert step > len(WRITES) * 2
            return
        acknowledged = [record for records in WRITES[:done] for record in records]
        allowed = len(acknowledged) + len(WRITES[done]) if done < len(WRITES) else len(everything)
        for what, after in views(files):
            found = [each for each in records_in(after) if isinstance(each, Commit)]
            assert len(acknowledged) <= len(found) <= allowed, f"{what} at step {step}"
            assert found == everything[: len(found)], f"{what} at step {step}"
    pytest.fail("it never came to its end")


@pytest.mark.parametrize("torn", [False, True])
def test_without_fsync_a_kill_loses_nothing_and_a_power_cut_is_no_damage(*, torn: bool) -> None:
    everything = [record for records in WRITES for record in records]
    lost = 0
    for step in range(1, 60):
        files = SimFiles(step)
        files.crash_at(step, torn=torn)
        done = live(files, durable=False)
        if done < 0:
            assert lost, "there was nothing to lose"
            return
        acknowledged = [record for records in WRITES[:done] for record in records]
        killed = [each for each in records_in(files.process_death()) if isinstance(each, Commit)]
        assert killed[: len(acknowledged)] == acknowledged, f"kill at step {step}"
        for seed in SEEDS:
            after = records_in(files.power_loss(seed))
            found = [each for each in after if isinstance(each, Commit)]
            assert found == everything[: len(found)], f"seed {seed} at step {step}"
            lost += len(found) < len(acknowledged)
    pytest.fail("it never came to its end")


@pytest.mark.parametrize("durable", [False, True])
def test_a_start_makes_durable_what_a_failed_fsync_gave_up(*, durable: bool) -> None:
    """Once the next fsync succeeded without writing it; a power cut took returned offsets back."""
    for seed in SEEDS:
        files = SimFiles(seed)
        journal, _ = open_journal(files, durable=durable)
        journal.append([commit("a", 1)])
        written = [wide("b", 2, 400)]
        if not durable:
            journal.append(written)
        files.fail_next("truncate", "*offsets")
        files.fail_next("fsync", "*offsets")
        with pytest.raises(OSError, match="data"):
            journal.append(written) if durable else journal.flush()
        returned = records_in(files := files.process_death())
        assert returned == [commit("a", 1), wide("b", 2, 400)]
        for what, after in views(files):
            assert records_in(after) == returned, f"{what}, seed {seed}"


def test_a_start_writes_only_the_last_write_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_journal, "_CHUNK_BYTES", 200)
    files = SimFiles()
    grown(files).close()
    assert files.tree.used_bytes() > 2000
    files = files.process_death()
    open_journal(files)
    assert [step.operation for step in files.trace].count("write") == 1


# ---------------------------------------------------------------------- writing it anew

_STATE = [commit("a", 1), wide("b", 2, 50), commit("c", 3)]


def grown(files: SimFiles) -> OffsetJournal:
    journal, _ = open_journal(files)
    for number in range(20):
        journal.append([commit("a", number - 20)])
    journal.append(_STATE)
    return journal


def assert_state(files: SimFiles, more: dict[tuple[str, str, int], int], what: str) -> None:
    wanted = offsets_in(table_of(_STATE)) | more
    assert offsets_in(table_of(records_in(files))) == wanted, what


@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_every_step_of_writing_it_anew(*, torn: bool) -> None:
    for step in range(1, 40):
        files = SimFiles(step)
        journal = grown(files)
        files.crash_at(step, torn=torn)
        try:
            journal.replace(table_of(_STATE).records())
            journal.append([commit("z", 9)])
        except SimulatedCrash:
            for what, after in views(files):
                assert_state_or_more(after, f"{what} at step {step}")
        else:
            assert step > 6
            for what, after in views(files):
                assert_state(after, {("z", "t", 0): 9}, what)
            return
    pytest.fail("it never came to its end")


def assert_state_or_more(files: SimFiles, what: str) -> None:
    """The last one may be there, or not: nobody was told."""
    found = offsets_in(table_of(records_in(files)))
    assert found.pop(("z", "t", 0), 9) == 9
    assert found == offsets_in(table_of(_STATE)), what


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "rename", "fsync_folder"])
@pytest.mark.parametrize("count", [1, 2])
def test_writing_it_anew_may_fail_and_nothing_is_lost(operation: str, count: int) -> None:
    """Also not where it is in doubt which of the two files has the name."""
    for seed in SEEDS:
        files = SimFiles(seed)
        journal = grown(files)
        failure = files.fail_next(operation, "*", errno.EIO, count)
        with pytest.raises(OSError, match="data"):
            journal.replace(table_of(_STATE).records())
        acknowledged: dict[tuple[str, str, int], int] = {}
        for number in range(4):
            try:
                journal.append([commit("z", number)])
            except OSError:
                assert failure.fired == count
            else:
                acknowledged[("z", "t", 0)] = number
        assert failure.fired == (1 if operation == "rename" else count)
        assert acknowledged
        for what, after in views(files):
            assert_state(after, acknowledged, f"{what}, seed {seed}")


def test_it_may_fail_over_and_over_and_succeed_at_last() -> None:
    files = SimFiles()
    journal = grown(files)
    for number in range(3):
        files.fail_next("rename")
        with pytest.raises(OSError, match="data"):
            journal.replace(table_of(_STATE).records())
        journal.append([commit("z", number)])
    journal.replace([*table_of(_STATE).records(), commit("z", 2)])
    for what, after in views(files):
        assert_state(after, {("z", "t", 0): 2}, what)


# ---------------------------------------------------------------------- the store, over lives


class Life:
    """A server's store for a while; knows what was told."""

    def __init__(self, files: SimFiles, random: Random, policy: FsyncPolicy) -> None:
        loop = asyncio.get_running_loop()
        self.random = random
        self.store = OffsetStore(files, Path("/data/groups"), SeededPool(loop, random), policy)
        self.told: dict[tuple[str, str, int], int] = {}

    def look(self) -> None:
        """What any client may be told now."""
        for key, offset in offsets_in(self.store.table).items():
            assert offset >= self.told.get(key, -1), f"{key} went back to {offset}"
            self.told[key] = offset

    async def work(self, offsets: dict[tuple[str, int], int], steps: int) -> None:
        """Commit ever higher offsets, some of them together."""
        waiting: list[asyncio.Future[None]] = []
        for _ in range(steps):
            group = self.random.choice("abc")
            rows = {}
            for partition in range(self.random.randint(1, 30)):
                offsets[group, partition] = offsets.get((group, partition), 0) + 1
                rows[partition] = CommittedOffset(offsets[group, partition])
            waiting.append(self.store.write(Commit(group, (TopicOffsets("t", "id", rows),))))
            if self.random.random() < 0.4:
                await asyncio.sleep(0)
            self.look()
            if self.random.random() < 0.2:
                await self.store.settled()
        await asyncio.gather(*waiting, return_exceptions=True)
        for each in waiting:
            assert each.exception() is None or isinstance(each.exception(), OffsetsFailedError)
        self.look()


@pytest.mark.parametrize("policy", list(FsyncPolicy))
async def test_what_was_told_is_never_older_after_a_restart(
    policy: FsyncPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random commits, failures, crashes within a write; power cuts where that is promised."""
    monkeypatch.setattr(module, "_SLACK_BYTES", 3000)  # so that it is written anew quite often
    seed = SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    random = Random(seed)
    for _ in range(15 * SCALE):
        files = SimFiles(random.getrandbits(32))
        told: dict[tuple[str, str, int], int] = {}
        offsets: dict[tuple[str, int], int] = {}
        for _ in range(5):
            life = Life(files, random, policy)
            life.store.open()
            life.told = told
            life.look()
            assert told.keys() <= offsets_in(life.store.table).keys()
            await life.work(offsets, 6)
            if random.random() < 0.5:
                operation = random.choice(["write", "fsync", "open", "rename", "fsync_folder"])
                files.fail_next(operation, "*", errno.EIO, random.randint(1, 2))
                await life.work(offsets, 6)
            if random.random() < 0.2:
                await life.store.close()
            else:
                files.crash_at(random.randint(1, 8), torn=random.random() < 0.5)
                await life.work(offsets, 6)
            told = life.told
            durable = policy is FsyncPolicy.BATCH
            files = files.power_loss() if durable else files.process_death()
