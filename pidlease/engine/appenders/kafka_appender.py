"""The appender of a partition of Kafka: many batches in flight, in order for each producer.

Kafka itself rejects a late or repeated write: it keeps the last five batches of a producer, and
appends only the batch that follows the last one. But if Kafka has never seen a producer, or has
forgotten it, it appends any batch as the first, and refuses the preceding ones for ever. So the
first batch of a producer is sent alone, and the next ones after its acknowledgement.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, cast

import structlog
from typing_extensions import override

from pidlease.core.pid import Policy, policy_of
from pidlease.core.state import BATCHES_KEPT
from pidlease.engine.append_outcome import UNKNOWN_OUTCOME, Outcome, Status
from pidlease.engine.appenders.applied_offset import AppliedOffset
from pidlease.engine.appenders.catch_up import CatchUp
from pidlease.engine.appenders.group_appender import Appender, AppendTarget
from pidlease.engine.appenders.writer_appender import WriterAppender
from pidlease.engine.appenders.writer_takeover import WriterTakeover
from pidlease.engine.pending_batches import Pending, ProducerQueue, not_taken
from pidlease.kafka.records.writer_batch import WRITER_PID, Writer, stamp
from pidlease.log.ports import AppendReceiver, Forwarded, ForwardingLog, NewBatch, PartitionLog
from pidlease.observability.repeated_lines import LINES

#: A read follows when so many offsets count as not applied. For two minutes from a takeover nothing
#: else may move the applied offset, from which snapshots and other servers go on.
_UNREAD_MAX: Final = 10_000
#: How often to check the owner after another server has taken over the writer.
_ASK_AGAIN_MS: Final = 500
#: The producer id and epoch that mean "no producer" in Kafka.
_NO_WRITER: Final = Writer(-1, -1)

_log = structlog.get_logger(__name__)


class KafkaAppender(Appender, AppendReceiver):
    """Appends to a partition of Kafka; under policies other than kafka, as the partition's writer.

    Parameters:
        log: sends the batches to Kafka.
        partition: applies and completes the batches.
        clock_ms: returns the time, in ms since 1970.
        rest: waits for a number of seconds.
    """

    shared = True

    def __init__(
        self,
        log: PartitionLog,
        partition: AppendTarget,
        clock_ms: Callable[[], int],
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not isinstance(log, ForwardingLog):
            raise TypeError(f"{log!r} takes one append at a time")
        self._catch_up: Final = CatchUp(partition, log)
        self._log: Final = log
        self._partition: Final = partition
        self._clock_ms: Final = clock_ms
        self._applied_offset: Final = AppliedOffset(0, clock_ms())
        #: The producers with an acknowledged batch.
        self._acknowledged: set[int] = set()
        self._queues: dict[int, ProducerQueue] = {}
        #: When this server last checked whether it owns the partition, in ms since 1970.
        self._asked_ms = 0
        takeover = WriterTakeover(partition, lambda: self._writer_appender, clock_ms, rest)
        self._takeover: Final = CatchUp(takeover, log)
        self._writer_appender: Final = WriterAppender(
            log, partition, self._applied_offset, clock_ms, self._takeover.begin
        )
        #: Until when Kafka certainly keeps a producer's state, in ms since 1970, by PID.
        self._known_until_ms: dict[int, int] = {}

    @property
    @override
    def in_flight(self) -> int:
        own = sum(len(queue.in_flight) + len(queue.waiting) for queue in self._queues.values())
        return own + self._writer_appender.in_flight

    @override
    def catch_up_for(self, pid: int, *, in_flight: bool, waited: bool = False) -> CatchUp | None:
        doubted = not self._log.confirmed
        if not pid:
            return self._catch_up if doubted or self._catch_up.holds(0) else None
        if policy_of(pid) is not Policy.KAFKA:
            held = not waited and self._takeover.holds(pid)
            doubted = doubted or not self._writer_appender.ready
            return self._takeover if held or doubted else None
        reading = self._catch_up
        if doubted or (not waited and reading.holds(pid)):  # an earlier batch waits, too
            return reading
        doubts = not in_flight and self._applied_offset.doubts(
            pid, acknowledged=pid in self._acknowledged
        )
        return reading if doubts else None

    @override
    def catch_up_before_refusal(self, pid: int) -> CatchUp:
        # A replaced server is not notified, so check first.
        return self._catch_up if policy_of(pid) is Policy.KAFKA else self._takeover

    @override
    def failed(self, pid: int) -> None:
        self._catch_up.fail(pid)
        self._takeover.fail(pid)

    @property
    @override
    def lost(self) -> bool:
        # Check again from time to time: the other server may not own the partition, either.
        if not self._writer_appender.fenced:
            return False
        now_ms = self._clock_ms()
        if not 0 <= now_ms - self._asked_ms < _ASK_AGAIN_MS:  # or the clock was set back
            self._asked_ms = now_ms
            self._takeover.begin()
        return True

    @property
    @override
    def writer(self) -> Writer | None:
        return self._writer_appender.writer

    @property
    @override
    def replaced(self) -> bool:
        return self._writer_appender.fenced

    @property
    @override
    def is_far_back(self) -> bool:
        return self._applied_offset.unread() >= _UNREAD_MAX

    @override
    def settle(self) -> bool:
        if not self._applied_offset.overdue(self._clock_ms()) and not self.is_far_back:
            return False
        self._catch_up.begin()
        return True

    @override
    def begin(self, next_offset: int) -> None:
        self._applied_offset.begin(next_offset, self._clock_ms())

    @property
    @override
    def applied(self) -> int:
        return self._applied_offset.applied

    @property
    @override
    def leader_epoch(self) -> int:
        return self._log.leader_epoch

    @override
    def caught_up(self, end: int, now_ms: int) -> None:
        self._applied_offset.read(end, now_ms)

    @override
    def push(self, pending: Pending) -> None:
        header = pending.header
        if header.producer_id == WRITER_PID:
            self._writer_appender.push(pending)
            return
        if header.producer_id == 0:  # 0 means "no PID" here, but is a producer id of Kafka
            pending.header = stamp(header, pending.data, _NO_WRITER, -1)
        queue = self._queues.get(pending.pid)
        if queue is None:
            queue = self._queues[pending.pid] = ProducerQueue()
        pending.queue = queue
        queue.waiting.append(pending)
        self._pump(pending.pid, queue)

    @override
    def forget(self, pid: int) -> None:
        self._known_until_ms.pop(pid, None)
        self._acknowledged.discard(pid)

    def _pump(self, pid: int, queue: ProducerQueue) -> None:
        if not queue.waiting:
            if not queue.in_flight:
                self._queues.pop(pid, None)
            return
        known = not pid or self._known_until_ms.get(pid, 0) > self._clock_ms()
        room = BATCHES_KEPT if known else 1
        while queue.waiting and len(queue.in_flight) < room:
            pending = queue.waiting.popleft()
            queue.in_flight.append(pending)
            self._applied_offset.sent(pending)
            pending.began = time.monotonic()
            self._log.send(pid, pending, self)

    @override
    def landed(self, new: NewBatch, offset: int) -> None:
        pending = cast(Pending, new)
        partition, queue, pid = self._partition, pending.queue, pending.pid
        partition.totals.forwarded(pending.began, 0, offset)
        in_flight = queue.in_flight
        if in_flight and in_flight[0] is pending:
            in_flight.popleft()
        elif pending in in_flight:  # a batch without a PID: these land in any order
            in_flight.remove(pending)
        else:
            # It was completed when an earlier batch failed. Its retry resolves the outcome.
            self._note(pending, definite=False)
            return
        header, now_ms = pending.header, self._clock_ms()
        partition.totals.appends += 1
        partition.apply_one(pending, offset, now_ms)
        self._applied_offset.landed(pending, offset + header.records)
        if pid:
            self._applied_offset.settled(pid)
            kept_ms = self._log.producers_kept_ms // 2
            # Kafka's expiry counts from the batch's own timestamp, which may be old (a backfill).
            self._acknowledged.add(pid)
            self._known_until_ms[pid] = min(header.max_timestamp, now_ms) + kept_ms
        if queue.waiting or not in_flight:
            self._pump(pid, queue)
        partition.complete_one(pending, offset)

    @override
    def answered(self, new: NewBatch, answer: Forwarded) -> None:
        pending = cast(Pending, new)
        self._partition.totals.forwarded(pending.began, answer.code, answer.offset)
        if pending in pending.queue.in_flight:
            self._fail(pending, answer)
        else:  # as in `landed`
            self._note(pending, definite=answer.definite)

    def _note(self, pending: Pending, *, definite: bool) -> None:
        """Note the response to a batch that was completed before, or failed."""
        if definite or not pending.pid:  # without a PID there is no state
            self._applied_offset.refused(pending)
        else:
            self._applied_offset.lost(pending, pending.pid, self._clock_ms())

    def _fail(self, failed: Pending, answer: Forwarded) -> None:
        """Fail a batch, and all later ones of the same producer."""
        pid, queue = failed.pid, failed.queue
        self._note(failed, definite=answer.definite)
        LINES.write(_log, "warning", "Kafka did not take a batch", (answer.code, answer.reason),
                    partition=str(self._partition.name), pid=pid, batch=failed.batch,
                    code=answer.code, reason=answer.reason)  # fmt: skip
        if not pid:
            queue.in_flight.remove(failed)
            self._partition.fail([(failed, not_taken(answer))])
            self._pump(pid, queue)
            return
        if not answer.code:
            # Kafka did not respond. As if the client had sent them again at once: they wait until
            # Kafka is back, or their requests end.
            again = [*queue.in_flight, *queue.waiting]
            self._drop(pid, queue)
            self._partition.put_back(again, self._catch_up)
            return
        reason = f"the batch before it failed: {answer.reason}"
        unknown = Outcome(Status.FAILED, reason=reason, code=UNKNOWN_OUTCOME)
        unsent = Outcome(Status.FAILED, reason=reason)
        later = [(each, unknown) for each in queue.in_flight if each is not failed]
        later += [(each, unsent) for each in queue.waiting]
        self._drop(pid, queue)
        self._partition.fail([(failed, not_taken(answer)), *later])

    def _drop(self, pid: int, queue: ProducerQueue) -> None:
        """Forget a producer's batches. Those in flight to Kafka will not find themselves there."""
        queue.in_flight.clear()
        queue.waiting.clear()
        self._queues.pop(pid, None)
        self._known_until_ms.pop(pid, None)
