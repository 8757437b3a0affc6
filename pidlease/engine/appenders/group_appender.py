"""The appender of a log that accepts one append at a time.

Batches that arrive while an append runs go into the next one (group commit).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

import structlog
from typing_extensions import override

from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.appenders.catch_up import ENDED, CatchUp, CatchUpTarget, TakeoverTarget
from pidlease.engine.pending_batches import Pending, next_group
from pidlease.engine.topic_counts import Counts
from pidlease.kafka.records.writer_batch import Writer
from pidlease.log.ports import PartitionLog
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogStoppedError, reason_for_clients

#: After a longer append, clients may have given up requests that still wait.
SLOW_SECONDS: Final = 1.0

_log = structlog.get_logger(__name__)

#: Batches with their outcomes, none of which is "appended".
Failed = list[tuple[Pending, Outcome]]


class AppendTarget(CatchUpTarget, TakeoverTarget, Protocol):
    """A partition, as its appender uses it."""

    @property
    def totals(self) -> Counts:
        """The counts over all partitions."""

    @property
    def next_offset(self) -> int:
        """The first offset after everything known to be in the log."""

    def apply(self, group: list[Pending], offsets: list[int]) -> None:
        """Apply batches that are in the log to the persisted state."""

    def apply_one(self, pending: Pending, offset: int, now_ms: int) -> None:
        """Apply one batch that is in the log to the persisted state."""

    def complete(self, group: list[Pending], offsets: list[int]) -> None:
        """Complete applied batches, and the retries that wait for them."""

    def complete_one(self, pending: Pending, offset: int) -> None:
        """Complete one applied batch, and the retries that wait for it."""

    def fail(self, failed: Failed) -> None:
        """Fall back to the persisted state, and fail batches that may not be in the log."""

    def put_back(self, batches: list[Pending], reading: CatchUp) -> None:
        """Fall back to the persisted state, and validate batches again after a read of the log."""


class Appender(Protocol):
    """Appends the admitted batches of a partition to its log."""

    @property
    def shared(self) -> bool:
        """Whether other servers write to the log, so that it may hold batches not applied here."""

    @property
    def in_flight(self) -> int:
        """How many batches are in flight or wait to be."""

    def push(self, pending: Pending) -> None:
        """Append a batch after the earlier ones of its producer."""

    def begin(self, next_offset: int) -> None:
        """Start with a log that is applied up to its end.

        Parameters:
            next_offset: the log's end offset.
        """

    @property
    def applied(self) -> int:
        """The offset before which everything is applied for certain."""

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that was confirmed for what is applied; -1: the log has none."""

    def catch_up_for(self, pid: int, *, in_flight: bool, waited: bool = False) -> CatchUp | None:
        """Return the catch-up that a producer's batch must wait for; None: none is needed.

        Parameters:
            pid: the producer's PID.
            in_flight: whether batches of the producer are in flight.
            waited: whether the batch has waited for one: then those that wait arrived after it.
        """

    def catch_up_before_refusal(self, pid: int) -> CatchUp | None:
        """Return the catch-up that must precede a refusal; None: none is needed."""

    def failed(self, pid: int) -> None:
        """Note that a batch of a producer has failed, so that its waiting batches fail as well."""

    @property
    def lost(self) -> bool:
        """Whether another server writes to the partition now."""

    @property
    def writer(self) -> Writer | None:
        """The writer under which this server sends now; None: none, or the log needs none."""

    @property
    def replaced(self) -> bool:
        """Whether another server has taken over as the writer; unlike `lost`, it checks nothing."""

    @property
    def is_far_back(self) -> bool:
        """Whether the applied offset is far back, and a catch-up would move it on."""

    def settle(self) -> bool:
        """Start a catch-up if it would move the applied offset on; False: it would not."""

    def caught_up(self, end: int, now_ms: int) -> None:
        """Note that the log was applied up to its end at a given time."""

    def forget(self, pid: int) -> None:
        """Forget a producer after its lease has ended."""


class GroupAppender(Appender):
    """Appends to a log that accepts one append at a time.

    Parameters:
        log: appends the batches.
        partition: applies and completes the batches.
    """

    shared = False
    lost = False
    writer = None
    replaced = False
    leader_epoch = -1

    def __init__(self, log: PartitionLog, partition: AppendTarget) -> None:
        self._log: Final = log
        self._partition: Final = partition
        self._queue: deque[Pending] = deque()
        self._writing: list[Pending] = []
        self._began = 0.0
        self._start_scheduled = False
        self._loop = asyncio.get_running_loop()

    @property
    @override
    def in_flight(self) -> int:
        return len(self._queue) + len(self._writing)

    @override
    def begin(self, next_offset: int) -> None:
        pass  # the partition has the offset

    @property
    @override
    def applied(self) -> int:
        return self._partition.next_offset

    @override
    def catch_up_for(self, pid: int, *, in_flight: bool, waited: bool = False) -> None:
        pass  # no other server writes to the log

    @override
    def catch_up_before_refusal(self, pid: int) -> None:
        pass

    @override
    def failed(self, pid: int) -> None:
        pass  # no batch waits

    @property
    @override
    def is_far_back(self) -> bool:
        return False

    @override
    def settle(self) -> bool:
        return False

    @override
    def caught_up(self, end: int, now_ms: int) -> None:
        pass

    @override
    def forget(self, pid: int) -> None:
        pass

    @override
    def push(self, pending: Pending) -> None:
        self._queue.append(pending)
        if not self._writing and not self._start_scheduled:
            # Not at once: batches that arrived together go into one append.
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
            self._log.append(group, self._appended)

    def _appended(self, result: list[int] | Exception) -> None:
        group, self._writing = self._writing, []
        seconds = monotonic() - self._began
        self._partition.totals.append_seconds.observe(seconds)
        if isinstance(result, Exception):
            self._fail(group, result)
            self._start()
            return
        self._partition.apply(group, result)
        if seconds > SLOW_SECONDS:
            self._give_up_ended()
        self._start()
        self._partition.complete(group, result)

    def _give_up_ended(self) -> None:
        """Give up the waiting batches of requests that have ended, and what follows them.

        Their clients have sent those records again under a higher epoch, or will: see `catch_up`.
        """
        pids = {pending.pid for pending in self._queue if pending.ended and pending.pid}
        given_up = [p for p in self._queue if p.ended or p.pid in pids]
        if given_up:
            self._queue = deque(p for p in self._queue if not (p.ended or p.pid in pids))
            self._partition.fail([(pending, ENDED) for pending in given_up])

    def _fail(self, group: list[Pending], error: Exception) -> None:
        """Fail a group, and the later batches of its producers."""
        # One line per cause, not per partition: a full disk fails all appends.
        LINES.write(_log, "error", "append failed", kind_of(error),
                    partition=str(self._partition.name), batches=len(group),
                    error=str(error), cause=str(error.__cause__ or ""))  # fmt: skip
        stopped = isinstance(error, LogStoppedError) or bool(self._log.stopped)
        status = Status.STOPPED if stopped else Status.FAILED
        pids = {pending.pid for pending in group if pending.pid}
        later = [p for p in self._queue if stopped or p.pid in pids]
        self._queue = deque(p for p in self._queue if not (stopped or p.pid in pids))
        outcome = Outcome(status, reason=reason_for_clients(error))
        self._partition.fail([(pending, outcome) for pending in (*group, *later)])


#: Makes the appender of a partition for its log.
AppenderFactory = Callable[[PartitionLog, AppendTarget], Appender]
