"""The store of committed offsets on the event loop: together, in order, bounded, and told behind
the disk."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pidlease.core.log_config import FsyncPolicy
from pidlease.storage.files import read_file
from pidlease.storage.io_pool import IoPool
from pidlease.storage.offsets import offset_store as module
from pidlease.storage.offsets.journal_records import (
    Commit,
    CommittedOffset,
    Forget,
    GroupNote,
    OffsetsFailedError,
    OffsetsFullError,
    RemoveGroup,
    TopicOffsets,
    encode_line,
)
from pidlease.storage.offsets.offset_store import OffsetStore
from pidlease.storage.offsets.offset_table import OffsetTable
from tests.sim.files import SimFiles
from tests.unit.storage.offsets.lives import PATH, commit, offsets_in, records_in, table_of


@pytest.fixture
async def pool() -> AsyncIterator[IoPool]:
    made = IoPool(asyncio.get_running_loop(), 3)
    yield made
    made.close()


def open_store(
    files: SimFiles,
    pool: IoPool,
    fsync: FsyncPolicy = FsyncPolicy.BATCH,
    entries_max: int = 1000,
) -> OffsetStore:
    store = OffsetStore(files, PATH.parent, pool, fsync, 0.001, entries_max)
    store.open()
    return store


class Held:
    """Holds the first of some operations until it is let go; what is in threads waits there."""

    def __init__(self, files: SimFiles, operation: str = "write") -> None:
        self.reached = threading.Event()
        self._go = threading.Event()
        self._operation = operation
        files.on_operation = self._hook

    def _hook(self, operation: str, path: Path) -> None:
        if operation == self._operation and path == PATH and not self._go.is_set():
            self.reached.set()
            assert self._go.wait(20)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 20)

    def release(self) -> None:
        self._go.set()


def offset_of(store: OffsetStore, group: str) -> int | None:
    return offsets_in(store.table).get((group, "t", 0))


# ---------------------------------------------------------------------- together, and in order


async def test_commits_that_come_together_share_one_write_and_one_fsync(pool: IoPool) -> None:
    files = SimFiles()
    store = open_store(files, pool)
    held = Held(files)
    first = store.write(commit("first", 1))
    await held.wait()
    rest = [store.write(commit(f"g{number}", number)) for number in range(500)]
    files.trace.clear()
    held.release()
    await asyncio.gather(first, *rest)
    assert [step.operation for step in files.trace] == ["write", "fsync"] * 2
    assert len(offsets_in(table_of(records_in(files.power_loss())))) == 501


async def test_one_write_has_a_bounded_size(pool: IoPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RECORDS_MAX", 10)
    monkeypatch.setattr(module, "_OFFSETS_MAX", 25)
    files = SimFiles()
    store = open_store(files, pool)
    held = Held(files)
    wide = [
        Commit("w", (TopicOffsets("t", "id", {n: CommittedOffset(9) for n in range(20)}),))
        for _ in range(4)
    ]
    waiting = [store.write(commit("first", 1))]
    await held.wait()
    waiting += [store.write(each) for each in wide]
    waiting += [store.write(commit(f"g{number}", number)) for number in range(25)]
    files.trace.clear()
    held.release()
    await asyncio.gather(*waiting)
    # The one held; twice two wide ones; ten, ten and five narrow ones.
    assert [step.operation for step in files.trace].count("write") == 6


async def test_nothing_is_told_before_it_is_on_the_disk(pool: IoPool) -> None:
    files = SimFiles()
    store = open_store(files, pool)
    await store.write(commit("g", 1))
    held = Held(files, "fsync")
    later = store.write(commit("g", 2))
    await held.wait()
    assert offset_of(store, "g") == 1
    assert store.is_busy("g")
    assert not store.is_busy("other")
    assert not later.done()
    held.release()
    await later
    assert offset_of(store, "g") == 2
    assert not store.is_busy("g")


async def test_the_last_of_a_key_wins_in_memory_and_on_the_disk(pool: IoPool) -> None:
    files = SimFiles()
    store = open_store(files, pool)
    held = Held(files)
    waiting = [store.write(commit("g", offset)) for offset in (5, 9, 3, 7)]
    held.release()
    await asyncio.gather(*waiting)
    assert offset_of(store, "g") == 7  # a group may go back on purpose
    assert offsets_in(table_of(records_in(files.power_loss()))) == {("g", "t", 0): 7}


async def test_settled_waits_for_what_was_given_and_not_for_more(pool: IoPool) -> None:
    files = SimFiles()
    store = open_store(files, pool)
    await store.settled()
    held = Held(files)
    first = store.write(commit("g", 1))
    waits = asyncio.create_task(store.settled())
    await held.wait()
    assert not waits.done()
    held.release()
    await waits
    assert first.done()
    assert offset_of(store, "g") == 1


async def test_settled_waits_for_the_queue_too_and_survives_who_goes_away(pool: IoPool) -> None:
    files = SimFiles()
    store = open_store(files, pool)
    held = Held(files)
    store.write(commit("a", 1))
    await held.wait()
    second = store.write(commit("b", 2))
    gone = asyncio.create_task(store.settled())
    waits = asyncio.create_task(store.settled())
    await asyncio.sleep(0)
    gone.cancel()
    second.cancel()
    held.release()
    await waits
    assert offset_of(store, "b") == 2  # it was given, whoever waits for it


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("operation", ["open", "write", "fsync"])
async def test_a_failed_write_fails_all_that_were_in_it_and_changes_nothing(
    pool: IoPool, operation: str
) -> None:
    files = SimFiles()
    store = open_store(files, pool)
    await store.write(commit("a", 1))
    held = Held(files, "open")
    files.fail_next(operation, str(PATH), errno.ENOSPC)
    waiting = [store.write(commit("a", 2))]
    await held.wait()
    waiting += [store.write(commit("b", 3)), store.write(commit("a", 4))]
    held.release()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], OffsetsFailedError)
    assert results[1:] == [None, None]
    assert (offset_of(store, "a"), offset_of(store, "b")) == (4, 3)
    found = offsets_in(table_of(records_in(files.power_loss())))
    assert found == {("a", "t", 0): 4, ("b", "t", 0): 3}


async def test_nothing_is_taken_behind_a_close_and_what_was_given_is_stored(pool: IoPool) -> None:
    files = SimFiles()
    store = open_store(files, pool, FsyncPolicy.NEVER)
    held = Held(files)
    waiting = [store.write(commit("a", 1))]
    await held.wait()
    waiting.append(store.write(commit("b", 2)))
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    with pytest.raises(OffsetsFailedError, match="stopping"):
        await store.write(commit("c", 3))
    held.release()
    await closing
    assert all(each.exception() is None for each in waiting)
    found = offsets_in(table_of(records_in(files.power_loss())))
    assert found == {("a", "t", 0): 1, ("b", "t", 0): 2}


async def test_a_close_that_fails_is_told(pool: IoPool, capsys: pytest.CaptureFixture[str]) -> None:
    files = SimFiles()
    store = open_store(files, pool, FsyncPolicy.NEVER)
    await store.write(commit("a", 1))
    files.fail_next("fsync", count=2)
    await store.close()
    assert "journal could not be closed" in capsys.readouterr().out


@pytest.mark.parametrize("policy", [FsyncPolicy.INTERVAL, FsyncPolicy.NEVER])
async def test_an_fsync_that_failed_is_made_up_for_by_writing_all_of_it_anew(
    pool: IoPool, policy: FsyncPolicy
) -> None:
    """The kernel may have dropped what it could not write: a second fsync says nothing."""
    for seed in range(10):
        files = SimFiles(seed)
        store = open_store(files, pool, policy)
        await store.write(commit("a", 1))
        files.fail_next("fsync", str(PATH))
        await asyncio.sleep(0.005)
        await store.write(commit("b", 2))
        await store.close()
        found = offsets_in(table_of(records_in(files.power_loss(seed))))
        assert found == {("a", "t", 0): 1, ("b", "t", 0): 2}


async def test_interval_makes_it_durable_within_the_interval(pool: IoPool) -> None:
    files = SimFiles()
    store = open_store(files, pool, FsyncPolicy.INTERVAL)
    files.fail_next("fsync", str(PATH))
    await store.write(commit("a", 1))
    for _ in range(2000):
        files.trace.clear()
        await store.write(commit("a", 2))
        await asyncio.sleep(0.002)
        if "fsync" in [step.operation for step in files.trace]:
            break
    else:
        pytest.fail("it was never fsynced")
    await asyncio.sleep(0.01)
    assert offsets_in(table_of(records_in(files.power_loss()))) == {("a", "t", 0): 2}


async def test_interval_holds_where_commits_come_one_behind_the_other(pool: IoPool) -> None:
    """There is always one that waits: once the fsync waited for a moment without."""
    files = SimFiles()
    store = open_store(files, pool, FsyncPolicy.INTERVAL)
    files.trace.clear()
    commits = fsyncs = 0

    async def commit_on(group: str) -> None:
        nonlocal commits, fsyncs
        while commits < 20_000 and fsyncs <= 2:
            commits += 1
            await store.write(commit(group, commits))
            fsyncs += sum(step.operation == "fsync" for step in files.trace)
            files.trace.clear()

    await asyncio.gather(commit_on("a"), commit_on("b"))
    assert fsyncs > 2


async def test_what_was_refused_is_cut_soon_also_where_nobody_writes(
    pool: IoPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MEND_SECONDS", 0.001)
    files = SimFiles()
    store = open_store(files, pool)
    await store.write(commit("g", 100))
    files.fail_next("fsync", str(PATH))
    failure = files.fail_next("truncate", str(PATH), count=2)
    with pytest.raises(OffsetsFailedError):
        await store.write(commit("g", 5))
    for _ in range(2000):
        if failure.fired == 2 and not store._journal.unsettled:
            break
        await asyncio.sleep(0.002)
    assert offsets_in(store.table) == {("g", "t", 0): 100}
    assert offsets_in(table_of(records_in(files.process_death()))) == {("g", "t", 0): 100}


@pytest.mark.parametrize("policy", list(FsyncPolicy))
async def test_a_cut_whose_fsync_fails_loses_nothing_that_was_acknowledged(
    pool: IoPool, policy: FsyncPolicy
) -> None:
    for seed in range(6):
        files = SimFiles(seed)
        store = OffsetStore(files, PATH.parent, pool, policy, 3600)
        store.open()
        await store.write(commit("a", 100))
        files.fail_next("write", str(PATH), errno.ENOSPC)
        files.fail_next("fsync", str(PATH))
        with pytest.raises(OffsetsFailedError):
            await store.write(commit("b", 1))
        await store.write(commit("b", 2))
        await store.close()
        found = offsets_in(table_of(records_in(files.power_loss(seed))))
        assert found == {("a", "t", 0): 100, ("b", "t", 0): 2}


async def test_a_record_that_cannot_be_written_fails_alone(pool: IoPool) -> None:
    files = SimFiles()
    store = open_store(files, pool)
    held = Held(files)
    first = store.write(commit("first", 1))
    await held.wait()
    waiting = [store.write(commit(group, 1)) for group in ("a", "\ud800", "b")]
    held.release()
    await first
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[1], OffsetsFailedError)
    assert (results[0], results[2]) == (None, None)
    assert {group for group, *_ in offsets_in(store.table)} == {"first", "a", "b"}
    assert not store.is_busy("\ud800")


# ---------------------------------------------------------------------- bounds


async def test_no_more_offsets_than_allowed_also_while_some_are_on_their_way(pool: IoPool) -> None:
    store = open_store(SimFiles(), pool, entries_max=3)
    waiting = [store.write(commit(group, 1)) for group in "abc"]
    with pytest.raises(OffsetsFullError, match="at most 3 offsets"):
        store.write(commit("d", 1))
    await asyncio.gather(*waiting)
    with pytest.raises(OffsetsFullError):
        store.write(commit("d", 1))
    await store.write(commit("a", 2))  # those there are go on
    await store.write(Forget("a", (("t", (0,)),)))
    await store.write(commit("d", 1))
    await store.write(RemoveGroup("b"))
    await store.write(commit("e", 1))
    assert store.table.entries == 3


async def test_no_more_bytes_of_metadata_than_allowed(pool: IoPool) -> None:
    store = open_store(SimFiles(), pool, entries_max=10)
    await store.write(commit("a", 1, metadata="m" * 4096))
    with pytest.raises(OffsetsFullError, match="bytes"):
        store.write(commit("b", 1, metadata="m" * 4096))
    await store.write(commit("a", 2, metadata="m" * 4096))
    await store.write(commit("a", 3))
    await store.write(commit("b", 1, metadata="m" * 4096))


async def test_the_journal_is_bounded_by_what_it_says(
    pool: IoPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLACK_BYTES", 2000)
    files = SimFiles()
    store = open_store(files, pool)
    longest = 0
    for number in range(300):
        await store.write(commit(f"g{number % 7}", number, partition=number % 3, metadata="m"))
        longest = max(longest, len(read_file(files, PATH)))
    assert longest < 2000 + 4 * store.table.size_bytes + 500
    wanted = offsets_in(store.table)
    assert len(wanted) == 21
    assert offsets_in(table_of(records_in(files.power_loss()))) == wanted


async def test_a_journal_that_cannot_be_written_anew_goes_on_growing_for_a_while(
    pool: IoPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLACK_BYTES", 500)
    files = SimFiles()
    store = open_store(files, pool)
    failure = files.fail_next("rename", count=3)
    for number in range(200):
        await store.write(commit("g", number))
    assert failure.fired == 3
    assert len(read_file(files, PATH)) < 2500
    assert offsets_in(table_of(records_in(files.power_loss()))) == {("g", "t", 0): 199}


async def test_the_journal_is_not_written_anew_at_every_write(pool: IoPool) -> None:
    """Whatever it holds: characters that JSON writes as six, long names, protocol types."""
    names = "\x01" * 4096
    for record in (
        commit("g", 1, metadata=names),
        Commit("g" * 30_000, (TopicOffsets("t", "id", {0: CommittedOffset(1)}),)),
        GroupNote("g", "p" * 32_000, 1, 5),
    ):
        files = SimFiles()
        store = open_store(files, pool, entries_max=100_000)
        for number in range(200):
            if isinstance(record, Commit):
                ((_, _, rows),) = record.topics
                topic = TopicOffsets(f"t{number}", "id", rows)
                await store.write(Commit(record.group, (topic,)))
            else:
                await store.write(GroupNote(f"g{number}", record.protocol_type, 1, 5))
        assert store.table.size_bytes > 0.8 * store._journal.length
        files.trace.clear()
        store.table.size_bytes //= 1000  # as if it had been counted far too low
        for number in range(20):
            await store.write(commit("x", number))
        assert [step.operation for step in files.trace].count("rename") <= 1


async def test_groups_have_a_bound_in_bytes_too(pool: IoPool) -> None:
    store = open_store(SimFiles(), pool, entries_max=100)
    for number in range(3):
        await store.write(GroupNote(f"g{number}", "p" * 15_000, 1, 5))
    with pytest.raises(OffsetsFullError, match="bytes"):
        store.write(GroupNote("more", "p" * 15_000, 1, 5))
    with pytest.raises(OffsetsFullError, match="bytes"):
        store.write(commit("m" * 30_000, 1))
    await store.write(GroupNote("g0", "p" * 15_000, 2, -1))
    await store.write(RemoveGroup("g0"))
    # What is on its way counts.
    waiting = [store.write(GroupNote("more", "p" * 15_000, 1, 5))]
    with pytest.raises(OffsetsFullError, match="bytes"):
        store.write(GroupNote("yet more", "p" * 15_000, 1, 5))
    await asyncio.gather(*waiting)


def test_the_size_is_about_that_of_a_journal_written_anew() -> None:
    """The bound of the journal and of memory stand on it."""
    table = OffsetTable()
    for group in range(30):
        table.apply(GroupNote(f"group-{group}", "consumer", group, 1_700_000_000_000))
        for partition in range(group * 3):
            table.apply(commit(f"group-{group}", 10**9, partition=partition, metadata="m" * group))
    real = sum(len(encode_line(record)) for record in table.records())
    assert real / 2 < table.size_bytes < real * 2
    for group in range(30):
        table.apply(RemoveGroup(f"group-{group}"))
    assert (table.size_bytes, table.entries) == (0, 0)


# ---------------------------------------------------------------------- topics


async def test_offsets_of_a_deleted_topic_are_gone_and_those_of_the_next_one_begin_anew(
    pool: IoPool,
) -> None:
    files = SimFiles()
    store = open_store(files, pool)
    await store.write(commit("g", 7))
    await store.write(commit("g", 8, partition=5))
    store.forget_topic("another")
    assert store.table.entries == 2
    store.forget_topic("id-of-t")
    assert store.table.entries == 0
    again = Commit("g", (TopicOffsets("t", "second-id", {0: CommittedOffset(1)}),))
    await store.write(again)
    assert offsets_in(store.table) == {("g", "t", 0): 1}
    assert store.table.get("g", "t", "id-of-t", 0) is None
    assert store.table.get("g", "t", "second-id", 0) == CommittedOffset(1)
    # The start does the same, by the ids.
    after = open_store(files.power_loss(), pool)
    assert offsets_in(after.table) == {("g", "t", 0): 1}
    after.keep_topics({"t": "third-id", "u": "second-id"})
    assert after.table.entries == 0


async def test_topics_leave_only_when_no_thread_reads_the_table(pool: IoPool) -> None:
    files = SimFiles()
    store = open_store(files, pool)
    await store.write(commit("g", 7))
    held = Held(files)
    later = store.write(commit("h", 8))
    await held.wait()
    store.forget_topic("id-of-t")
    store.keep_topics({})
    assert store.table.entries == 1
    held.release()
    await later
    assert store.table.entries == 0


async def test_commits_on_their_way_leave_nothing_of_a_deleted_topic(pool: IoPool) -> None:
    files = SimFiles()
    store = open_store(files, pool)
    held = Held(files)
    waiting = [store.write(commit("g", 7))]
    await held.wait()
    waiting.append(store.write(commit("g", 8)))
    store.forget_topic("id-of-t")
    held.release()
    await asyncio.gather(*waiting)
    await store.settled()
    await asyncio.sleep(0)
    assert store.table.entries == 0


async def test_groups_and_what_leaves_them_survive(pool: IoPool) -> None:
    files = SimFiles()
    store = open_store(files, pool)
    await store.write(commit("g", 1))
    await store.write(commit("g", 2, partition=1))
    await store.write(GroupNote("g", "consumer", 5, -1))
    await store.write(GroupNote("empty", "connect", 2, 99))
    await store.write(commit("gone", 1))
    await store.write(RemoveGroup("gone"))
    await store.write(Forget("g", (("t", (1, 2)), ("unknown", (0,)))))
    await store.write(Forget("unknown", (("t", (1,)),)))
    await store.close()
    table = open_store(files.power_loss(), pool).table
    assert offsets_in(table) == {("g", "t", 0): 1}
    found = {
        name: (group.protocol_type, group.generation, group.empty_ms)
        for name, group in table.groups.items()
    }
    assert found == {"g": ("consumer", 5, -1), "empty": ("connect", 2, 99)}
