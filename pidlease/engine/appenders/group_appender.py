"""Admitted batches on their way into a log that takes one append at a time.

What came while the one before was under way goes into the next one (group commit).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

import structlog

from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.appenders.catch_up import CatchUp, Rereadable, Takeable
from pidlease.engine.pending_batches import Pending, next_group
from pidlease.engine.topic_counts import Counts
from pidlease.log.ports import PartitionLog
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogStoppedError, reason_for_clients

_log = structlog.get_logger(__name__)

#: Batches with what is to be told of them.
Applied = list[tuple[Pending, Outcome]]


class Appending(Rereadable, Takeable, Protocol):
    """What is asked of the partition."""

    @property
    def totals(self) -> Counts:
        """What is counted over all partitions."""

    @property
    def next_offset(self) -> int:
        """Behind everything that is known to be in the log."""

    def apply(self, group: list[Pending], offsets: list[int]) -> Applied:
        """Batches stand in the log: move persisted."""

    def tell(self, applied: Applied) -> None:
        """Tell those who wait for what was applied."""

    def fail(self, failed: Applied) -> None:
        """Batches do not stand in the log, or nobody knows: fall back, and tell."""


class Appender(Protocol):
    """How admitted batches come into the log."""

    @property
    def shared(self) -> bool:
        """Whether others write to the log, so that it may hold what is not applied."""

    @property
    def in_flight(self) -> int:
        """How many batches are on their way."""

    def push(self, pending: Pending) -> None:
        """Append a batch, behind those of its producer that came before."""

    def begin(self, next_offset: int) -> None:
        """All of the log before an offset was applied, which was its end."""

    @property
    def applied(self) -> int:
        """Everything before this offset is applied for certain."""

    def reading_for(self, pid: int, *, flying: bool) -> CatchUp | None:
        """The reading of the log that a producer's batch waits for; None: all is known.

        Parameters:
            pid: the producer.
            flying: whether batches of it are on their way.
        """

    def reading_before_refusal(self, pid: int) -> CatchUp | None:
        """The reading that goes before a producer's batch is refused; None: it needs none."""

    def failed(self, pid: int) -> None:
        """A batch of a producer has failed, whichever way: see `CatchUp.fail`."""

    @property
    def lost(self) -> bool:
        """Whether another server writes here now."""

    def settle(self) -> bool:
        """Read the log, where that would put an end to a doubt; False: there is none."""

    def reread(self, end: int, now_ms: int) -> None:
        """All of the log before an offset was applied, which was its end at a time."""

    def forget(self, pid: int) -> None:
        """A producer is gone."""


class GroupAppender:
    """See the module's text, and `Appender`.

    Parameters:
        log: where batches go.
        partition: told what became of them.
    """

    shared = False
    lost = False

    def __init__(self, log: PartitionLog, partition: Appending) -> None:
        self._log: Final = log
        self._partition: Final = partition
        self._queue: deque[Pending] = deque()
        self._writing: list[Pending] = []
        self._began = 0.0
        self._start_scheduled = False
        self._loop = asyncio.get_running_loop()

    @property
    def in_flight(self) -> int:
        """See `Appender`."""
        return len(self._queue) + len(self._writing)

    def begin(self, next_offset: int) -> None:
        """See `Appender`."""

    @property
    def applied(self) -> int:
        """See `Appender`."""
        return self._partition.next_offset

    def reading_for(self, pid: int, *, flying: bool) -> None:
        """See `Appender`."""

    def reading_before_refusal(self, pid: int) -> None:
        """See `Appender`."""

    def failed(self, pid: int) -> None:
        """See `Appender`: nothing waits here."""

    def settle(self) -> bool:
        """See `Appender`."""
        return False

    def reread(self, end: int, now_ms: int) -> None:
        """See `Appender`."""

    def forget(self, pid: int) -> None:
        """See `Appender`: nothing is kept."""

    def push(self, pending: Pending) -> None:
        """See `Appender`."""
        self._queue.append(pending)
        if not self._writing and not self._start_scheduled:
            # Not at once: what else arrived together goes into the same append.
            self._start_scheduled = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._start_scheduled = False
        if self._writing:
            return
        group = next_group(self._queue)
        if group:
            self._writing = group
            self._began = monotonic()
            self._log.append([pending.new for pending in group], self._appended)

    def _appended(self, result: list[int] | Exception) -> None:
        group, self._writing = self._writing, []
        self._partition.totals.append_seconds.observe(monotonic() - self._began)
        if isinstance(result, Exception):
            self._fail(group, result)
            self._start()
            return
        applied = self._partition.apply(group, result)
        self._start()
        self._partition.tell(applied)

    def _fail(self, group: list[Pending], error: Exception) -> None:
        """Fail a group, and all that is in flight behind it for the same producers."""
        # By its cause, not by its partition: a full disk fails the appends of all.
        LINES.write(_log, "error", "append failed", kind_of(error),
                    partition=str(self._partition.name), batches=len(group),
                    error=str(error), cause=str(error.__cause__ or ""))  # fmt: skip
        stopped = isinstance(error, LogStoppedError) or bool(self._log.stopped)
        status = Status.STOPPED if stopped else Status.FAILED
        pids = {pending.pid for pending in group if pending.pid}
        behind = [p for p in self._queue if stopped or p.pid in pids]
        self._queue = deque(p for p in self._queue if not (stopped or p.pid in pids))
        outcome = Outcome(status, reason=reason_for_clients(error))
        self._partition.fail([(pending, outcome) for pending in (*group, *behind)])


#: Makes a partition's, of its log.
AppenderFactory = Callable[[PartitionLog, Appending], Appender]
