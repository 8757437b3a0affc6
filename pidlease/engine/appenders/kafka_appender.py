"""Admitted batches on their way into Kafka: many at a time, each producer's in order.

Kafka itself settles a write that comes late, or again: it knows the last five batches of a
producer, and takes only what follows the last one. What it does not know is a producer that it has
never seen, or has forgotten: then it takes any batch as the first, and refuses for ever what should
have come before. So the first batch of a producer goes alone, and the next ones when it stands.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from pidlease.core.pid import Policy, policy_of
from pidlease.core.state import BATCHES_KEPT
from pidlease.engine.append_outcome import UNKNOWN_OUTCOME, Outcome, Status
from pidlease.engine.appenders.applied_offset import AppliedOffset
from pidlease.engine.appenders.catch_up import CatchUp
from pidlease.engine.appenders.group_appender import Appending
from pidlease.engine.appenders.writer_appender import WriterAppender
from pidlease.engine.appenders.writer_takeover import WriterTakeover
from pidlease.engine.pending_batches import Pending, not_taken
from pidlease.kafka.records.writer_batch import WRITER_PID, Writer, stamp
from pidlease.log.ports import Forwarded, ForwardingLog, NewBatch, PartitionLog
from pidlease.observability.repeated_lines import LINES

#: How often it is asked who owns a partition whose writer another server has taken.
_ASK_AGAIN_MS: Final = 500
#: What Kafka calls no producer.
_NOBODY: Final = Writer(-1, -1)

_log = structlog.get_logger(__name__)


class _Lane:
    """One producer's batches: those that are on their way, and those that wait."""

    __slots__ = ("flying", "waiting")

    def __init__(self) -> None:
        self.flying: deque[Pending] = deque()
        self.waiting: deque[Pending] = deque()


class KafkaAppender:
    """See the module's text, and `appends.Appender`; batches of the other policies: `writing.py`.

    Parameters:
        log: where batches go.
        partition: told what became of them.
        clock_ms: the time, in ms since 1970.
        rest: waits so many seconds.
    """

    def __init__(
        self,
        log: PartitionLog,
        partition: Appending,
        clock_ms: Callable[[], int],
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not isinstance(log, ForwardingLog):
            raise TypeError(f"{log!r} takes one append at a time")
        self._rereading: Final = CatchUp(partition, log)
        #: See `Appender`.
        self.shared: Final = True
        self._log: Final = log
        self._partition: Final = partition
        self._clock_ms: Final = clock_ms
        self._applied_offset: Final = AppliedOffset(0, clock_ms())
        #: Producers of which a batch has landed.
        self._heard: set[int] = set()
        self._lanes: dict[int, _Lane] = {}
        #: When it was last asked whether this server owns the partition, in ms since 1970.
        self._asked_ms = 0
        taking = WriterTakeover(partition, lambda: self._writing, clock_ms, rest)
        self._taking: Final = CatchUp(taking, log)
        self._writing: Final = WriterAppender(
            log, partition, self._applied_offset, clock_ms, self._taking.begin
        )
        #: Until when Kafka surely knows a producer, in ms since 1970.
        self._known_until_ms: dict[int, int] = {}

    @property
    def in_flight(self) -> int:
        """See `Appender`."""
        own = sum(len(lane.flying) + len(lane.waiting) for lane in self._lanes.values())
        return own + self._writing.in_flight

    def reading_for(self, pid: int, *, flying: bool) -> CatchUp | None:
        """See `Appender`."""
        if policy_of(pid) is not Policy.KAFKA:
            return self._taking if self._taking.holds(pid) or not self._writing.ready else None
        reading = self._rereading
        if reading.holds(pid):  # what came before it waits, too
            return reading
        doubts = not flying and self._applied_offset.doubts(pid, heard=pid in self._heard)
        return reading if doubts else None

    def reading_before_refusal(self, pid: int) -> CatchUp:
        """See `Appender`: who was replaced does not hear of it by itself."""
        return self._rereading if policy_of(pid) is Policy.KAFKA else self._taking

    def failed(self, pid: int) -> None:
        """See `Appender`."""
        self._rereading.fail(pid)
        self._taking.fail(pid)

    @property
    def lost(self) -> bool:
        """See `Appender`. It is asked again whether it is so: who did it may not own it, either."""
        if not self._writing.fenced:
            return False
        now_ms = self._clock_ms()
        if now_ms - self._asked_ms >= _ASK_AGAIN_MS:
            self._asked_ms = now_ms
            self._taking.begin()
        return True

    def settle(self) -> bool:
        """See `Appender`."""
        if not self._applied_offset.overdue(self._clock_ms()):
            return False
        self._rereading.begin()
        return True

    def begin(self, next_offset: int) -> None:
        """See `Appender`."""
        self._applied_offset.begin(next_offset, self._clock_ms())

    @property
    def applied(self) -> int:
        """See `Appender`."""
        return self._applied_offset.applied

    def reread(self, end: int, now_ms: int) -> None:
        """See `Appender`."""
        self._applied_offset.read(end, now_ms)

    def push(self, pending: Pending) -> None:
        """See `Appender`."""
        data, header = pending.new
        if header.producer_id == WRITER_PID:
            self._writing.push(pending)
            return
        if header.producer_id == 0:  # no PID here, and one like any other for Kafka
            pending.new = NewBatch(data, stamp(header, data, _NOBODY, -1))
        lane = self._lanes.get(pending.pid)
        if lane is None:
            lane = self._lanes[pending.pid] = _Lane()
        lane.waiting.append(pending)
        self._pump(pending.pid, lane)

    def forget(self, pid: int) -> None:
        """See `Appender`."""
        self._known_until_ms.pop(pid, None)
        self._heard.discard(pid)

    def _pump(self, pid: int, lane: _Lane) -> None:
        if not lane.waiting:
            if not lane.flying:
                self._lanes.pop(pid, None)
            return
        known = not pid or self._known_until_ms.get(pid, 0) > self._clock_ms()
        room = BATCHES_KEPT if known else 1
        while lane.waiting and len(lane.flying) < room:
            pending = lane.waiting.popleft()
            lane.flying.append(pending)
            self._applied_offset.sent(pending)
            began = time.monotonic()
            self._log.send(pid, pending.new, partial(self._answered, lane, pending, began))

    def _answered(self, lane: _Lane, pending: Pending, began: float, answer: Forwarded) -> None:
        self._partition.totals.forwarded(began, answer.code, answer.offset)
        pid = pending.pid
        if pending not in lane.flying:
            # It failed with one before it, and was answered so. Its retry settles it.
            self._note(pending, answer)
            return
        if answer.code or answer.offset < 0:
            self._fail(pid, lane, pending, answer)
            return
        lane.flying.remove(pending)  # the first, but for batches without a PID
        header = pending.new.header
        applied = self._partition.apply([pending], [answer.offset])
        self._applied_offset.landed(pending, answer.offset + header.records)
        if pid:
            self._applied_offset.settled(pid)
            kept_ms = self._log.producers_kept_ms // 2
            # Kafka counts from the batch's own time, which may be long past (a backfill).
            self._heard.add(pid)
            self._known_until_ms[pid] = min(header.max_timestamp, self._clock_ms()) + kept_ms
        self._pump(pid, lane)
        self._partition.tell(applied)

    def _note(self, pending: Pending, answer: Forwarded) -> None:
        """Take note of what nobody waits for any more, or did not come into the log."""
        if answer.definite or not pending.pid:  # without a PID nothing is known, nor in doubt
            self._applied_offset.refused(pending)
        else:
            self._applied_offset.lost(pending, pending.pid, self._clock_ms())

    def _fail(self, pid: int, lane: _Lane, failed: Pending, answer: Forwarded) -> None:
        """A batch failed, and with it all that is behind it of the same producer."""
        self._note(failed, answer)
        LINES.write(_log, "warning", "Kafka did not take a batch", (answer.code, answer.reason),
                    partition=str(self._partition.name), pid=pid, batch=failed.batch,
                    code=answer.code, reason=answer.reason)  # fmt: skip
        lane.flying.remove(failed)
        if not pid:
            self._partition.fail([(failed, not_taken(answer))])
            self._pump(pid, lane)
            return
        reason = f"the batch before it failed: {answer.reason}"
        unknown = Outcome(Status.FAILED, reason=reason, code=UNKNOWN_OUTCOME)
        unsent = Outcome(Status.FAILED, reason=reason)
        behind = [(each, unknown) for each in lane.flying]
        behind += [(each, unsent) for each in lane.waiting]
        # Those on their way still are: what becomes of them finds nobody waiting.
        lane.flying.clear()
        lane.waiting.clear()
        self._lanes.pop(pid, None)
        self._known_until_ms.pop(pid, None)
        self._partition.fail([(failed, not_taken(answer)), *behind])
