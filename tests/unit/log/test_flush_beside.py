"""A flush beside appends: nobody waits for it who need not, and what it finds out counts."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pidlease.core.log_config import FsyncPolicy
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.storage.errors import LogStoppedError
from tests.servers.waiting import WAIT_S
from tests.sim.batches import simple
from tests.sim.files import SimFiles
from tests.unit.log.logs import config, offsets, open_log

WAIT_SECONDS = WAIT_S


class Held:
    """A log whose flush is in the middle of its fsync, in a thread, until it is let go."""

    def __init__(self, *, segment_bytes: int = 1 << 20, fails: bool = False) -> None:
        self.files = SimFiles(0)
        self.log: EmbeddedPartitionLog = open_log(
            self.files, config(segment_bytes, fsync=FsyncPolicy.NEVER)
        )
        self.log.append_blocking([simple(0), simple(1)])
        self._reached, self._go_on = threading.Event(), threading.Event()
        self._holding = True
        if fails:
            self.files.fail_next("fsync", "*.log", errno.EIO)
        self.files.on_operation = self._hold
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._flush, daemon=True)
        self.thread.start()
        assert self._reached.wait(WAIT_SECONDS)

    def _flush(self) -> None:
        try:
            self.log.flush_blocking()
        except LogStoppedError as error:
            self.error = error

    def _hold(self, operation: str, path: Path) -> None:
        if operation == "fsync" and path.suffix == ".log" and self._holding:
            self._holding = False
            self._reached.set()
            assert self._go_on.wait(WAIT_SECONDS)

    def let_go(self) -> None:
        self._go_on.set()
        self.thread.join(WAIT_SECONDS)
        assert not self.thread.is_alive()


def test_an_append_does_not_wait_for_it() -> None:
    """Once a fault: a snapshot's flush held a producer up for as long as the disk took."""
    held = Held()
    assert held.log.append_blocking([simple(2)]) == [2]
    assert held.thread.is_alive()
    held.let_go()
    assert held.error is None
    assert held.log._unflushed, "the one that came meanwhile is not flushed"
    held.log.flush_blocking()
    again = open_log(held.files.power_loss(1), config())
    assert offsets(again) == [0, 1, 2]


def test_it_does_not_say_that_all_is_well_when_another_fsync_has_failed() -> None:
    """The kernel tells of lost pages once: here to the cut of an append that failed."""
    held = Held()
    held.files.fail_next("write", "*.log", errno.ENOSPC)
    fault = held.files.fail_next("fsync", "*.log", errno.EIO)
    with pytest.raises(LogStoppedError):
        held.log.append_blocking([simple(2)])
    assert fault.fired
    held.let_go()
    assert isinstance(held.error, LogStoppedError)
    assert held.log._mark.read() == 0


def test_the_mark_says_what_the_fsync_covered() -> None:
    held = Held()
    held.log.append_blocking([simple(2)])
    held.let_go()
    assert held.log._mark.read() == 2


def test_a_roll_meanwhile_leaves_the_old_segment_open_for_it() -> None:
    held = Held(segment_bytes=400)
    assert [held.log.append_blocking([simple(n)]) for n in range(2, 9)] == [
        [n] for n in range(2, 9)
    ]
    assert len(held.log.view.segments) > 1
    held.let_go()
    assert held.error is None
    assert offsets(held.log) == list(range(9))
    held.log.close()


@pytest.mark.parametrize(
    "work",
    [
        EmbeddedPartitionLog.close,
        EmbeddedPartitionLog.delete,
        lambda log: log.delete_records_blocking(1),
        EmbeddedPartitionLog.flush_blocking,
    ],
)
def test_what_closes_files_waits_for_it(work: Callable[[EmbeddedPartitionLog], Any]) -> None:
    held = Held()
    other = threading.Thread(target=work, args=(held.log,), daemon=True)
    other.start()
    other.join(0.05)
    assert other.is_alive()
    held.let_go()
    other.join(WAIT_SECONDS)
    assert not other.is_alive()
    assert held.error is None


def test_files_in_use_by_it_are_not_let_go() -> None:
    held = Held()
    assert not held.log.let_go()
    held.let_go()
    assert held.log.let_go()


def test_one_that_fails_stops_the_partition() -> None:
    """What came meanwhile was acknowledged as well, and may be as gone."""
    held = Held(fails=True)
    held.log.append_blocking([simple(2)])
    held.let_go()
    assert held.error is not None
    assert "fsync of acknowledged records failed" in held.log.stopped
    with pytest.raises(LogStoppedError):
        held.log.append_blocking([simple(3)])
