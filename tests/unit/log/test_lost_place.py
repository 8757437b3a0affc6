"""The data directory or a log is removed, moved or replaced under the server: it stops."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.name_bindings import Binding, NamesError
from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.storage.errors import AppendFailedError, LogStoppedError, NotOwnerError
from pidlease.storage.files import RealFiles
from pidlease.storage.io_pool import IoPool
from pidlease.storage.topics.topic_store import Topic
from tests.sim.batches import simple

TOPIC = Topic.new("t", 2)


class Served:
    """A data directory with two logs, of which a record was acknowledged each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = RealFiles()
        config = LogConfig(fsync=FsyncPolicy.NEVER)
        self.folder = DataDirectory(self.files, path, config, cast("IoPool", None))
        self.folder.make_topic(TOPIC)
        self.names = FileNames(self.files, self.folder.names)
        self.logs = [self.log(number) for number in range(2)]

    def log(self, number: int) -> EmbeddedPartitionLog:
        log = self.folder.open_partition(TOPIC, number, 0)
        log.append_blocking([simple(0)])
        return log


def _remove(path: Path) -> None:
    shutil.rmtree(path)


def _move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def _replace(path: Path) -> None:
    """As by a backup that is put back while the server runs."""
    shutil.copytree(path, path.with_name("backup"))
    shutil.rmtree(path)
    path.with_name("backup").rename(path)


def _lose_the_lock(path: Path) -> None:
    (path / "lock").unlink()


def tree(path: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() if each.is_file() else b"" for each in path.rglob("*")}


@pytest.mark.parametrize("act", [_remove, _move, _replace, _lose_the_lock])
def test_nothing_is_acknowledged_or_written_without_the_directory(
    tmp_path: Path, act: Callable[[Path], None]
) -> None:
    """Once a bug: appends went on into files without names."""
    served = Served(tmp_path / "data")
    served.folder.check_place()
    assert served.folder.lost == ""
    act(served.path)
    before = tree(tmp_path)
    with pytest.raises(NotOwnerError, match="removed, moved or replaced"):
        served.folder.check_owned()
    with pytest.raises(NamesError, match="not stored"):
        served.names.change("a", None, Binding(7, 0))
    with capture_logs() as lines:
        for _ in range(2):
            served.folder.check_place()
    assert [line["log_level"] for line in lines] == ["critical"]
    assert served.folder.lost
    for log in served.logs:
        with pytest.raises(LogStoppedError, match="removed, moved or replaced"):
            log.append_blocking([simple(1)])
    with pytest.raises(OSError, match="removed, moved or replaced") as error:
        served.folder.make_topic(Topic.new("u", 1))
    assert error.value.errno == errno.ESTALE
    served.folder.close()
    assert tree(tmp_path) == before, "a clean stop, or anything else, was written"


@pytest.mark.parametrize("act", [_remove, _move, _replace])
def test_a_log_without_its_folder_is_stopped_and_no_other(
    tmp_path: Path, act: Callable[[Path], None]
) -> None:
    served = Served(tmp_path / "data")
    act(served.path / "logs" / "t-0")
    served.folder.check_place()
    assert served.folder.lost == ""
    with pytest.raises(LogStoppedError, match="removed, moved or replaced under the server"):
        served.logs[0].append_blocking([simple(1)])
    assert served.logs[1].append_blocking([simple(1)]) == [1]


def test_a_log_that_holds_no_file_open_notices_it_when_it_is_used(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    gone, shorter = served.logs
    assert all(log.let_go() for log in served.logs)
    _remove(served.path / "logs" / "t-0")
    segment = served.path / "logs" / "t-1" / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-1])
    served.folder.check_place()
    with pytest.raises(AppendFailedError, match="nothing was written"):
        gone.append_blocking([simple(1)])
    with pytest.raises(LogStoppedError, match="shorter"):
        shorter.append_blocking([simple(1)])
