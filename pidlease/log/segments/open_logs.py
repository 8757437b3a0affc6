"""Bounds the number of partitions that hold files open: the least used ones close theirs.

A partition that is appended to holds up to four files. Ten thousand partitions would need more than
a process may have open, and the clients' connections need some, too.
"""

from collections import deque
from contextlib import suppress
from typing import Final, Protocol

import structlog

from pidlease.storage.errors import LogError

_log = structlog.get_logger(__name__)


class OpenLog(Protocol):
    """A log that holds files open."""

    #: Whether the log was used since this was last set to False.
    recent: bool

    def let_go(self) -> bool:
        """Close its files until they are needed again; False: the log is busy. Blocks.

        Raises:
            OSError: their content could not be made durable; they stay open.
            LogError: the same, and the log is stopped.
        """


class OpenLogs:
    """The logs that hold files open, in the order of the clock algorithm (second chance).

    Parameters:
        limit: how many logs may hold files open; exceeded if all are busy.
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
        """Add a log that has opened its files, and let others close theirs if there are too many.

        Blocks; called from any thread. The log may hold its own lock: this waits for no other lock.
        """
        self._logs.append(log)
        # Look at each log twice at most: by then none has a second chance left.
        for _ in range(2 * len(self._logs)):
            if len(self._logs) <= self.limit:
                return
            self._try_one(log)

    def forget(self, log: OpenLog) -> None:
        """Remove a log."""
        with suppress(ValueError):  # it held no files open
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
