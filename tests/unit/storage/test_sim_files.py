"""The simulated file system's faults, crash points, and what survives the process."""

import errno
import threading
import time
from pathlib import Path

import pytest

from pidlease.storage.files import make_durable_folder, read_file, write_aside
from tests.sim.files import SimFiles, SimulatedCrash
from tests.sim.gate import OPERATIONS

FOLDER = Path("/data")
PATH = FOLDER / "a.log"


@pytest.fixture
def files() -> SimFiles:
    files = SimFiles()
    make_durable_folder(files, FOLDER)
    return files


def test_a_process_death_keeps_what_was_written_but_makes_nothing_durable(files: SimFiles) -> None:
    opened = files.open(PATH, create=True)
    opened.write_at([b"page cache"], 0)
    files.lock(FOLDER / "lock", "first")
    restarted = files.process_death()
    assert read_file(restarted, PATH) == b"page cache"
    restarted.lock(FOLDER / "lock", "second").release()
    assert not all(restarted.power_loss(seed).exists(PATH) for seed in range(30))


def test_what_was_opened_before_a_power_loss_is_dead(files: SimFiles) -> None:
    opened, lock = files.open(PATH, create=True), files.lock(FOLDER / "lock", "first")
    files.fsync_folder(FOLDER)
    after = files.power_loss(1)
    for action in (opened.size, opened.fsync, lambda: files.exists(PATH)):
        with pytest.raises(OSError, match="Input/output error"):
            action()
    with pytest.raises(OSError, match="Input/output error"):
        opened.write_at([b"ghost"], 0)
    opened.close()
    lock.release()
    assert read_file(after, PATH) == b""
    after.lock(FOLDER / "lock", "second")


def test_the_same_seed_loses_the_same(files: SimFiles) -> None:
    opened = files.open(PATH, create=True)
    files.fsync_folder(FOLDER)
    opened.write_at([b"x" * 20_000], 0)
    twice = [[read_file(files.power_loss(seed), PATH) for seed in range(30)] for _ in range(2)]
    assert twice[0] == twice[1]
    assert len(set(twice[0])) > 5


def test_fail_next_fails_and_counts(files: SimFiles) -> None:
    failure = files.fail_next("write", "*.log", errno.ENOSPC, count=2)
    opened, other = files.open(PATH, create=True), files.open(FOLDER / "b", create=True)
    other.write_at([b"not matched"], 0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            opened.write_at([b"x"], 0)
    opened.write_at([b"y"], 0)
    assert failure.fired == 2
    assert read_file(files, PATH) == b"y"


def touch_everything(files: SimFiles) -> None:
    files.make_folder(FOLDER)
    files.lock(FOLDER / "lock", "me").release()
    opened = files.open(PATH, create=True)
    opened.write_at([b"x"], 0)
    opened.truncate(0)
    opened.fsync()
    files.open_readonly(PATH).read_at(opened.size(), 0)
    files.rename(PATH, FOLDER / "b")
    assert files.list(FOLDER) == ["b", "lock"]
    files.fsync_folder(FOLDER)
    assert not files.is_folder(FOLDER / "b")
    files.remove(FOLDER / "b")
    assert not files.exists(FOLDER / "b")


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_fail_next_knows_every_operation(files: SimFiles, operation: str) -> None:
    failure = files.fail_next(operation)
    with pytest.raises(OSError, match="Input/output error"):
        touch_everything(files)
    assert failure.fired == 1
    files = files.process_death()
    assert files.fail_next(operation, "/elsewhere/*").fired == 0
    touch_everything(files)


def test_a_failed_fsync_is_not_repaired_by_the_next_one(files: SimFiles) -> None:
    opened = files.open(PATH, create=True)
    files.fsync_folder(FOLDER)
    found = set()
    lost = 0
    for seed in range(40):
        alive = files.process_death()
        alive.random.seed(seed)
        opened = alive.open(PATH)
        opened.write_at([b"x"], 0)
        alive.fail_next("fsync")
        with pytest.raises(OSError, match="Input/output error"):
            opened.fsync()
        opened.fsync()
        assert opened.read_at(1, 0) == b"x"
        after = alive.power_loss(seed)
        found.add(read_file(after, PATH))
        lost += after.lost_writes
    assert found == {b"", b"\0", b"x"}
    assert lost > 0


def test_an_fsync_does_not_cover_what_comes_during_it(files: SimFiles) -> None:
    opened = files.open(PATH, create=True)
    files.fsync_folder(FOLDER)
    opened.write_at([b"before"], 0)

    def write_meanwhile(operation: str, path: Path) -> None:
        if operation == "fsync":
            opened.write_at([b"during"], 6)

    files.on_operation = write_meanwhile
    opened.fsync()
    files.on_operation = None
    found = {read_file(files.power_loss(seed), PATH) for seed in range(30)}
    assert found == {b"before", b"before" + bytes(6), b"beforeduring"}


def test_a_full_disk_takes_a_part_and_freed_space_counts_again(files: SimFiles) -> None:
    files.capacity = 1000
    other = files.open(FOLDER / "b", create=True)
    other.write_at([bytes(600)], 0)
    opened = files.open(PATH, create=True)
    with pytest.raises(OSError, match="No space left"):
        opened.write_at([b"x" * 300, b"y" * 300], 0)
    assert read_file(files, PATH) == b"x" * 300 + b"y" * 100
    opened.write_at([b"z"], 0)  # takes no new space
    with pytest.raises(OSError, match="No space left"):
        opened.truncate(401)
    files.remove(FOLDER / "b")
    opened.write_at([b"y" * 600], 400)
    assert opened.size() == 1000
    assert files.process_death().capacity == 1000


def test_a_readonly_disk_refuses_every_change(files: SimFiles) -> None:
    opened = files.open(PATH, create=True)
    opened.write_at([b"x"], 0)
    done = len(files.trace)
    files.read_only = True
    for action in (
        lambda: files.open(PATH),
        lambda: files.open(FOLDER / "b", create=True),
        lambda: opened.write_at([b"y"], 0),
        lambda: opened.truncate(0),
        opened.fsync,
        lambda: files.make_folder(FOLDER / "sub"),
        lambda: files.rename(PATH, FOLDER / "b"),
        lambda: files.remove(PATH),
        lambda: files.fsync_folder(FOLDER),
        lambda: files.lock(FOLDER / "lock", "me"),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            action()
    files.make_folder(FOLDER)
    assert read_file(files, PATH) == b"x"
    assert len(files.trace) == done


def test_crash_points_are_those_of_the_trace(files: SimFiles) -> None:
    before = files
    files = before.process_death()
    write_aside(files, PATH, [b"one", b"two"])
    operations = [step.operation for step in files.trace]
    assert operations == ["open", "truncate", "write", "write", "fsync", "rename", "fsync_folder"]
    assert files.trace[5].path == str(PATH)
    for number in range(1, len(operations) + 1):
        files = before.process_death()
        files.crash_at(number)
        with pytest.raises(SimulatedCrash, match=f"before {operations[number - 1]} "):
            write_aside(files, PATH, [b"one", b"two"])
        assert [step.operation for step in files.trace] == operations[: number - 1]
        with pytest.raises(SimulatedCrash):
            files.open(FOLDER / "later", create=True)
        assert files.crashed


def test_a_crash_may_tear_the_write_it_meets(files: SimFiles) -> None:
    opened = files.open(PATH, create=True)
    files.crash_at(1, torn=True)
    for _ in range(2):  # a dead process writes nothing more
        with pytest.raises(SimulatedCrash):
            opened.write_at([b"12", b"34"], 0)
    assert read_file(files.process_death(), PATH) == b"12"


def test_damage_is_on_the_disk(files: SimFiles) -> None:
    opened = files.open(PATH, create=True)
    opened.write_at([b"abcdef"], 0)
    files.fsync_folder(FOLDER)
    files.flip(PATH, 1, 0)
    assert all(read_file(files.power_loss(seed), PATH) == b"accdef" for seed in range(20))
    files = files.process_death()
    files.open(PATH).write_at([b"z"], 0)
    files.cut(PATH, 4)
    assert all(read_file(files.power_loss(seed), PATH) == b"zccd" for seed in range(20))


def test_hooks_see_every_operation_and_may_sleep_without_holding_others_up(
    files: SimFiles,
) -> None:
    seen: list[tuple[str, str]] = []
    opened = files.open(PATH, create=True)
    asleep, wake = threading.Event(), threading.Event()

    def hook(operation: str, path: Path) -> None:
        seen.append((operation, path.name))
        if operation == "fsync":
            asleep.set()
            assert wake.wait(10)

    files.on_operation = hook
    thread = threading.Thread(target=opened.fsync)
    thread.start()
    assert asleep.wait(10)
    opened.write_at([b"x"], 0)
    assert opened.read_at(1, 0) == b"x"
    wake.set()
    thread.join()
    assert seen == [("fsync", "a.log"), ("write", "a.log"), ("read", "a.log")]


def test_threads_write_and_fsync_at_once(files: SimFiles) -> None:
    opened = files.open(PATH, create=True)
    files.fsync_folder(FOLDER)

    def append(lane: int) -> None:
        for index in range(200):
            opened.write_at([bytes([lane]) * 10], (index * 4 + lane) * 10)
            opened.fsync()

    started = time.monotonic()
    threads = [threading.Thread(target=append, args=(lane,)) for lane in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = b"".join(bytes([lane]) * 10 for lane in range(4)) * 200
    assert read_file(files.power_loss(0), PATH) == expected
    assert time.monotonic() - started < 10
