"""What a review found: each of these was once wrong."""

import errno
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.log.segments.log_start import write_log_start
from pidlease.storage.errors import LogError, LogStoppedError
from pidlease.storage.files import OpenFile, RealFiles
from pidlease.storage.io_pool import IoPool
from pidlease.storage.topics.topic_store import Topic
from tests.sim.batches import TIME_MS, simple
from tests.sim.files import SimFiles
from tests.sim.gate import SimulatedCrash
from tests.unit.log.logs import FOLDER, config, offsets, open_log
from tests.unit.log.test_flush_beside import Held

DATA = Path("/data")


def folder_of(files: SimFiles | RealFiles, path: Path = DATA) -> DataDirectory:
    return DataDirectory(files, path, LogConfig(), cast("IoPool", None))


def waits(work: threading.Thread) -> None:
    """Start a thread that is to wait for a flush."""
    work.start()
    time.sleep(0.1)
    assert work.is_alive()


# ---------------------------------------------------------------------- deleting records


def test_the_start_never_goes_back() -> None:
    held = Held()
    far = threading.Thread(target=held.log.delete_records_blocking, args=(2,))
    near = threading.Thread(target=held.log.delete_records_blocking, args=(1,))
    waits(far)
    waits(near)
    held.let_go()
    far.join(60)
    near.join(60)
    assert held.log.start_offset == 2


def test_a_flush_that_fails_fails_what_waits_for_it() -> None:
    """Or the log would start beyond its end, and hide what is acknowledged later."""
    held = Held(fails=True)
    errors: list[Exception] = []

    def delete() -> None:
        try:
            held.log.delete_records_blocking(2)
        except LogError as error:
            errors.append(error)

    thread = threading.Thread(target=delete)
    waits(thread)
    held.let_go()
    thread.join(60)
    assert errors
    assert not held.files.exists(FOLDER / "log-start")


def test_a_damaged_partition_does_not_show_deleted_records() -> None:
    files = SimFiles(0)
    log = open_log(files, config())
    for number in range(5):
        log.append_blocking([simple(number)])
    log.delete_records_blocking(4)
    files.flip(FOLDER / f"{0:020d}.log", log._active.size - 3, 1)
    again = open_log(files.process_death(), config())
    assert again.stopped
    assert again.start_offset == again.end_offset == 4


def test_a_start_beyond_the_end_stops_the_partition() -> None:
    """The log lost its end, by a repair or a disk that lied: what came then would be hidden."""
    files = SimFiles(0)
    log = open_log(files, config())
    log.append_blocking([simple(0)])
    write_log_start(files, FOLDER, 5)
    again = open_log(files.process_death(), config())
    assert "starts at offset 5" in again.stopped
    with pytest.raises(LogStoppedError):
        again.append_blocking([simple(1)])


def test_what_a_crash_left_aside_is_swept() -> None:
    files = SimFiles(0)
    log = open_log(files, config())
    log.append_blocking([simple(0), simple(1)])

    def die_at_the_rename(operation: str, path: Path) -> None:
        if operation == "rename" and path.name == "log-start":
            files.crash_at(1)

    files.on_operation = die_at_the_rename
    with pytest.raises(SimulatedCrash):
        log.delete_records_blocking(1)
    after = files.process_death()
    open_log(after, config())
    assert not [name for name in after.list(FOLDER) if name.startswith(".aside")]


# ---------------------------------------------------------------------- fsync


@pytest.mark.parametrize("seed", range(5))
def test_an_append_whose_fsync_fails_over_unflushed_ones_stops_the_partition(seed: int) -> None:
    """The fsync policy was made stricter: its failure may tell of what was acknowledged before."""
    files = SimFiles(seed)
    log = open_log(files, config(fsync=FsyncPolicy.INTERVAL))
    log.append_blocking([simple(0), simple(1)])
    log.config = config(fsync=FsyncPolicy.BATCH)
    files.fail_next("fsync", "*.log", errno.EIO)
    with pytest.raises(LogStoppedError):
        log.append_blocking([simple(2)])
    with pytest.raises(LogStoppedError):
        log.flush_blocking()  # asked again it does not say that all is well


def test_the_durable_mark_waits_for_a_flush_that_may_still_fail() -> None:
    """The fsync policy was made stricter meanwhile; the kernel reports a loss to one fsync only."""
    held = Held()
    held.log.config = config(fsync=FsyncPolicy.BATCH)
    held.log.append_blocking([simple(2)])
    assert held.log._mark.read() == 0
    held.let_go()
    assert held.log._mark.read() == 2
    held.log.append_blocking([simple(3)])
    assert held.log._mark.read() == 4


# ---------------------------------------------------------------------- deleting topics


def test_the_longest_name_can_be_deleted(tmp_path: Path) -> None:
    for files, path in ((RealFiles(), tmp_path / "d"), (SimFiles(0), DATA)):
        folder = folder_of(files, path)
        topic = Topic.new("x" * 249, 1)
        folder.make_topic(topic)
        folder.open_partition(topic, 0, 0)
        folder.delete_topic(topic)
        assert folder.topics() == []


def test_a_name_is_free_although_its_last_trace_failed_once() -> None:
    files = SimFiles(0)
    folder = folder_of(files)
    topic = Topic.new("t", 1)
    folder.make_topic(topic)
    folder.open_partition(topic, 0, 0)

    def fail_behind_the_removal(operation: str, path: Path) -> None:
        if operation == "remove" and path.name == "t.gone":
            files.fail_next("fsync_folder", "/data/topics", errno.EIO)

    files.on_operation = fail_behind_the_removal
    folder.delete_topic(topic)
    files.on_operation = None
    folder.make_topic(Topic.new("t", 1))
    assert [each.name for each in folder.topics()] == ["t"]


@pytest.mark.parametrize("ordered", [False, True])
def test_what_a_topic_takes_behind_a_failed_deletion_is_safe(*, ordered: bool) -> None:
    """Once the deletion stood on the disk all the same, and took acknowledged records along."""
    for seed in range(60):
        files = SimFiles(seed, ordered_names=ordered)
        folder = folder_of(files)
        topic = Topic.new("t", 1)
        folder.make_topic(topic)
        log = folder.open_partition(topic, 0, 0)
        files.fail_next("fsync_folder", "/data/topics", errno.EIO)
        with pytest.raises(OSError, match="error"):
            folder.delete_topic(topic)
        log.append_blocking([simple(0)])
        assert [each.name for each in folder_of(files.power_loss(seed)).topics()] == ["t"], seed


def test_a_topic_in_doubt_that_is_then_deleted_can_be_made_again() -> None:
    files = SimFiles(0)
    folder = folder_of(files)
    topic = Topic.new("t", 1)
    folder.make_topic(topic)
    files.fail_next("fsync_folder", "/data/topics", errno.EIO, 2)
    with pytest.raises(OSError, match="error"):
        folder.delete_topic(topic)
    folder.delete_topic(topic)
    again = Topic.new("t", 1)
    folder.make_topic(again)
    assert folder_of(files.power_loss(0)).topics() == [again]


@pytest.mark.parametrize("operation", ["rename", "fsync_folder"])
def test_a_deletion_in_doubt_stops_the_topic(operation: str) -> None:
    files = SimFiles(0)
    folder = folder_of(files)
    topic = Topic.new("t", 1)
    folder.make_topic(topic)
    log = folder.open_partition(topic, 0, 0)
    files.fail_next("fsync_folder", "/data/topics", errno.EIO)
    pattern = "/data/topics/t.json" if operation == "rename" else "/data/topics"
    files.fail_next(operation, pattern, errno.EIO)
    with pytest.raises(OSError, match="error"):
        folder.delete_topic(topic)
    with pytest.raises(LogStoppedError, match="in doubt"):
        log.append_blocking([simple(0)])
    # Its definition would be written beside the one to be deleted: the start removed the logs.
    with pytest.raises(OSError, match="in doubt"):
        folder.make_topic(topic)


# ---------------------------------------------------------------------- open files


class Failing(RealFiles):
    """A disk on which certain files cannot be made."""

    broken = ""

    def open(self, path: Path, *, create: bool = False) -> OpenFile:  # type: ignore[override]
        if create and self.broken and path.match(self.broken):
            raise OSError(errno.ENOSPC, "no space left", str(path))
        return super().open(path, create=create)


def files_open(folder: Path) -> list[str]:
    """Those below a folder: sockets and files of others in this process come and go."""
    found = []
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # gone since
            found.append(os.readlink(f"/proc/self/fd/{each}"))
    return sorted(each for each in found if each.startswith(str(folder)))


def test_retention_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    files = Failing()
    logs = [open_log(files, config(retention_ms=1), folder=tmp_path / f"t-{n}") for n in range(20)]
    for log in logs:
        log.append_blocking([simple(0)])
        assert log.let_go()
    before = files_open(tmp_path)
    files.broken = "*.log"
    for log in logs:
        with pytest.raises(OSError, match="space"):
            log.retain_blocking(10**9, TIME_MS + 10**9)
    assert files_open(tmp_path) == before


def test_a_partition_that_cannot_be_opened_leaves_no_file_open(tmp_path: Path) -> None:
    files = Failing()
    before = files_open(tmp_path)
    files.broken = "*.timeindex"
    for number in range(10):
        with pytest.raises(OSError, match="space"):
            open_log(files, config(), folder=tmp_path / f"t-{number}")
    assert files_open(tmp_path) == before


def test_all_is_well_again_when_the_disk_is(tmp_path: Path) -> None:
    files = Failing()
    log = open_log(files, config(400), folder=tmp_path / "t-0")
    log.append_blocking([simple(0), simple(1)])
    files.broken = "*.log"
    with pytest.raises(LogError):
        log.append_blocking([simple(n, size=200) for n in range(2)])
    files.broken = ""
    assert log.append_blocking([simple(2)]) == [2]
    assert offsets(log) == [0, 1, 2]
