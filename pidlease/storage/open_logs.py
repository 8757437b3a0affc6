"""How many partitions may hold files open: the least used ones let go of theirs.

A partition that is appended to holds up to four. Ten thousand of them would be more than a process
may have open, and the clients want some, too.
"""

from collections import deque
from functools import partial
from typing import Final, Protocol

import structlog

from pidlease.storage.errors import LogError
from pidlease.storage.io_pool import IoPool

_log = structlog.get_logger(__name__)


class OpenLog(Protocol):
    """A log that holds files open."""

    #: Whether it was used since it was looked at last.
    recent: bool

    def let_go(self) -> None:
        """Close its files, which are opened again when needed. Blocks.

        Raises:
            OSError: what is in them could not be made durable; they stay open.
            LogError: the same, and the log is stopped.
        """


class OpenLogs:
    """The logs that hold files open, in the order of a clock's second chance.

    `note` may come from any thread; the letting go is done in a thread of the pool.

    Parameters:
        pool: the threads.
        limit: how many logs may hold files open; a few more while some are being closed.
    """

    def __init__(self, pool: IoPool, limit: int) -> None:
        if limit < 1:
            raise ValueError("at least one log must be open")
        self.limit: Final = limit
        self._pool = pool
        # Appending, popping and rotating a deque are atomic under the interpreter's lock.
        self._logs: deque[OpenLog] = deque()
        self._closing = False

    def __len__(self) -> int:
        return len(self._logs)

    def note(self, log: OpenLog) -> None:
        """Take note that a log, which held none, opened files."""
        self._logs.append(log)
        if len(self._logs) > self.limit and not self._closing:
            self._closing = True
            self._pool.submit(partial(self._close_some, len(self._logs)), self._closed)

    def _close_some(self, rounds: int) -> None:
        # Each at most twice: the second time, none has a second chance left.
        for _ in range(2 * rounds):
            if len(self._logs) <= self.limit:
                return
            log = self._logs.popleft()
            if log.recent:
                log.recent = False
                self._logs.append(log)
                continue
            try:
                log.let_go()
            except (OSError, LogError) as error:
                self._logs.append(log)
                _log.error("files could not be closed", error=str(error))

    def _closed(self, result: object) -> None:
        self._closing = False
        if isinstance(result, Exception):
            raise result
