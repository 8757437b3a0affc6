"""How many partitions may hold files open: the least used ones let go of theirs.

A partition that is appended to holds up to four. Ten thousand of them would be more than a process
may have open, and the clients want some, too.
"""

from collections import deque
from contextlib import suppress
from typing import Final, Protocol

import structlog

from pidlease.storage.errors import LogError

_log = structlog.get_logger(__name__)


class OpenLog(Protocol):
    """A log that holds files open."""

    #: Whether it was used since it was looked at last.
    recent: bool

    def let_go(self) -> bool:
        """Close its files, which are opened again when needed; False: it is busy. Blocks.

        Raises:
            OSError: what is in them could not be made durable; they stay open.
            LogError: the same, and the log is stopped.
        """


class OpenLogs:
    """The logs that hold files open, in the order of a clock's second chance.

    Parameters:
        limit: how many logs may hold files open; a few more where all are busy.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("at least one log must be open")
        self.limit: Final = limit
        # Appending to and popping from a deque are atomic under the interpreter's lock.
        self._logs: deque[OpenLog] = deque()

    def __len__(self) -> int:
        return len(self._logs)

    def note(self, log: OpenLog) -> None:
        """Take note that a log, which held none, opened files; others may have to let go.

        Blocks, from any thread. The log may hold its own lock: no other one is waited for.
        """
        self._logs.append(log)
        # Each at most twice: the second time, none has a second chance left.
        for _ in range(2 * len(self._logs)):
            if len(self._logs) <= self.limit:
                return
            self._try_one(log)

    def forget(self, log: OpenLog) -> None:
        """Take note that a log is gone."""
        with suppress(ValueError):  # it held none
            self._logs.remove(log)

    def _try_one(self, newest: OpenLog) -> None:
        try:
            log = self._logs.popleft()
        except IndexError:  # other threads were faster
            return
        if log.recent and log is not newest:
            log.recent = False
        elif log is not newest and self._has_let_go(log):
            return
        self._logs.append(log)

    def _has_let_go(self, log: OpenLog) -> bool:
        try:
            return log.let_go()
        except (OSError, LogError) as error:
            _log.error("files could not be closed", error=str(error))
            return False
