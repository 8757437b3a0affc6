"""Appends that are written on the event loop: see docs/adr/0003."""

import asyncio
import errno
import math
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.kafka.records.record_batch import read_header
from pidlease.log.ports import NewBatch
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.log.segments.open_logs import OpenLogs
from pidlease.storage.errors import AppendFailedError, LogStoppedError
from pidlease.storage.io_pool import IoPool
from tests.sim.batches import make_batch, simple
from tests.sim.files import SimFiles
from tests.unit.log.logs import config, open_log

FOLDER = Path("/data/logs/t-0")


class Bench:
    """A log without fsync over simulated files, and what was answered, in order."""

    def __init__(self, seed: int = 0) -> None:
        self.files = SimFiles(seed)
        self.pool = IoPool(asyncio.get_running_loop(), threads=1)
        config = LogConfig(fsync=FsyncPolicy.NEVER)
        self.open_logs = OpenLogs(1)
        self.log = EmbeddedPartitionLog(self.files, FOLDER, config, self.pool, self.open_logs)
        self.log.open(0, clean=False)
        self.answers: list[object] = []

    def append(self, sequence: int) -> None:
        data = make_batch([b"x"], pid=1, epoch=0, first=sequence)
        self.log.append([NewBatch(data, read_header(data))], self.answers.append)

    async def settle(self, answers: int) -> None:
        for _ in range(1000):
            if len(self.answers) >= answers:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"only {self.answers}")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.pool.close()


async def test_answers_come_after_the_call_and_in_order(bench: Bench) -> None:
    """Once a bug: an answer from within let the next append's answers come first."""
    bench.append(0)
    bench.append(1)
    assert bench.answers == []
    await bench.settle(2)
    assert bench.answers == [[0], [1]]


async def test_a_failed_write_is_an_answer_and_leaves_nothing(bench: Bench) -> None:
    fault = bench.files.fail_next("write", "*.log", errno.ENOSPC)
    bench.append(0)
    bench.append(0)
    await bench.settle(2)
    assert fault.fired
    assert isinstance(bench.answers[0], AppendFailedError)
    assert bench.answers[1] == [0]


async def test_what_nobody_thought_of_is_an_answer_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the partition would wait for it for ever."""

    def broken(*_args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(bench.log, "_append_locked", broken)
    bench.append(0)
    await bench.settle(1)
    assert isinstance(bench.answers[0], ZeroDivisionError)


async def test_after_a_slow_write_the_next_goes_to_a_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pidlease.log.segments.embedded_log._INLINE_SECONDS_MAX", -1.0)
    handed: list[object] = []
    submit = bench.pool.submit

    def noted(work: Callable[[], object], done: Callable[[object], None]) -> None:
        handed.append(work)
        submit(work, done)

    monkeypatch.setattr(bench.pool, "submit", noted)
    bench.append(0)
    assert len(handed) == 1, "the first opens files"
    await bench.settle(1)
    bench.append(1)
    assert len(handed) == 1
    bench.append(2)
    assert len(handed) == 2
    await bench.settle(3)
    assert bench.answers == [[0], [1], [2]]


async def test_a_failed_write_is_undone_in_a_thread(bench: Bench) -> None:
    """What it left is cut, which takes an fsync: that would hold up the event loop."""
    bench.append(0)
    await bench.settle(1)
    faults = [bench.files.fail_next("write", "*.log", errno.ENOSPC) for _ in range(2)]
    loop_thread = threading.get_ident()
    fsyncs: list[int] = []

    def note(operation: str, _path: Path) -> None:
        if operation == "fsync":
            fsyncs.append(threading.get_ident())

    bench.files.on_operation = note
    bench.append(1)
    assert faults[0].fired
    await bench.settle(2)
    assert faults[1].fired
    assert isinstance(bench.answers[1], AppendFailedError)
    assert fsyncs
    assert loop_thread not in fsyncs
    bench.append(1)
    await bench.settle(3)
    assert bench.answers[2] == [1]


async def test_files_are_not_opened_on_the_event_loop(bench: Bench) -> None:
    """Others may have to let go of theirs for that, and flush first."""
    bench.append(0)
    await bench.settle(1)
    assert bench.log.let_go()
    loop_thread = threading.get_ident()
    opened: list[int] = []

    def note(operation: str, _path: Path) -> None:
        if operation == "open":
            opened.append(threading.get_ident())

    bench.files.on_operation = note
    bench.append(1)
    await bench.settle(2)
    assert opened
    assert loop_thread not in opened


# ---------------------------------------------------------------------- what a cut may have lost


async def ended_by_power_loss(bench: Bench, seed: int) -> int:
    """Where the log ends when the power is cut now; it is stopped where it is damaged."""
    bench.pool.close()
    again = open_log(bench.files.power_loss(seed), config())
    assert not again.stopped
    return again.end_offset


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("seed", range(10))
async def test_a_cut_whose_fsync_fails_is_no_flush(seed: int, *, inline: bool) -> None:
    """It is the only one to hear that pages were lost which had been acknowledged: so say it."""
    bench = Bench(seed)
    for sequence in range(5):
        bench.append(sequence)
        await bench.settle(sequence + 1)
    bench.pool.calm_from = -1 if inline else math.inf
    faults = [
        bench.files.fail_next("write", "*.log", errno.EIO),
        bench.files.fail_next("fsync", "*.log", errno.EIO),
    ]
    bench.append(5)
    await bench.settle(6)
    assert all(each.fired for each in faults)
    assert isinstance(bench.answers[5], LogStoppedError)
    with pytest.raises(LogStoppedError):
        await bench.log.flush()
    bench.pool.close()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("closed", [True, False])
async def test_a_stopped_log_is_flushed(seed: int, *, closed: bool) -> None:
    """Or a snapshot would speak of what a power cut takes away."""
    bench = Bench(seed)
    for sequence in range(3):
        bench.append(sequence)
        await bench.settle(sequence + 1)
    bench.log.stop("the topic's deletion is in doubt")
    if closed:
        bench.log.close()
    else:
        await bench.log.flush()
    assert await ended_by_power_loss(bench, seed) == 3


async def test_a_deleted_log_does_not_touch_one_made_again(bench: Bench) -> None:
    """It was on its way out of the open logs, was busy with its end, and came back into them."""
    bench.append(0)
    await bench.settle(1)
    fault = bench.files.fail_next("write", "*.log", errno.ENOSPC)
    broken = bench.files.fail_next("fsync", "*.log", errno.EIO)
    bench.append(1)
    await bench.settle(2)
    assert fault.fired
    assert broken.fired
    bench.log.delete()
    bench.open_logs._logs.append(bench.log)
    again = open_log(bench.files, config())
    again.append_blocking([simple(number) for number in range(5)])
    bench.open_logs.note(again)
    assert list(bench.open_logs._logs) == [again]
    assert open_log(bench.files.process_death(), config()).end_offset == 5


# ---------------------------------------------------------------------- another policy meanwhile


async def test_a_flush_waits_for_an_append_under_way(bench: Bench) -> None:
    """AlterConfigs makes the policy stricter, and flushes: it began under the policy before."""
    bench.append(0)
    await bench.settle(1)
    await bench.log.flush()
    bench.pool.calm_from = math.inf
    inside, gate = threading.Event(), threading.Event()

    def hold(operation: str, path: Path) -> None:
        if operation == "write" and path.suffix == ".log":
            inside.set()
            assert gate.wait(5)

    bench.files.on_operation = hold
    bench.append(1)
    assert await asyncio.to_thread(inside.wait, 5)
    bench.log.config = LogConfig(fsync=FsyncPolicy.BATCH)
    asyncio.get_running_loop().call_later(0.05, gate.set)
    await bench.log.flush()
    await bench.settle(2)
    assert await ended_by_power_loss(bench, 1) == 2


async def test_what_was_begun_on_the_event_loop_does_not_fsync(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread makes the policy stricter in the middle of it."""
    bench.append(0)
    await bench.settle(1)
    place = bench.log._place

    def changed(batches: Sequence[NewBatch]) -> object:
        bench.log.config = LogConfig(fsync=FsyncPolicy.BATCH)
        return place(batches)

    monkeypatch.setattr(bench.log, "_place", changed)
    steps: list[str] = []
    bench.files.on_operation = lambda operation, _path: steps.append(operation)
    bench.append(1)
    assert "write" in steps
    assert "fsync" not in steps
    bench.files.on_operation = None
    await bench.settle(2)
    await bench.log.flush()
    assert await ended_by_power_loss(bench, 1) == 2
