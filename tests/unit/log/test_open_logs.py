"""Only so many partitions hold files open; what they were given stands all the same."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.log.segments.open_logs import OpenLogs
from pidlease.storage.errors import LogStoppedError
from pidlease.storage.files import RealFiles
from pidlease.storage.io_pool import IoPool
from pidlease.storage.topics.topic_store import Topic
from tests.sim.batches import simple
from tests.sim.files import SimFiles
from tests.unit.log.logs import config, offsets, open_log


class Now:
    """Does what it is given at once (in place of an `IoPool`)."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as the pool does
            result = error
        done(result)


def folder_of(path: Path, limit: int, fsync: FsyncPolicy) -> DataDirectory:
    config = LogConfig(segment_bytes=2000, retention_ms=-1, fsync=fsync)
    pool: IoPool = Now()  # type: ignore[assignment]
    return DataDirectory(RealFiles(), path, config, pool, open_logs_max=limit)


def files_open(path: Path) -> int:
    """How many files below a path this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(f"{path}/logs")
        except FileNotFoundError:
            continue
    return found


@pytest.mark.parametrize("fsync", list(FsyncPolicy))
def test_a_hundred_partitions_and_ten_open(tmp_path: Path, fsync: FsyncPolicy) -> None:
    folder = folder_of(tmp_path / "d", 10, fsync)
    topic = Topic.new("t", 100)
    folder.make_topic(topic)
    logs = [folder.open_partition(topic, number, 0) for number in range(100)]
    most = 0
    for turn in range(12):
        for log in logs:
            assert log.append_blocking([simple(n) for n in range(3)]) == [
                turn * 3 + n for n in range(3)
            ]
            most = max(most, files_open(tmp_path / "d"))
    assert 10 <= most <= 11 * 4
    assert len(folder.open_logs) <= 10
    assert all(len(log.view.segments) > 1 for log in logs), "segments were rolled on the way"
    assert all(offsets(log) == list(range(36)) for log in logs)
    folder.close()
    assert files_open(tmp_path / "d") == 0
    again = folder_of(tmp_path / "d", 10, fsync)
    assert again.clean
    for number in range(100):
        log = again.open_partition(topic, number, 0)
        assert offsets(log) == list(range(36))
        assert log.append_blocking([simple(1)]) == [36]
    again.close()


def test_who_is_used_has_a_second_chance(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "d", 3, FsyncPolicy.NEVER)
    topic = Topic.new("t", 30)
    folder.make_topic(topic)
    busy = folder.open_partition(topic, 0, 0)
    reopened = 0
    for number in range(1, 30):
        busy.append_blocking([simple(1)])
        folder.open_partition(topic, number, 0).append_blocking([simple(1)])
        reopened += not busy._holds_files
    assert reopened <= 1
    folder.close()


def test_what_cannot_be_closed_stays_open() -> None:
    class Stubborn:
        recent = False
        asked = 0

        def let_go(self) -> bool:
            self.asked += 1
            raise OSError(5, "Input/output error")

    open_logs = OpenLogs(1)
    stubborn = [Stubborn(), Stubborn(), Stubborn()]
    for each in stubborn:
        open_logs.note(each)
    assert len(open_logs) == 3
    assert stubborn[0].asked


def test_a_log_that_is_busy_is_passed_by(tmp_path: Path) -> None:
    """Two threads that append, each over the limit, may not wait for each other's log."""
    folder = folder_of(tmp_path / "d", 1, FsyncPolicy.NEVER)
    topic = Topic.new("t", 3)
    folder.make_topic(topic)
    logs = [folder.open_partition(topic, number, 0) for number in range(3)]
    assert files_open(tmp_path / "d") == 0, "a log that nobody writes to holds none"
    logs[0].append_blocking([simple(0)])
    with logs[0]._lock:
        logs[1].append_blocking([simple(0)])
        assert len(folder.open_logs) == 2
    logs[2].append_blocking([simple(0)])
    assert len(folder.open_logs) <= 2
    folder.close()


def test_a_log_that_let_go_is_read_flushed_and_deleted(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "d", 3, FsyncPolicy.NEVER)
    topic = Topic.new("t", 1)
    folder.make_topic(topic)
    log: EmbeddedPartitionLog = folder.open_partition(topic, 0, 0)
    log.append_blocking([simple(0), simple(1)])
    assert log.let_go()
    assert files_open(tmp_path / "d") == 0
    log.flush_blocking()
    log.delete_records_blocking(1)
    assert offsets(log) == [1]
    log.retain_blocking(0, 0)
    assert files_open(tmp_path / "d") == 0
    folder.delete_topic(topic)
    assert os.listdir(tmp_path / "d" / "logs") == []
    folder.close()


def test_what_a_log_was_given_is_durable_when_it_lets_go() -> None:
    """The kernel tells a failed write to who has the file open: nobody has it afterwards."""
    files = SimFiles(3)
    log = open_log(files, config(fsync=FsyncPolicy.NEVER))
    log.append_blocking([simple(0), simple(1)])
    assert log.let_go()
    for seed in range(4):
        assert offsets(open_log(files.power_loss(seed), config())) == [0, 1]


def test_a_log_that_cannot_be_made_durable_does_not_let_go_quietly() -> None:
    files = SimFiles(3)
    log = open_log(files, config(fsync=FsyncPolicy.NEVER))
    log.append_blocking([simple(0)])
    files.fail_next("fsync", "*.log")
    with pytest.raises(LogStoppedError):
        log.let_go()
    assert "fsync" in log.stopped
