"""Where every operation of a simulated file system passes: hooks, faults, and crash points."""

import errno
import fnmatch
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

#: What a hook and `fail_next` may name. The first ones are spelt as in `storage.faults`.
OPERATIONS: Final = frozenset(
    ["open", "write", "truncate", "fsync", "rename", "remove", "fsync_folder", "make_folder"]
) | {"lock", "open_readonly", "read", "size", "exists", "is_folder", "list", "*"}


class SimulatedCrash(BaseException):
    """The process is dead. Not an Exception, so that no handler of the code under test lives on."""


class Step(NamedTuple):
    """An operation that changed something or made it durable."""

    operation: str
    path: str


@dataclass(slots=True)
class Failure:
    """Operations that are to fail; `fired` counts those that did."""

    operation: str
    pattern: str
    error_number: int
    count: int
    fired: int = 0

    def fires(self, operation: str, path: Path) -> bool:
        """Whether this operation fails; counts it."""
        if self.fired >= self.count or self.operation not in ("*", operation):
            return False
        if not fnmatch.fnmatch(str(path), self.pattern):
            return False
        self.fired += 1
        return True


def os_error(error_number: int, path: Path) -> OSError:
    """The error, of the class that belongs to its number."""
    return OSError(error_number, os.strerror(error_number), str(path))


class Gate:
    """Lets operations through, one at a time.

    Attributes:
        on_operation: called with operation and path before each one, outside of all locks; may
            sleep, count, raise or kill.
        read_only: changes raise EROFS; fsync and opening for writing, too.
        trace: the changes that were done; crash point n lies before the n-th.
        crashed: whether the crash point was reached.
    """

    def __init__(self) -> None:
        self.on_operation: Callable[[str, Path], None] | None = None
        self.read_only = False
        self.trace: list[Step] = []
        self.crashed = False
        self._mutex = threading.RLock()
        self._failures: list[Failure] = []
        self._steps_to_crash = -1
        self._tears = False
        self._dead = False

    def fail_next(
        self, operation: str, pattern: str = "*", error_number: int = errno.EIO, count: int = 1
    ) -> Failure:
        """Let the next operations of a kind, on paths that match, fail before they do anything.

        A failed fsync is different: what it should have saved is given up, as Linux does.
        """
        assert operation in OPERATIONS, operation
        failure = Failure(operation, pattern, error_number, count)
        with self._mutex:
            self._failures.append(failure)
        return failure

    def crash_at(self, step: int, *, torn: bool = False) -> None:
        """Die at the n-th change from now on, 1 being the next, and at all after it.

        Args:
            step: the number of the change.
            torn: if it is a write, its first half is still done.
        """
        assert step >= 1, step
        with self._mutex:
            self._steps_to_crash = step
            self._tears = torn

    @contextmanager
    def operation(self, operation: str, path: Path) -> Iterator[None]:
        """Be in an operation, alone."""
        hook = self.on_operation
        if hook is not None:
            hook(operation, path)
        with self._mutex:
            if self._dead:
                raise os_error(errno.EIO, path)
            yield

    def check_failures(self, operation: str, path: Path) -> None:
        """Fail if this operation is to fail."""
        for failure in self._failures:
            if failure.fires(operation, path):
                raise os_error(failure.error_number, path)

    def change(self, operation: str, path: Path) -> None:
        """Announce a change, just before it is done."""
        if self.read_only:
            raise os_error(errno.EROFS, path)
        if self._steps_to_crash > 0:
            self._steps_to_crash -= 1
            self.crashed = self._steps_to_crash == 0
        if self.crashed:
            raise SimulatedCrash(f"before {operation} {path}")
        self.trace.append(Step(operation, str(path)))

    def take_tear(self) -> bool:
        """Whether the write that has just met the crash point is torn; only once."""
        tears, self._tears = self._tears, False
        return tears
