"""Fault injection: fail, delay or kill the process at a chosen file operation.

This wraps the interface of the file system. So a fault can strike between any two steps of an
append, a segment roll, a snapshot or a block allocation, and the code under test has no hooks. The
server builds the wrapper only if faults are configured (setting `faults`, PIDLEASE_FAULTS).

A fault is ``ACTION WHEN OPERATION PATTERN COUNT``, several separated by ``;``:

    kill after fsync *.log 17        die by SIGKILL when the 17th fsync of a .log has returned
    fail before write *.log 3        the 3rd write raises ENOSPC; also fail=EIO
    fail-from before write *.log 3   the 3rd and all later ones
    slow=0.2 before fsync *.log 1    each one from the 1st on takes 0.2 s longer
    tear before write *.log 2        write half of it, then die
"""

import errno
import fnmatch
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pidlease.core.buffer import Buffer
from pidlease.storage.files import Files, Lock, OpenFile

_ACTIONS: Final = frozenset(("kill", "fail", "fail-from", "slow", "tear"))
_OPERATIONS: Final = frozenset(
    ("open", "write", "truncate", "fsync", "rename", "remove", "fsync_folder", "make_folder", "*")
)


@dataclass(slots=True)
class Fault:
    """One fault of a plan; `seen` counts the operations that matched so far."""

    action: str
    argument: str
    when: str
    operation: str
    pattern: str
    count: int
    seen: int = field(default=0)

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """Parse one fault.

        Raises:
            ValueError: it has not the form in the module's docstring.
        """
        words = text.split()
        if len(words) != 5:
            raise ValueError(f"fault {text!r} is not 'ACTION WHEN OPERATION PATTERN COUNT'")
        action, _, argument = words[0].partition("=")
        if action not in _ACTIONS or words[1] not in ("before", "after"):
            raise ValueError(f"fault {text!r}: ACTION is one of {sorted(_ACTIONS)}, before|after")
        if words[2] not in _OPERATIONS:
            raise ValueError(f"fault {text!r}: OPERATION is one of {sorted(_OPERATIONS)}")
        _check_argument(text, action, argument)
        if action == "tear" and words[1:3] != ["before", "write"]:
            raise ValueError(f"fault {text!r}: only 'before write' can be torn")
        if not words[4].isdecimal() or int(words[4]) < 1:
            raise ValueError(f"fault {text!r}: COUNT is a number from 1")
        return cls(action, argument, words[1], words[2], words[3], int(words[4]))

    def fires(self, when: str, operation: str, path: Path) -> bool:
        """Count a matching operation, and return whether the fault strikes now."""
        if when != self.when or self.operation not in ("*", operation):
            return False
        if not fnmatch.fnmatch(str(path), self.pattern):
            return False
        self.seen += 1
        if self.action in ("fail-from", "slow"):
            return self.seen >= self.count
        return self.seen == self.count


def _check_argument(text: str, action: str, argument: str) -> None:
    if action in ("fail", "fail-from") and not hasattr(errno, argument or "ENOSPC"):
        raise ValueError(f"fault {text!r}: {argument} is no errno name")
    if action == "slow" and argument and not argument.replace(".", "", 1).isdecimal():
        raise ValueError(f"fault {text!r}: slow=SECONDS")


class FaultPlan:
    """All faults of a run. Each file operation reports to it."""

    def __init__(self, text: str) -> None:
        self._faults = [Fault.parse(part) for part in text.split(";") if part.strip()]
        self._lock = threading.Lock()

    def reach(self, when: str, operation: str, path: Path, half: "HalfWrite | None" = None) -> None:
        """Report a point before or after an operation; a fault there may never return."""
        with self._lock:
            due = [fault for fault in self._faults if fault.fires(when, operation, path)]
        for fault in due:
            if fault.action == "slow":
                time.sleep(float(fault.argument or "0.1"))
                continue
            sys.stderr.write(f"fault: {fault.action} {when} {operation} {path} #{fault.seen}\n")
            sys.stderr.flush()
            if fault.action in ("fail", "fail-from"):
                number = getattr(errno, fault.argument or "ENOSPC")
                raise OSError(number, os.strerror(number), str(path))
            if fault.action == "tear" and half is not None:
                half.write()
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class HalfWrite:
    """The first half of a write, for a fault that tears it."""

    file: OpenFile
    buffers: Sequence[Buffer]
    position: int

    def write(self) -> None:
        """Write the half."""
        data = b"".join(self.buffers)
        self.file.write_at([data[: len(data) // 2]], self.position)


class FaultyFile:
    """A file that reports its operations to a plan."""

    def __init__(self, inner: OpenFile, path: Path, plan: FaultPlan) -> None:
        self._inner = inner
        self._path = path
        self._plan = plan
        self.read_at = inner.read_at
        self.read_cached = inner.read_cached
        self.size = inner.size
        self.is_at = inner.is_at
        self.modified_ms = inner.modified_ms
        self.close = inner.close

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write, with the faults of the plan."""
        half = HalfWrite(self._inner, buffers, position)
        self._plan.reach("before", "write", self._path, half)
        self._inner.write_at(buffers, position)
        self._plan.reach("after", "write", self._path)

    def truncate(self, size: int) -> None:
        """Truncate, with the faults of the plan."""
        self._plan.reach("before", "truncate", self._path)
        self._inner.truncate(size)
        self._plan.reach("after", "truncate", self._path)

    def fsync(self) -> None:
        """Fsync, with the faults of the plan."""
        self._plan.reach("before", "fsync", self._path)
        self._inner.fsync()
        self._plan.reach("after", "fsync", self._path)


class FaultyFiles:
    """A file system that reports its changing operations to a plan."""

    def __init__(self, inner: Files, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan
        self.exists = inner.exists
        self.is_folder = inner.is_folder
        self.list = inner.list

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        """Open a file that reports its operations to the plan."""
        if create:
            self._plan.reach("before", "open", path)
        opened = FaultyFile(self._inner.open(path, create=create), path, self._plan)
        if create:
            self._plan.reach("after", "open", path)
        return opened

    def open_readonly(self, path: Path) -> OpenFile:
        """Open a file to read; no plan applies."""
        return self._inner.open_readonly(path)

    def make_folder(self, folder: Path) -> None:
        """Make a folder, with the faults of the plan."""
        self._plan.reach("before", "make_folder", folder)
        self._inner.make_folder(folder)
        self._plan.reach("after", "make_folder", folder)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, with the faults of the plan."""
        self._plan.reach("before", "rename", target)
        self._inner.rename(source, target)
        self._plan.reach("after", "rename", target)

    def remove(self, path: Path) -> None:
        """Remove, with the faults of the plan."""
        self._plan.reach("before", "remove", path)
        self._inner.remove(path)
        self._plan.reach("after", "remove", path)

    def fsync_folder(self, folder: Path) -> None:
        """Fsync a folder, with the faults of the plan."""
        self._plan.reach("before", "fsync_folder", folder)
        self._inner.fsync_folder(folder)
        self._plan.reach("after", "fsync_folder", folder)

    def lock(self, path: Path, content: str) -> Lock:
        """Lock; no plan applies."""
        return self._inner.lock(path, content)

    def lock_shared(self, path: Path) -> Lock:
        """Lock for reading; no plan applies."""
        return self._inner.lock_shared(path)
