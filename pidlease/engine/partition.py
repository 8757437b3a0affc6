"""One partition: the one path from a batch to its place in the log.

    produce -> judge (looks at pushed) -> queue -> append -> apply (moves persisted) -> answer

Pushed is what was judged and sent to the log, persisted what the log has acknowledged. All of
this runs on the event loop; only the append itself is elsewhere, one at a time, and carries all
batches that came while the one before was under way (group commit).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Protocol

import structlog

from pidlease.core.judge import ADMIT, Age, Kind, Verdict, judge
from pidlease.core.packed import Packed, fold_packed, judge_packed, unpack
from pidlease.core.pid import Policy, policy_of
from pidlease.core.rules import Rules, rules_of
from pidlease.core.state import Batch, ProducerState
from pidlease.engine.counts import Counts
from pidlease.engine.failed import FailedFirsts
from pidlease.engine.outcome import STATUS_OF, Done, Outcome, Status
from pidlease.storage.errors import LogStoppedError, OffsetRangeError
from pidlease.storage.ports import NewBatch, PartitionLog
from pidlease.storage.record_batch import BatchHeader
from pidlease.storage.snapshots import PartitionRows, TopicPartition
from pidlease.storage.topics import Topic

#: How much one append takes at most; it bounds what a crash can tear, and a waiting answer.
GROUP_BYTES_MAX: Final = 8 << 20
GROUP_BATCHES_MAX: Final = 1000

_log = structlog.get_logger(__name__)


class LeaseBook(Protocol):
    """What a partition asks of the leases."""

    def age(self, pid: int, hole_ms: int) -> Age:
        """How old the PID's block is; blocks taken before `hole_ms` count as old."""

    def adopt(self, pid: int, partition: "Partition") -> bool:
        """Take note that a PID writes to a partition for the first time; False: no slot is free."""

    def restore(self, pids: Iterable[int], partition: "Partition") -> None:
        """Take note that the log holds batches of PIDs on a partition."""


class _Pending:
    """A batch on its way into the log, and who waits for it."""

    __slots__ = ("batch", "done", "new", "pid", "retries")

    def __init__(self, pid: int, batch: Batch, new: NewBatch, done: Done) -> None:
        self.pid = pid
        self.batch = batch
        self.new = new
        self.done = done
        self.retries: list[tuple[Batch, Done]] = []


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all partitions share.

    Attributes:
        leases: where new producers are noted.
        counts: where outcomes are counted.
        clock_ms: the time, in ms since 1970.
        judging: off lets every batch through as if it had no PID.
    """

    leases: LeaseBook
    counts: Counts
    clock_ms: Callable[[], int]
    judging: bool = True


class Partition:
    """A partition with what is known of its producers.

    Parameters:
        name: topic and number.
        topic: its topic's definition.
        log: where batches go.
        around: what all partitions share.
    """

    def __init__(
        self, name: TopicPartition, topic: Topic, log: PartitionLog, around: Surroundings
    ) -> None:
        self.name: Final = name
        self.topic_id: Final = topic.topic_id
        self.log: Final = log
        self.producers: dict[int, Packed] = {}
        #: The first offset that is not applied.
        self.next_offset = log.end_offset
        #: When it was found that earlier history is missing (see `PartitionRows`).
        self.hole_ms = topic.made_again_ms
        #: Whether its topic was deleted; then no door finds it, and it takes nothing.
        self.gone = False
        self._leases = around.leases
        self._counts = around.counts
        self._clock_ms = around.clock_ms
        self._judging = around.judging
        self._pushed: dict[int, Packed] = {}
        self._flying: dict[int, deque[_Pending]] = {}
        self._failed = FailedFirsts(around.clock_ms)
        self._queue: deque[_Pending] = deque()
        self._writing: list[_Pending] = []
        self._start_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._watchers: set[asyncio.Event] = set()

    # ------------------------------------------------------------------ judging

    def produce(self, pid: int, header: BatchHeader, data: bytearray | memoryview, batch: Batch,
                done: Done) -> None:  # fmt: skip
        """Judge a batch, and append it if it is admitted.

        Parameters:
            pid: the producer id; 0 or below: none.
            header: the batch's header, checked.
            data: the batch, of which the log writes over offset and leader epoch.
            batch: its identity.
            done: told the outcome.
        """
        if self.log.stopped:
            done(self._stopped())
            return
        if pid <= 0 or not self._judging:
            self._push(_Pending(0, batch, NewBatch(data, header), done))
            return
        rules = rules_of(pid)
        if rules is None:
            done(self._outcome(None, Outcome(Status.MALFORMED, reason=no_policy(pid))))
            return
        state = self._pushed.get(pid) or self.producers.get(pid)
        verdict = (
            judge_packed(rules, state, batch)
            if state is not None
            else judge(rules, None, batch, self._leases.age(pid, self.hole_ms))
        )
        if self._failed and self._failed.holds(pid, batch, verdict):
            done(self._outcome(rules.policy, _behind_failed(self._failed.first(pid))))
        elif verdict.kind is not Kind.ADMIT:
            self._refuse(pid, rules, batch, verdict, done)
        elif state is None and not self._leases.adopt(pid, self):
            self._failed.note(pid, batch)  # what is behind it on the wire is not to pass it
            reason = "all lease slots are taken"
            done(self._outcome(rules.policy, Outcome(Status.NO_LEASE, reason=reason)))
        else:
            self._pushed[pid] = fold_packed(rules, state, batch, -1, 0)
            pending = _Pending(pid, batch, NewBatch(data, header), done)
            flying = self._flying.get(pid)
            if flying is None:
                self._flying[pid] = flying = deque()
            flying.append(pending)
            if self._failed:
                self._failed.forget(pid)
            self._push(pending)

    def _refuse(self, pid: int, rules: Rules, batch: Batch, verdict: Verdict, done: Done) -> None:
        """Answer a batch that is not admitted, unless the answer hangs on one in flight."""
        kind = verdict.kind
        flying = self._flying.get(pid)
        if flying and kind in (Kind.DUPLICATE, Kind.OVERLAP):
            durable = self.producers.get(pid)
            verdict = judge_packed(rules, durable, batch) if durable is not None else verdict
            if durable is None or verdict.kind is not Kind.DUPLICATE:
                # What it repeats, or straddles, is not acknowledged yet: wait for that answer.
                self._counts.joined += 1
                _original(flying, batch).retries.append((batch, done))
                return
        if verdict.differs:
            self._counts.differing += 1
            _log.warning("a duplicate by its numbers has other bytes", pid=pid, batch=batch,
                         partition=str(self.name))  # fmt: skip
        offset, expected, generation = verdict.offset, verdict.expected, verdict.generation
        outcome = Outcome(STATUS_OF[kind], offset, expected, generation, verdict.reason)
        done(self._outcome(rules.policy, outcome))

    def _outcome(self, policy: Policy | None, outcome: Outcome) -> Outcome:
        self._counts.count(policy, outcome.status)
        return outcome

    def _stopped(self) -> Outcome:
        return self._outcome(None, Outcome(Status.STOPPED, reason=self.log.stopped))

    # ------------------------------------------------------------------ appending

    def _push(self, pending: _Pending) -> None:
        self._queue.append(pending)
        if not self._writing and not self._start_scheduled:
            # Not at once: what else arrived together goes into the same append.
            self._start_scheduled = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._start_scheduled = False
        if self._writing:
            return
        group: list[_Pending] = []
        size = 0
        while self._queue and len(group) < GROUP_BATCHES_MAX:
            size += len(self._queue[0].new.data)
            if group and size > GROUP_BYTES_MAX:
                break
            group.append(self._queue.popleft())
        if group:
            self._writing = group
            self.log.append([pending.new for pending in group], self._appended)

    def _appended(self, result: list[int] | Exception) -> None:
        group, self._writing = self._writing, []
        self._counts.appends += 1
        if isinstance(result, Exception):
            self._fail(group, result)
            self._start()
            return
        applied = self._apply(group, result)
        self._start()
        self.wake()
        for pending, outcome in applied:
            _tell(pending.done, outcome)
            for batch, done in pending.retries:
                self._answer_retry(pending.pid, batch, done)

    def _apply(self, group: list[_Pending], offsets: list[int]) -> list[tuple[_Pending, Outcome]]:
        """Move persisted, in the order of the log."""
        now_ms = self._clock_ms()
        counts = self._counts
        applied = []
        for pending, offset in zip(group, offsets, strict=True):
            pid, header = pending.pid, pending.new.header
            rules = rules_of(pid) if pid else None
            if rules is not None:
                self.producers[pid] = fold_packed(
                    rules, self.producers.get(pid), pending.batch, offset, now_ms
                )
                self._land(pid)
            self.next_offset = offset + header.records
            counts.batches += 1
            counts.records += header.records
            counts.bytes += header.size
            counts.appended[rules.policy.value if rules else 0] += 1
            applied.append((pending, Outcome(Status.APPENDED, offset)))
        return applied

    def _land(self, pid: int) -> None:
        flying = self._flying[pid]
        flying.popleft()
        if not flying:
            del self._flying[pid]
            del self._pushed[pid]

    def _answer_retry(self, pid: int, batch: Batch, done: Done) -> None:
        """Judge a retry again, now that what it waited for is acknowledged."""
        rules = rules_of(pid)
        state = self.producers.get(pid)
        verdict = ADMIT if rules is None or state is None else judge_packed(rules, state, batch)
        if rules is None or verdict.kind is Kind.ADMIT:
            # Cannot be: it repeats or straddles what was just applied. If it is, a retry is safe.
            _log.critical("a joined retry would be admitted", pid=pid, batch=batch, state=state)
            _tell(done, self._outcome(None, Outcome(Status.FAILED, reason="send it again")))
            return
        self._refuse(pid, rules, batch, verdict, partial(_tell, done))

    # ------------------------------------------------------------------ failing

    def _fail(self, group: list[_Pending], error: Exception) -> None:
        """Fail a group, and all that is in flight behind it for the same producers."""
        _log.error("append failed", partition=str(self.name), batches=len(group),
                   error=str(error))  # fmt: skip
        stopped = isinstance(error, LogStoppedError) or bool(self.log.stopped)
        status = Status.STOPPED if stopped else Status.FAILED
        pids = {pending.pid for pending in group if pending.pid}
        behind = [p for p in self._queue if stopped or p.pid in pids]
        self._queue = deque(p for p in self._queue if not (stopped or p.pid in pids))
        for pending in (*group, *behind):
            if pending.pid:
                self._fall_back(pending.pid, pending.batch)
        for pending in (*group, *behind):
            policy = policy_of(pending.pid)
            outcome = Outcome(status, reason=str(error))
            _tell(pending.done, self._outcome(policy, outcome))
            for _, done in pending.retries:
                _tell(done, self._outcome(policy, outcome))

    def _fall_back(self, pid: int, batch: Batch) -> None:
        """Let pushed be persisted again, and remember what comes first when it comes again."""
        self._flying.pop(pid, None)
        self._pushed.pop(pid, None)
        self._failed.note(pid, batch)

    # ------------------------------------------------------------------ state

    def is_flying(self, pid: int) -> bool:
        """Whether batches of a PID are in flight."""
        return pid in self._flying

    def forget(self, pid: int) -> None:
        """Let go of a producer whose lease has ended."""
        self.producers.pop(pid, None)
        self._failed.forget(pid)

    def rows(self) -> PartitionRows:
        """What a snapshot holds of this partition, as of now."""
        return PartitionRows(
            self.name, self.topic_id, self.next_offset, self.hole_ms, dict(self.producers)
        )

    def described_producers(self) -> Iterator[tuple[int, ProducerState]]:
        """The producers that are known now, with their states, for a person to look at.

        They may change while the caller takes its time.
        """
        for pid, packed in list(self.producers.items()):
            rules = rules_of(pid)
            if rules is not None:
                yield pid, unpack(rules, packed)

    def producer(self, pid: int) -> ProducerState | None:
        """What is known of a producer, for a person to look at."""
        packed, rules = self.producers.get(pid), rules_of(pid)
        return None if packed is None or rules is None else unpack(rules, packed)

    def some_producers(self, limit: int) -> list[tuple[int, ProducerState]]:
        """Some of the producers that are known, as many as are asked for."""
        states = ((pid, self.producer(pid)) for pid in islice(self.producers, limit))
        return [(pid, state) for pid, state in states if state is not None]

    def restore(self, producers: dict[int, Packed], next_offset: int, hole_ms: int) -> None:
        """Begin with what a snapshot says; `replay` goes on from there."""
        self.producers = producers
        self.next_offset = next_offset
        self.hole_ms = hole_ms

    def replay(self, headers: Iterable[BatchHeader], now_ms: int) -> None:
        """Fold batches of the log into the state. In a thread, before anything is judged."""
        for header in headers:
            pid = header.producer_id
            rules = rules_of(pid) if pid > 0 else None
            if rules is not None:
                batch = batch_of(header)
                state = self.producers.get(pid)
                self.producers[pid] = fold_packed(rules, state, batch, header.base_offset, now_ms)
            self.next_offset = header.last_offset + 1

    def note_leases(self) -> None:
        """Tell the leases which PIDs have state here, after a restore."""
        self._leases.restore(self.producers, self)

    async def delete_records(self, before: int) -> int:
        """Delete all records before an offset, durably. What is known of producers stays.

        Parameters:
            before: the first offset to keep; -1: all that is acknowledged goes.

        Returns:
            The first offset that is left.

        Raises:
            OffsetRangeError: the log ends before it.
            LogStoppedError: the partition is stopped.
            OSError: it could not be made durable.
        """
        start, end = self.log.start_offset, self.readable_end
        before = end if before == -1 else before
        if not 0 <= before <= end:
            raise OffsetRangeError(before, start, end)
        if before > start:
            await self.log.delete_records(before)
        return self.log.start_offset

    # ------------------------------------------------------------------ waiting

    @property
    def readable_end(self) -> int:
        """The first offset that consumers may not read yet."""
        return min(self.next_offset, self.log.end_offset)

    @property
    def in_flight(self) -> int:
        """How many batches are on their way."""
        return len(self._queue) + len(self._writing)

    def watch(self, event: asyncio.Event) -> None:
        """Have an event set whenever records were acknowledged."""
        self._watchers.add(event)

    def wake(self) -> None:
        """Set the events of all who watch."""
        for watcher in self._watchers:
            watcher.set()

    def unwatch(self, event: asyncio.Event) -> None:
        """Leave the event alone from now on."""
        self._watchers.discard(event)


def batch_of(header: BatchHeader) -> Batch:
    """The identity that Kafka's numbering gives a batch (policy kafka), from its header alone."""
    first = header.base_sequence
    last = (first + header.last_offset_delta) & 0x7FFFFFFF
    return Batch(header.producer_epoch, first, last, header.records, header.crc)


def _tell(done: Done, outcome: Outcome) -> None:
    """Tell one of many; what goes wrong there is not to keep the others waiting."""
    try:
        done(outcome)
    except Exception:  # noqa: BLE001 - a door's bug
        _log.exception("an outcome could not be told", outcome=outcome)


def no_policy(pid: int) -> str:
    """What is said of a PID that nobody can have leased."""
    return f"PID {pid} belongs to no policy; lease one by InitProducerId"


def _original(flying: deque[_Pending], batch: Batch) -> _Pending:
    """The batch in flight that a retry repeats; where it only overlaps some, the last of them."""
    for pending in flying:
        if pending.batch[:3] == batch[:3]:  # generation, first, last
            return pending
    return flying[-1]


def _behind_failed(expected: int) -> Outcome:
    reason = f"sequence {expected} failed and comes first again"
    return Outcome(Status.FAILED, expected=expected, reason=reason)
