"""The PID sequence from a file: a number that was handed out is never handed out again."""

import errno
import threading
from pathlib import Path

import pytest

from pidlease.coordination.file import file_sequence as module
from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.coordination.pid_sequence import SequenceError
from pidlease.core.blocks import PidBlock
from pidlease.storage.files import Files, read_file
from tests.sim.files import SimFiles, SimulatedCrash

PATH = Path("/data/sequence/blocks")
SEEDS = range(25)
DAY_MS = 24 * 3600 * 1000


def open_sequence(files: Files, now_ms: int = 1000, keep_ms: int = DAY_MS) -> FileSequence:
    return FileSequence(files, PATH, "me", lambda: now_ms, keep_ms)


def numbers(blocks: list[PidBlock]) -> list[int]:
    return [number for block in blocks for number in range(block.first, block.end)]


def assert_distinct(blocks: list[PidBlock]) -> None:
    handed = numbers(blocks)
    assert len(handed) == len(set(handed)), "a PID was handed out twice"


def test_blocks_of_a_hundred_from_one() -> None:
    sequence = open_sequence(SimFiles(), now_ms=77)
    blocks = [sequence.take() for _ in range(3)]
    assert blocks == [PidBlock(first, 100, 77, "me") for first in (1, 101, 201)]
    assert sequence.blocks() == blocks


def test_blocks_with_their_times_survive_any_power_cut() -> None:
    files = SimFiles()
    sequence = open_sequence(files)
    blocks = [sequence.take() for _ in range(5)]
    for seed in SEEDS:
        again = open_sequence(files.power_loss(seed))
        assert again.blocks() == blocks
        assert again.take().first == 501


@pytest.mark.parametrize(
    ("at_least", "first"), [(1, 1), (2, 101), (100, 101), (101, 101), (102, 201), (12_345, 12_401)]
)
def test_a_block_begins_at_least_where_asked(at_least: int, first: int) -> None:
    files = SimFiles()
    sequence = open_sequence(files)
    assert sequence.take(at_least).first == first
    assert sequence.take().first == first + 100
    assert open_sequence(files.process_death()).take(5).first == first + 200


def test_threads_get_distinct_blocks() -> None:
    sequence = open_sequence(SimFiles())
    taken: list[PidBlock] = []

    def take() -> None:
        for _ in range(20):
            taken.append(sequence.take())  # noqa: PERF401

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_distinct(taken)
    assert len(taken) == 80


# ---------------------------------------------------------------------- crashes


def take_some(files: SimFiles, taken: list[PidBlock], count: int = 3) -> None:
    sequence = open_sequence(files)
    for _ in range(count):
        taken.append(sequence.take())  # noqa: PERF401


@pytest.mark.parametrize("torn", [True, False])
@pytest.mark.parametrize("second_power", [True, False])
def test_a_crash_at_every_step_and_then_another_one(torn: bool, second_power: bool) -> None:
    """Kill -9, a run that ends with a power cut or a kill -9, and a third: all are distinct."""
    losses = steps = 0
    for step in range(1, 100):
        files = SimFiles(step)
        files.crash_at(step, torn=torn)
        before: list[PidBlock] = []
        try:
            take_some(files, before)
        except SimulatedCrash:
            steps += 1
        else:
            break
        for seed in (None, *SEEDS):
            view = files.process_death() if seed is None else files.power_loss(seed)
            taken = list(before)
            view.crash_at(9 + step % 5)
            with pytest.raises(SimulatedCrash):
                take_some(view, taken, 20)
            last = view.power_loss(seed) if second_power else view.process_death()
            losses += last.lost_writes + last.lost_names + view.lost_writes + view.lost_names
            take_some(last, taken)
            assert_distinct(taken)
    assert steps > 10
    assert losses > 0


def test_a_crash_between_the_creation_of_the_file_and_its_folders_fsync() -> None:
    """The name is in the page cache only; who finds it there must make it durable."""
    for step in range(1, 30):
        files = SimFiles(step)
        files.crash_at(step)
        try:
            open_sequence(files)
        except SimulatedCrash:
            files = files.process_death()
        else:
            assert step > 5
            return
        taken: list[PidBlock] = []
        take_some(files, taken)
        for seed in SEEDS:
            after = list(taken)
            take_some(files.power_loss(seed), after)
            assert_distinct(after)


# ---------------------------------------------------------------------- damage


def content_of(blocks: int) -> bytes:
    files = SimFiles()
    take_some(files, [], blocks)
    return read_file(files, PATH)


def with_content(content: bytes) -> SimFiles:
    files = SimFiles()
    open_sequence(files)
    files.cut(PATH, 0)
    files.open(PATH).write_at([content], 0)
    return files.process_death()


def test_a_line_torn_at_every_byte_hands_nothing_out_twice() -> None:
    content = content_of(3)
    start = sum(map(len, content.splitlines(keepends=True)[:3]))
    for size in range(start, len(content)):
        for zeros in (0, len(content) - size):
            sequence = open_sequence(with_content(content[:size] + bytes(zeros)))
            assert [block.first for block in sequence.blocks()] == [1, 101]
            taken = [sequence.take() for _ in range(2)]
            # It may have been used, if it was damaged and not torn.
            assert taken[0].first >= (201 if size == start and not zeros else 301), (size, zeros)
            assert_distinct(taken)


def test_any_flipped_bit_is_refused_or_hands_nothing_out_twice() -> None:
    content = content_of(3)
    refused = 0
    for position in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            files = with_content(bytes(flipped))
            try:
                sequence = open_sequence(files)
            except SequenceError:
                refused += 1
                continue
            taken = sequence.take().first
            assert taken >= 301, (position, bit)
            again = open_sequence(files.power_loss(position))
            assert again.take().first >= taken + 100
    assert refused > len(content) * 4


def test_damage_in_the_middle_is_refused_and_the_file_is_left_alone() -> None:
    content = content_of(4)
    damaged = content.replace(b'"first":101', b'"first":901')
    files = with_content(damaged)
    with pytest.raises(SequenceError, match="line 3 is damaged; take the file from a backup"):
        open_sequence(files)
    assert read_file(files, PATH) == damaged


def test_a_block_that_overlaps_one_before_is_refused() -> None:
    content = content_of(2)
    with pytest.raises(SequenceError, match="line 4"):
        open_sequence(with_content(content + content[content.index(b"\n") + 1 :]))


def test_a_file_that_was_emptied_is_refused() -> None:
    for content in (b"", content_of(2)[:10]):
        with pytest.raises(SequenceError, match=r"(is empty|line 1 is damaged).* from a backup"):
            open_sequence(with_content(content))


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("operation", ["open", "truncate", "write", "fsync"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_take_hands_out_nothing_and_the_next_one_goes_on(
    operation: str, error: int
) -> None:
    files = SimFiles(6)
    sequence = open_sequence(files)
    taken = [sequence.take()]
    failure = files.fail_next(operation, str(PATH), error)
    with pytest.raises(SequenceError, match="no block could be recorded"):
        sequence.take()
    assert failure.fired == 1
    assert sequence.blocks() == taken
    taken.append(sequence.take())
    for seed in SEEDS:
        after = list(taken)
        take_some(files.power_loss(seed), after)
        assert_distinct(after)


def test_a_full_disk_refuses_until_there_is_room() -> None:
    files = SimFiles()
    sequence = open_sequence(files)
    first = sequence.take()
    files.capacity = files.tree.used_bytes() + 20
    for _ in range(3):
        with pytest.raises(SequenceError):
            sequence.take()
    files.capacity = None
    second = sequence.take()
    assert_distinct([first, second])
    assert open_sequence(files.process_death()).blocks() == [first, second]


@pytest.mark.parametrize("operation", ["open_readonly", "read", "make_folder", "fsync_folder"])
def test_a_file_that_cannot_be_read_is_told(operation: str) -> None:
    files = SimFiles()
    files.fail_next(operation)
    with pytest.raises(SequenceError, match="blocks"):
        open_sequence(files)


# ---------------------------------------------------------------------- compaction


def test_compaction_keeps_young_blocks_and_hands_nothing_out_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LINES_MAX", 10)
    files = SimFiles()
    clock = 0
    sequence = FileSequence(files, PATH, "me", lambda: clock, 500)
    taken = []
    for index in range(60):
        clock = index * 100
        taken.append(sequence.take())
    assert_distinct(taken)
    assert len(read_file(files, PATH).splitlines()) <= 11
    for seed in SEEDS:
        kept = open_sequence(files.power_loss(seed)).blocks()
        assert numbers(kept) == numbers(taken)
        assert kept[-5:] == taken[-5:], "a young block lost its time"


@pytest.mark.parametrize("torn", [True, False])
def test_a_crash_at_every_step_of_a_compaction(monkeypatch: pytest.MonkeyPatch, torn: bool) -> None:
    monkeypatch.setattr(module, "_LINES_MAX", 4)
    for step in range(1, 40):
        files = SimFiles(step)
        before: list[PidBlock] = []
        sequence = FileSequence(files, PATH, "me", lambda: 5000, 10)
        before.extend(sequence.take() for _ in range(4))
        files.crash_at(step, torn=torn)
        try:
            before.append(sequence.take())
        except SimulatedCrash:
            pass
        else:
            assert step > 6
            return
        for seed in (None, *SEEDS):
            view = files.process_death() if seed is None else files.power_loss(seed)
            taken = list(before)
            take_some(view, taken, 2)
            # And another one behind it: the new file's name must be on the disk by now.
            take_some(view.power_loss(seed), taken, 2)
            assert_distinct(taken)


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "rename", "fsync_folder"])
def test_a_failed_compaction_costs_an_error_and_no_number(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(module, "_LINES_MAX", 4)
    files = SimFiles()
    taken: list[PidBlock] = []
    sequence = FileSequence(files, PATH, "me", lambda: 5000, 10)
    taken.extend(sequence.take() for _ in range(4))
    failure = files.fail_next(operation)
    with pytest.raises(SequenceError):
        sequence.take()
    assert failure.fired == 1
    taken.extend(sequence.take() for _ in range(3))
    for seed in SEEDS:
        after = list(taken)
        take_some(files.power_loss(seed), after)
        assert_distinct(after)
