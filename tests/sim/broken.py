"""Deliberately broken variants, each of which the harness must notice."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import pytest

from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.core.buffer import Buffer
from pidlease.core.judge import ADMIT, Verdict
from pidlease.core.state import Batch
from pidlease.engine import partition as partition_module
from pidlease.engine.appenders.failed_batches import FailedFirsts
from pidlease.engine.partition import Partition
from pidlease.engine.producer_table import ProducerTable
from pidlease.kafka.records.record_batch import BatchHeader
from pidlease.log.segments import segment as segment_module
from pidlease.log.segments.segment import ActiveSegment
from pidlease.storage.files import OpenFile
from tests.sim.files import SimFiles
from tests.sim.world import Wrap

Break = Callable[[pytest.MonkeyPatch], None]


class ForgetfulFile:
    """A file that says it was fsynced, and was not."""

    def __init__(self, inner: OpenFile) -> None:
        self._inner = inner
        self.read_at = inner.read_at
        self.read_cached = inner.read_cached
        self.size = inner.size
        self.truncate = inner.truncate
        self.is_at = inner.is_at
        self.modified_ms = inner.modified_ms
        self.close = inner.close

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        """See `OpenFile`."""
        self._inner.write_at(buffers, position)

    def fsync(self) -> None:
        """Do nothing."""


class ForgetfulFiles:
    """A file system without fsync of files whose names match, or without fsync of folders."""

    def __init__(self, inner: SimFiles, suffix: str | None, *, folders: bool) -> None:
        self._inner = inner
        self._suffix = suffix
        self._folders = folders
        self.open_readonly = inner.open_readonly
        self.exists = inner.exists
        self.is_folder = inner.is_folder
        self.list = inner.list
        self.make_folder = inner.make_folder
        self.rename = inner.rename
        self.remove = inner.remove
        self.lock = inner.lock
        self.lock_shared = inner.lock_shared

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        """See `Files`."""
        opened = self._inner.open(path, create=create)
        forgets = self._suffix is not None and path.name.endswith(self._suffix)
        return ForgetfulFile(opened) if forgets else opened

    def fsync_folder(self, folder: Path) -> None:
        """See `Files`."""
        if not self._folders:
            self._inner.fsync_folder(folder)


#: Wrappers of the file system.
BROKEN_FILES: Final[dict[str, Wrap]] = {
    "no fsync of logs": lambda files: ForgetfulFiles(files, ".log", folders=False),
    "no fsync of the PID sequence": lambda files: ForgetfulFiles(files, "blocks", folders=False),
    "no fsync of folders": lambda files: ForgetfulFiles(files, None, folders=True),
}


def skip_replay(patch: pytest.MonkeyPatch) -> None:
    def replay(self: ProducerTable, headers: Iterable[BatchHeader], _now_ms: int) -> None:
        for header in headers:
            self.next_offset = header.last_offset + 1

    patch.setattr(ProducerTable, "replay", replay)


def keep_torn_tails(patch: pytest.MonkeyPatch) -> None:
    def cut(self: ActiveSegment) -> None:
        self.size = self.log.size()

    patch.setattr(ActiveSegment, "cut", cut)


def never_torn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segment_module, "is_torn", lambda *_args: False)


def keep_pushed(patch: pytest.MonkeyPatch) -> None:
    original = Partition._fall_back

    def fall_back(self: Partition, pid: int, batch: Batch) -> None:
        pushed = self._pushed.get(pid)
        original(self, pid, batch)
        if pushed is not None:
            self._pushed[pid] = pushed
            self._in_flight[pid] = deque()

    patch.setattr(Partition, "_fall_back", fall_back)


def fail_alone(patch: pytest.MonkeyPatch) -> None:
    """A failed append takes nothing with it, and holds nobody off."""
    patch.setattr(FailedFirsts, "holds", lambda *_args: False)


def admit_all(patch: pytest.MonkeyPatch) -> None:
    def judge(*_args: object) -> Verdict:
        return ADMIT

    patch.setattr(partition_module, "judge", judge)


def forget_the_tail_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    """A start that counts what it finds in the page cache."""
    original = ActiveSegment.recover

    def recover(self: ActiveSegment, recovery_offset: int, *, clean: bool, durable: int = 0) -> int:
        log = self.log
        self._log = ForgetfulFile(log)
        try:
            return original(self, recovery_offset, clean=clean, durable=durable)
        finally:
            self._log = log

    patch.setattr(ActiveSegment, "recover", recover)


def reuse_blocks(patch: pytest.MonkeyPatch) -> None:
    """Blocks are recorded only after they were used."""
    patch.setattr(FileSequence, "_append", lambda *_args: None)


BROKEN_CODE: Final[dict[str, Break]] = {
    "replay skipped": skip_replay,
    "torn tail kept": keep_torn_tails,
    "torn tail taken for damage": never_torn,
    "pushed not rolled back": keep_pushed,
    "successors of a failed batch not held": fail_alone,
    "judge admits all": admit_all,
    "found tail not fsynced": forget_the_tail_is_not_durable,
    "blocks not recorded": reuse_blocks,
}
