"""One partition: the path of every batch, from validation to its acknowledgement.

    produce -> judge (by the pushed state) -> append -> apply (to the persisted state) -> complete

The pushed state includes batches in flight to the log, the persisted state only those that the log
has acknowledged. All of this runs on the event loop; the appenders do the append itself.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

import structlog

from pidlease.core.idempotency_keys import is_of_key
from pidlease.core.judge import ADMIT, UNKNOWN, Age, Kind, Verdict, judge, judge_older, malformed
from pidlease.core.packed import Packed, fold_packed, is_newer, judge_packed, offset_of, unpack
from pidlease.core.pid import Policy, policy_of
from pidlease.core.rules import Rules, Start, rules_of
from pidlease.core.state import Batch, ProducerState
from pidlease.core.topic_policy import TopicPolicy
from pidlease.engine.append_outcome import (
    UNKNOWN_OUTCOME,
    Outcome,
    Status,
    refusal_of,
    refusal_of_key,
)
from pidlease.engine.appenders.block_lookup import BlockLookup
from pidlease.engine.appenders.catch_up import LOST, CatchUp, Parked, ParkedBatches
from pidlease.engine.appenders.failed_batches import FailedFirsts
from pidlease.engine.appenders.group_appender import Failed
from pidlease.engine.batch_identity import no_policy
from pidlease.engine.leases.lease_table import LeasedPartition
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.pending_batches import (
    Pending,
    Watched,
    after_failed,
    complete,
    complete_appended,
    original,
)
from pidlease.engine.producer_table import ProducerTable
from pidlease.engine.stream_gate import StreamGate
from pidlease.engine.topic_counts import Counts, TopicCounts
from pidlease.kafka.records.writer_batch import Writer, is_marker_of
from pidlease.log.ports import CommittedPart, ForwardingLog, PartitionLog
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import (
    LogError,
    LogStoppedError,
    NotOwnerError,
    OffsetRangeError,
)
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import PartitionOffset, PartitionRows, TopicPartition
from pidlease.storage.topics.topic_store import Topic

#: How many former PIDs of a name are looked at: those before them have no state any more.
_FORMERS_MAX: Final = 8
#: The outcome of a batch while another server may have stored the preceding one.
_OWNER_UNKNOWN: Final = Outcome(
    Status.FAILED,
    reason="which server serves this partition cannot be known now; send it again",
    code=UNKNOWN_OUTCOME,
)

_log = structlog.get_logger(__name__)


def _supersede(in_flight: Iterable[Pending]) -> None:
    """Mark batches of a producer that sends under a higher generation: they must not be sent."""
    for pending in in_flight:
        pending.superseded = True


class AlreadyRead(NamedTuple):
    """The reads for a batch since it arrived, so that none is repeated.

    Attributes:
        log: whether the log was read, up to its end.
        pid_blocks: whether the PID blocks of other servers were read, from the coordinator.
    """

    log: bool = False
    pid_blocks: bool = False


_NOTHING_READ: Final = AlreadyRead()
#: The outcome if the log must be read before a batch is validated, and may not be waited for.
_READ_AGAIN: Final = Outcome(
    Status.FAILED, reason="the log has changed while the PID was looked up; send it again"
)


class Partition:
    """One partition: validates batches, appends them, and keeps its producers' states.

    Parameters:
        name: the topic and the partition number.
        topic: the topic's definition.
        log: the partition's log.
        around: the parts that all partitions share.
    """

    def __init__(
        self, name: TopicPartition, topic: Topic, log: PartitionLog, around: PartitionContext
    ) -> None:
        self.name: Final = name
        self.topic_id: Final = topic.topic_id
        self.names: Final = around.names
        #: The persisted state of its producers.
        self.table: Final = ProducerTable(name, topic, around.names, log.end_offset)
        self.log = log
        #: The log, if others write to it, too.
        self._forwarding: Final = log if isinstance(log, ForwardingLog) else None
        self.policy = TopicPolicy()
        #: Whether its topic was deleted, or is no longer seen; then no listener finds it.
        self.gone = False
        #: Why this server does not serve it, although others may; empty: it does.
        self.elsewhere = ""
        #: Whether batches of before it went elsewhere may still be in flight.
        self.landing = False
        #: The epoch of its slot when this server took it over, if several servers are active.
        self.epoch = 0
        #: Admits batches if the topic is a stream; None: it is none.
        self.gate: StreamGate | None = None
        self._leases = around.leases
        self._fences = around.leases.fences
        self._formers = around.leases.formers
        #: The counts over all partitions, and those of its topic.
        self.totals: Final[Counts] = around.counts
        self.counts: Final[TopicCounts] = around.counts.of(name.topic)
        self._clock_ms = around.clock_ms
        self._events: Final = around.events
        #: Whether batches are validated.
        self.judging: Final = around.judging
        self._pushed: dict[int, Packed] = {}
        self._in_flight: dict[int, deque[Pending]] = {}
        self._failed = FailedFirsts(around.clock_ms)
        #: Whether this server was the owner at the last catch-up.
        self._read_as_owner = True
        self._appends: Final = around.appends(log, self)
        self._shared: Final = self._appends.shared
        #: The batches that wait for a lookup of PID blocks; None: there were none yet.
        self._lookup: BlockLookup | None = None
        self._watchers: set[asyncio.Event] = set()

    @property
    def policy(self) -> TopicPolicy:
        """The batches that the topic allows; may change at any time."""
        return self._policy

    @policy.setter
    def policy(self, policy: TopicPolicy) -> None:
        self._policy = policy
        self._takes_all = policy.takes_all

    # ------------------------------------------------------------------ validation

    def produce(self, pending: Pending, read: AlreadyRead = _NOTHING_READ) -> None:  # noqa: C901, PLR0912, PLR0915 - the hot path
        """Validate a batch, and append it if it is admitted.

        Parameters:
            pending: the batch; it gets the outcome.
            read: the reads for the batch so far.
        """
        pid = pending.pid
        if self.log.stopped:
            status = Status.NOT_OWNER if self.elsewhere else Status.STOPPED
            self._reject(pending, policy_of(pid), Outcome(status, reason=self.log.stopped))
            return
        if self._shared and self._appends.lost:
            self._give_up(pending, LOST)
            return
        if not self._takes_all and (reason := self._policy.refusal(pid)):
            self._reject(pending, policy_of(pid), Outcome(Status.FORBIDDEN, reason=reason))
            return
        gate = self.gate
        if gate is not None and gate.holds(pending):
            self._park_at(gate, pending, read)
            return
        if pid <= 0 or not self.judging:
            pending.pid = 0
            if self._shared and not read.log:
                reading = self._appends.catch_up_for(0, in_flight=False)
                if reading is not None:
                    self._wait_for(reading, pending, read._replace(log=True))
                    return
            self._push(pending)
            return
        rules = rules_of(pid)
        if rules is None:
            self._reject(pending, None, Outcome(Status.MALFORMED, reason=no_policy(pid)))
            return
        if self._lookup is not None and not read.pid_blocks and self._lookup.holds(pid):
            self._look_up(pending, read)
            return
        in_flight = self._in_flight.get(pid)
        if self._shared and not read.log:
            reading = self._appends.catch_up_for(pid, in_flight=in_flight is not None)
            if reading is not None:
                self._wait_for(reading, pending, read._replace(log=True))
                return
        batch = pending.batch
        state = self._pushed[pid] if in_flight is not None else self.table.states.get(pid)
        verdict = self._judge(rules, pid, state, batch)
        failed = self._failed if self._failed.by_pid else None
        if failed is not None and failed.holds(pid, batch, verdict, known=state is not None):
            # Another server may have stored the failed one meanwhile, and this one's predecessors.
            if not self._reads_on(pending, read):
                self._reject(pending, rules.policy, after_failed(failed.first(pid)))
        elif verdict.kind is not Kind.ADMIT:
            if not self._puts_off(rules, verdict, pending, read):
                self._refuse(rules, pending, verdict)
        elif gate is not None and self._is_kept_out(gate, pending, read):
            pass  # it has its outcome, or waits
        elif state is None and not self._leases.adopt(pid, self):
            self._no_slot(rules, pending)
        else:
            self._pushed[pid] = fold_packed(rules, state, batch, -1, 0)
            if in_flight is None:
                self._in_flight[pid] = in_flight = deque()
            elif in_flight[-1].batch.generation != batch.generation:
                _supersede(in_flight)
            if not batch.first and state is not None and rules.policy is Policy.KAFKA:
                self._note_restart(rules, pending, state)
            in_flight.append(pending)
            if failed is not None:
                failed.forget(pid)
            self._appends.push(pending)

    def _push(self, pending: Pending) -> None:
        """Append a batch that is not validated."""
        if self.gate is None or not self._is_kept_out(self.gate, pending):
            self._appends.push(pending)

    def _is_kept_out(
        self, gate: StreamGate, pending: Pending, read: AlreadyRead = _NOTHING_READ
    ) -> bool:
        """Return whether a stream does not admit a batch, or not yet."""
        if gate.holds(pending):  # a catch-up has found batches of other servers meanwhile
            self._park_at(gate, pending, read)
            return True
        refusal = gate.admits(pending)
        if refusal is None:
            return False
        outcome = Outcome(Status.FORBIDDEN, reason=refusal.value)
        self._reject(pending, policy_of(pending.pid), outcome)
        return True

    def _park_at(self, gate: StreamGate, pending: Pending, read: AlreadyRead) -> None:
        """Validate a batch again when its stream's gate lets it; what is read counts then, too.

        Each read of batches makes the gate read: without that, they would take turns for ever.
        """
        waited = self._watched(pending)
        again, give_up = partial(self.produce, waited, read), partial(self._give_up, waited)
        gate.park(pending, Parked(again, give_up))

    def _watched(self, pending: Pending) -> Pending:
        """Return a batch that waits; where gaps are allowed, those after it fail with it."""
        rules = rules_of(pending.pid)
        if rules is None or not rules.holes:
            return pending
        return Watched(pending, partial(self._fail_waiting, pending.pid))

    def set_stream(self, *, is_stream: bool, pool: IoPool) -> None:
        """Admit batches as a stream does, or as any other topic."""
        if not is_stream:
            self.gate = None
        elif self.gate is None:
            self.gate = StreamGate(self.log, pool, lambda: self.in_flight)

    def _puts_off(
        self, rules: Rules, verdict: Verdict, pending: Pending, read: AlreadyRead
    ) -> bool:
        """Delay a verdict until everything is read that could contradict it.

        Other servers may write to the log. And it may be another one: its topic was deleted and
        created again, or it has lost its end. Only what is appended shows that by itself.

        Returns:
            Whether the batch waits, or got a retriable error instead.
        """
        kind, pid = verdict.kind, pending.pid
        if self._repeats_in_flight(rules, verdict, pending):
            return False
        if kind is Kind.UNKNOWN and not read.pid_blocks and self._leases.unsure(pid):
            self._look_up(pending, read)
            return True
        if self._reads_on(pending, read):
            return True
        if kind is Kind.DUPLICATE:
            return False  # whoever owns the partition, the log has it
        if not self._knows_all_of(pid):
            self._note_failed(rules, pid, pending.batch)
            self._reject(pending, rules.policy, _OWNER_UNKNOWN)
            return True
        if kind is Kind.GAP and self._may_be_elsewhere(rules, pid):
            self._reject(pending, rules.policy, after_failed(verdict.expected))
            return True
        return False

    def _repeats_in_flight(self, rules: Rules, verdict: Verdict, pending: Pending) -> bool:
        """Return whether a batch repeats or straddles an unacknowledged one; it waits for that."""
        pid = pending.pid
        if verdict.kind not in (Kind.DUPLICATE, Kind.OVERLAP) or pid not in self._in_flight:
            return False
        durable = self.table.states.get(pid)
        if durable is None:
            return True
        return judge_packed(rules, durable, pending.batch).kind is not Kind.DUPLICATE

    def _may_be_elsewhere(self, rules: Rules, pid: int) -> bool:
        """Return whether a producer's preceding batch may come again, from another server.

        It was refused there, or here before the takeover, while later batches were on the wire. A
        Kafka client that gets a gap error raises its epoch, and sends all that has no answer again
        under the new one: what is stored already is stored twice.
        """
        if not self._shared or rules.policy is not Policy.KAFKA:
            return False
        in_flight = pid in self._in_flight
        return self._appends.catch_up_for(pid, in_flight=in_flight, waited=True) is not None

    def _reads_on(self, pending: Pending, read: AlreadyRead) -> bool:
        """Validate a batch again after a read of the log; False: there is nothing to read."""
        if not self._shared or read.log:
            return False
        reading = self._appends.catch_up_before_refusal(pending.pid)
        if reading is None:
            return False
        self._wait_for(reading, pending, read._replace(log=True))
        return True

    def _look_up(self, pending: Pending, read: AlreadyRead) -> None:
        """Validate a batch again after a lookup of PID blocks, or after earlier waiting batches."""
        if self._lookup is None:
            self._lookup = BlockLookup(self._leases)
        self._wait_for(self._lookup, pending, read._replace(pid_blocks=True))

    def _wait_for(self, reading: ParkedBatches, pending: Pending, read: AlreadyRead) -> None:
        """Validate a batch again after a read.

        Parameters:
            reading: the batches that wait for this read.
            pending: the batch.
            read: the reads for the batch, this one included.
        """
        waited = self._watched(pending)
        looked_up_last = read.log and reading is self._lookup
        again = partial(self._go_on if looked_up_last else self.produce, waited, read)
        parked = Parked(again, partial(self._give_up, waited), pending)
        reading.park(pending.pid, parked)

    def _go_on(self, pending: Pending, read: AlreadyRead) -> None:
        """Validate a batch after a lookup that came after its read of the log.

        It does not wait for the log again: batches that do so now arrived after it, and would be
        validated before it.
        """
        pid = pending.pid
        in_flight = pid in self._in_flight
        if self._appends.catch_up_for(pid, in_flight=in_flight, waited=True) is None:
            self.produce(pending, read)
        else:
            self._give_up(pending, _READ_AGAIN)

    def _give_up(self, pending: Pending, outcome: Outcome) -> None:
        """Complete a batch that cannot be validated now, and hold off the batches after it."""
        rules = rules_of(pending.pid)
        if rules is not None:
            self._note_failed(rules, pending.pid, pending.batch)
        self._reject(pending, policy_of(pending.pid), outcome)

    def _fail_waiting(self, pid: int) -> None:
        """Fail the waiting batches of a producer, because an earlier one has failed."""
        self._appends.failed(pid)
        if self.gate is not None:
            self.gate.fail(pid)
        if self._lookup is not None:
            self._lookup.fail(pid)

    async def sure_of(self, pid: int) -> bool:
        """Catch up with the log, and return whether all batches of a producer are applied.

        False: this server cannot know that now.
        """
        reading = self._appends.catch_up_before_refusal(pid)
        if reading is None:
            return not self.gone and not self.elsewhere
        known: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def finish(*, sure: bool) -> None:
            if not known.done():
                known.set_result(sure and self._knows_all_of(pid))

        reading.park(pid, Parked(partial(finish, sure=True), lambda _: finish(sure=False)))
        # If it was handed over meanwhile, its state is gone: the PID would seem to begin at 0.
        return await known and not self.gone and not self.log.stopped

    def refuse(self, pending: Pending, outcome: Outcome) -> None:
        """Count and complete a batch that a listener refuses.

        Parameters:
            pending: the batch, with the producer id of its header.
            outcome: the reason for the refusal.
        """
        self._reject(pending, policy_of(pending.pid), outcome)

    def _judge(self, rules: Rules, pid: int, state: Packed | None, batch: Batch) -> Verdict:
        if not self._policy.deduplication:
            return self._let_through(rules, pid, state, batch)
        granted = self._fences.get(pid, -1) if self._fences else -1
        if state is not None:
            verdict = judge_packed(rules, state, batch, granted)
            if verdict.kind is not Kind.ADMIT and self._may_lack(rules, pid, state):
                return judge_older(rules, unpack(rules, state), batch, granted)
            return verdict
        verdict = judge(rules, None, batch, self._leases.age(pid, self.table.hole_ms), granted)
        if verdict.kind is Kind.ADMIT and self._policy.starts_at_zero and batch.first:
            return Verdict(Kind.GAP, expected=0)
        if verdict.kind is Kind.ADMIT and self._stood_before(pid, batch):
            return Verdict(Kind.DUPLICATE)
        return verdict

    def _may_lack(self, rules: Rules, pid: int, state: Packed) -> bool:
        """Return whether a producer may have appended more, in a part of the log that is gone."""
        return pid not in self._in_flight and offset_of(rules, state) < self.table.removed_end

    def _stood_before(self, pid: int, batch: Batch) -> bool:
        """Return whether a batch was stored under the name's former PID: the numbers continue."""
        former = self.former_state(pid)
        return former is not None and batch.last <= former.high

    def former_state(self, pid: int) -> ProducerState | None:
        """Return the state under the last former PID of a PID's name that wrote here."""
        for _ in range(_FORMERS_MAX):
            if pid not in self._formers:
                return None
            pid = self._formers[pid]
            state = self.table.producer(pid)
            if state is not None:
                return state
        return None

    def _let_through(self, rules: Rules, pid: int, state: Packed | None, batch: Batch) -> Verdict:
        """Validate without deduplication: reject malformed batches and unleased PIDs."""
        reason = malformed(rules, batch)
        if reason:
            return Verdict(Kind.MALFORMED, reason=reason)
        if state is None and rules.start_old is not Start.AT_ZERO:
            never = self._leases.age(pid, self.table.hole_ms) is Age.NEVER
            return UNKNOWN if never else ADMIT
        return ADMIT

    def _no_slot(self, rules: Rules, pending: Pending) -> None:
        """Refuse the first batch of a producer for which the lease table has no slot."""
        pid = pending.pid
        if not self._policy.deduplication:
            pending.pid = 0
            self._appends.push(pending)  # the gate has admitted it
            return
        if not self.names.name(pid):
            # Later batches on the wire must not overtake it. (Batches of a policy that counts from
            # 0 cannot, and a producer name gets another stand-in PID the next time.)
            self._note_failed(rules, pid, pending.batch)
        owners = self._leases.owners
        refusal = owners.refusal() if owners is not None else ""
        reason = refusal or "all lease slots are taken"
        self._reject(pending, rules.policy, Outcome(Status.NO_LEASE, reason=reason))

    def _note_failed(self, rules: Rules, pid: int, batch: Batch) -> None:
        """Hold off the batches after a failed one, unless sequence gaps are allowed.

        If they are, the numbers do not show whether the failed one came again, so the listener ends
        the producer's session on its connection.
        """
        if not rules.holes:
            self._failed.note(pid, batch)

    def _refuse(self, rules: Rules, pending: Pending, verdict: Verdict) -> None:
        """Complete a batch that is not admitted, or let it wait for a batch in flight."""
        kind, pid, batch = verdict.kind, pending.pid, pending.batch
        in_flight = self._in_flight.get(pid)
        if in_flight and rules.holes and kind is Kind.OVERLAP:
            # It must not wait: later batches would overtake it, because gaps are allowed.
            reason = "what it straddles is not acknowledged yet; connect again, and send it again"
            self._reject(pending, rules.policy, Outcome(Status.FAILED, reason=reason))
            return
        if in_flight and self._repeats_in_flight(rules, verdict, pending):
            self.totals.joined += 1
            first = original(in_flight, batch)
            if first.retries is None:
                first.retries = []
            first.retries.append(pending)
            return
        if in_flight and kind in (Kind.DUPLICATE, Kind.OVERLAP):
            verdict = judge_packed(rules, self.table.states[pid], batch)
        if verdict.differs:
            self.totals.differing += 1
            LINES.write(_log, "warning", "a duplicate by its sequence numbers has other bytes",
                        (self.name, pid), pid=pid, batch=batch,
                        partition=str(self.name))  # fmt: skip
        if kind is Kind.GAP:
            refuse = partial(self._refuse_now, rules, pending, verdict)
            if pending.waits(verdict.expected, refuse):
                return  # a gap counts when a client gets it
        self._refuse_now(rules, pending, verdict)

    def _refuse_now(self, rules: Rules, pending: Pending, verdict: Verdict) -> None:
        """Log, count and complete a batch that is not admitted."""
        outcome = refusal_of_key(verdict) if is_of_key(pending.pid) else refusal_of(verdict)
        if outcome.status is Status.KEY_REUSED:
            self._events.warn(
                "a batch was refused: key reused", topic=self.name.topic,
                partition=self.name.partition, reason=outcome.reason,
            )  # fmt: skip
        elif outcome.status is not Status.DUPLICATE:
            self._log_refusal(pending.pid, rules, pending.batch, verdict)
        self._reject(pending, rules.policy, outcome)

    def _log_refusal(self, pid: int, rules: Rules, batch: Batch, verdict: Verdict) -> None:
        self._events.warn(
            f"a batch was refused: {verdict.kind.value}", topic=self.name.topic,
            partition=self.name.partition, pid=pid, policy=rules.policy.name.lower(),
            generation=batch.generation, known_generation=verdict.generation, first=batch.first,
            expected=verdict.expected, reason=verdict.reason,
        )  # fmt: skip

    def _reject(self, pending: Pending, policy: Policy | None, outcome: Outcome) -> None:
        """Count and complete a batch that is not appended."""
        self._count(pending, policy, outcome)
        pending.complete(outcome)

    def _count(self, pending: Pending, policy: Policy | None, outcome: Outcome) -> None:
        self.counts.count(policy, outcome.status)
        name = self.names.name(pending.pid)
        self.totals.recent.batch(self.name, pending, outcome, self._clock_ms(), name)

    # ------------------------------------------------------------------ appending

    def apply(self, group: list[Pending], offsets: list[int]) -> None:
        """Apply the batches of one append to the persisted state, in the order of the log."""
        now_ms = self._clock_ms()
        self.totals.appends += 1
        for pending, offset in zip(group, offsets, strict=True):
            self.apply_one(pending, offset, now_ms)

    def apply_one(self, pending: Pending, offset: int, now_ms: int) -> None:
        """Apply a batch to the persisted state.

        Parameters:
            pending: the batch; the earlier ones of its producer are applied.
            offset: the offset of its first record.
            now_ms: the time, in ms since 1970.
        """
        counts, table = self.counts, self.table
        pid, header = pending.pid, pending.header
        rules = rules_of(pid) if pid else None
        if rules is not None:
            state = table.states.get(pid)
            if not self._shared or state is None or offset_of(rules, state) < offset:
                table.states[pid] = fold_packed(rules, state, pending.batch, offset, now_ms)
                if table.changed is not None:
                    table.changed.add(pid)
            in_flight = self._in_flight[pid]
            in_flight.popleft()
            if not in_flight:
                del self._in_flight[pid]
                del self._pushed[pid]
            counts.appended[rules.policy] += 1
        else:
            counts.appended[0] += 1
        records = header.records
        if offset >= table.next_offset:
            table.next_offset = offset + records
        counts.batches += 1
        counts.records += records
        counts.bytes += header.size

    def complete(self, group: list[Pending], offsets: list[int]) -> None:
        """Complete applied batches, then the retries that wait for them."""
        for pending, offset in zip(group, offsets, strict=True):
            self.complete_one(pending, offset)

    def complete_one(self, pending: Pending, offset: int) -> None:
        """Complete an applied batch, then the retries that wait for it."""
        if self._watchers:
            self.wake()
        complete_appended(pending, offset)
        if pending.retries:
            for retry in pending.retries:
                self._answer_retry(retry)

    def _answer_retry(self, retry: Pending) -> None:
        """Complete a retry after the batch that it repeats is acknowledged."""
        pid, batch = retry.pid, retry.batch
        rules = rules_of(pid)
        state = self.table.states.get(pid)
        verdict = ADMIT if rules is None or state is None else judge_packed(rules, state, batch)
        if rules is None or verdict.kind is Kind.ADMIT:
            # Impossible: it repeats or straddles a batch just applied. If not, a retry is safe.
            _log.critical("a joined retry would be admitted", pid=pid, batch=batch, state=state)
            outcome = Outcome(Status.FAILED, reason="send it again")
            self._count(retry, policy_of(pid), outcome)
            complete(retry, outcome)
            return
        try:
            self._refuse(rules, retry, verdict)
        except Exception:  # noqa: BLE001 - a listener's bug must not keep the others waiting
            _log.exception("an outcome could not be delivered", verdict=verdict)

    # ------------------------------------------------------------------ failing

    def fail(self, failed: Failed) -> None:
        """Fall back to the persisted state, and complete failed batches."""
        self.totals.appends += 1
        self.counts.failed += len(failed)
        for pending, _ in failed:
            if pending.pid:
                self._fall_back(pending.pid, pending.batch)
        for pending, outcome in failed:
            policy = policy_of(pending.pid)
            for each in (pending, *(pending.retries or ())):
                self._count(each, policy, outcome)
                complete(each, outcome)

    def _note_restart(self, rules: Rules, pending: Pending, state: Packed) -> None:
        """Count and log that a Kafka client numbers its records anew, under a higher epoch.

        Clients do so after a record has timed out or failed (librdkafka's
        rd_kafka_idemp_drain_epoch_bump, KIP-360). If that record's batch is in the log without the
        client's knowledge, the others of that batch are stored again.
        """
        generation = pending.batch.generation
        if generation == unpack(rules, state).generation:
            return  # the numbers have wrapped
        self.totals.epochs_raised += 1
        LINES.write(_log, "warning", "a Kafka client has raised its producer epoch; records that it"
                    " sends again may be in the log twice", self.name,
                    partition=str(self.name), pid=pending.pid, epoch=generation)  # fmt: skip

    def put_back(self, batches: list[Pending], reading: CatchUp) -> None:
        """Fall back to the persisted state, and validate batches again after a read of the log.

        Parameters:
            batches: all of one producer that are in flight, in order; none has a response of Kafka.
            reading: the batches that wait for the read.
        """
        pid = batches[0].pid
        self._in_flight.pop(pid, None)
        self._pushed.pop(pid, None)
        again: list[Parked] = []
        for pending in batches:
            for each in (pending, *(pending.retries or ())):
                produce = partial(self.produce, each, AlreadyRead(log=True))
                again.append(Parked(produce, partial(self._give_up, each), each))
            pending.retries = None
        reading.put_back(pid, again)

    def _fall_back(self, pid: int, batch: Batch) -> None:
        """Reset a producer's pushed state, and hold off the batches after a failed one."""
        self._in_flight.pop(pid, None)
        self._pushed.pop(pid, None)
        self._fail_waiting(pid)
        rules = rules_of(pid)
        if rules is not None:
            self._note_failed(rules, pid, batch)

    # ------------------------------------------------------------------ state

    @property
    def producers(self) -> dict[int, Packed]:
        """The persisted state of its producers."""
        return self.table.states

    def producer(self, pid: int) -> ProducerState | None:
        """Return a producer's state, unpacked; None: it has none."""
        return self.table.producer(pid)

    @property
    def next_offset(self) -> int:
        """The first offset that is not applied."""
        return self.table.next_offset

    @property
    def hole_ms(self) -> int:
        """When earlier history was found missing, in ms since 1970 (see `PartitionRows`)."""
        return self.table.hole_ms

    def is_in_flight(self, pid: int) -> bool:
        """Return whether batches of a PID are in flight."""
        return pid in self._in_flight

    def forget(self, pid: int) -> None:
        """Forget a producer after its lease has ended."""
        self.table.states.pop(pid, None)
        self._failed.forget(pid)
        self._appends.forget(pid)

    def rows(self) -> PartitionRows:
        """Return this partition's part of a snapshot, as of now."""
        return self.position.rows(self.name, dict(self.table.states))

    @property
    def position(self) -> PartitionOffset:
        """The offset before which everything is applied for certain, and of which log it is."""
        return self.table.position(self._appends.applied, self._appends.leader_epoch)

    def settle(self) -> bool:
        """Start a catch-up if it would move the applied offset on; False: it would not."""
        return self._appends.settle()

    @property
    def is_far_back(self) -> bool:
        """Whether the applied offset is far back, and a catch-up would move it on."""
        return self._appends.is_far_back

    @property
    def applied_offset(self) -> int:
        """The offset before which everything is applied for certain."""
        return self._appends.applied

    async def catch_up(self, log: ForwardingLog) -> None:
        """Apply the part of the log that is not applied yet.

        Another server may have stored batches before this server's applied offset; a catch-up does
        not read them. So only the partition's owner may refuse a batch after a catch-up.
        """
        as_owner = await self._is_owner(log)
        now_ms = self._clock_ms()
        end = await log.look()
        await self.read_on(log, self.applied_offset, end)
        self.caught_up(end, now_ms)
        self._read_as_owner = as_owner

    def _knows_all_of(self, pid: int) -> bool:
        """Return whether all batches of a PID are applied after a catch-up.

        Batches under the partition's writer are: a check, or a takeover, of the writer came first.
        """
        return self._read_as_owner or policy_of(pid) is not Policy.KAFKA

    async def _is_owner(self, log: ForwardingLog) -> bool:
        """Return whether this server owns the partition; False: it cannot know that now.

        Raises:
            NotOwnerError: another server owns it.
        """
        try:
            owned = await log.owned()
        except LogError as error:
            LINES.write(_log, "warning", "the owner of a partition cannot be known now",
                        kind_of(error), partition=str(self.name), error=str(error))  # fmt: skip
            return False
        if owned is False:
            raise NotOwnerError(f"another server serves {self.name}")
        return True

    async def read_on(
        self, log: ForwardingLog, start: int, end: int, marker: Writer | None = None
    ) -> bool:
        """Apply the log from one offset to another (implements `TakeoverTarget`)."""
        start, found = max(start, log.start_offset), False
        if start >= end:
            return found
        now_ms, before = self._clock_ms(), set(self.table.states)
        try:
            async for batches in log.batches_from(start, end):
                self.table.replay(batches, now_ms)
                found = found or any(is_marker_of(each.header, marker) for each in batches)
                if self.gate is not None:
                    self.gate.doubt()
        finally:  # also for the batches that were read before an error
            self._leases.restore(self.table.states.keys() - before, self)
            self._catch_up_pushed()
        return found

    def _catch_up_pushed(self) -> None:
        """Raise the pushed state to the persisted one, if another server stored later batches.

        The batches in flight here are duplicates then, and Kafka's response says so. By the old
        pushed state the next batch would be a gap: a Kafka client would raise its epoch, and send
        the batches again that the other server has stored.
        """
        for pid in self._in_flight:
            rules, state = rules_of(pid), self.table.states.get(pid)
            if rules and state is not None and is_newer(rules, state, self._pushed[pid]):
                self._pushed[pid] = state

    def caught_up(self, end: int, now_ms: int) -> None:
        """Note that the log was applied up to its end at a given time."""
        self._appends.caught_up(end, now_ms)

    def note_leases(self, former: LeasedPartition | None = None) -> None:
        """Register the PIDs with state in the lease table, after a restore and the replay.

        Parameters:
            former: this partition takes its place.
        """
        self._appends.begin(self.table.next_offset)
        self._leases.restore(self.table.states, self, former)

    async def delete_records(self, before: int) -> int:
        """Delete all records before an offset, durably. The producers' states stay.

        Parameters:
            before: the first offset to keep; -1: delete all acknowledged records.

        Returns:
            The new start offset.

        Raises:
            OffsetRangeError: the log ends before the offset.
            LogStoppedError: the partition is stopped.
            OSError: the deletion is not durable.
        """
        self.check_not_stopped()
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
        """The first offset that consumers may not read yet, as far as this server knows.

        In a log with other writers there may be more, and open transactions before it: `stable_end`
        asks the log.
        """
        return self.log.end_offset if self._shared else self._applied_end

    @property
    def _applied_end(self) -> int:
        return min(self.table.next_offset, self.log.end_offset)

    async def stable_end(self) -> int:
        """Return the first offset that consumers may not read yet, now.

        Raises:
            LogError: the log cannot be asked.
        """
        if self._forwarding is not None:
            return await self._forwarding.stable_end()
        return self.readable_end

    async def read(self, offset: int, bytes_max: int) -> CommittedPart:
        """Read what consumers may read now, from the batch that contains an offset.

        Raises:
            OffsetRangeError: the log does not have the offset, and does not end there.
            OldFormatError: the record at the offset is of an old format, and cannot be read.
            LogError: the log cannot be read.
            OSError: the disk cannot be read.
        """
        if self._forwarding is not None:
            return await self._forwarding.read_committed(offset, bytes_max)
        data, whole = await self.log.read(offset, bytes_max)
        return CommittedPart(data, whole, self.readable_end)

    @property
    def log_is_shared(self) -> bool:
        """Whether other servers write to its log. A read of it may wait for long then."""
        return self._shared

    @property
    def incomplete(self) -> str:
        """Why acknowledged records cannot be read; empty: all can be.

        If they cannot, the readable end and the producers' states are too old. A response must not
        pass them off as complete.
        """
        stopped = self.log.stopped
        return stopped if stopped and self._applied_end < self.log.promised_end else ""

    @property
    def known_end(self) -> int:
        """The offset after the last record known to have been acknowledged; only for display."""
        return self.log.promised_end if self.incomplete else self.readable_end

    async def log_range(self) -> tuple[int, int | None]:
        """Return the first offset in the log, and the end: the offset after the last record.

        A log with other writers is asked for both; the end is also that of open transactions. The
        end is None if acknowledged records cannot be read: it is unknown.

        Raises:
            LogError: the log cannot be asked, or Kafka has lost records.
        """
        if isinstance(self.log, ForwardingLog):
            end: int | None = await self.log.look()
        else:
            end = None if self.incomplete else self.readable_end
        return self.log.start_offset, end

    async def readable_range(self) -> tuple[int, int | None]:
        """Return the first offset in the log, and the first one that consumers may not read yet.

        As `log_range`, but records of open transactions are not there yet.

        Raises:
            LogError: the log cannot be asked, or Kafka has lost records.
        """
        start, end = await self.log_range()
        return start, end if self._forwarding is None else await self._forwarding.stable_end()

    @property
    def stopped(self) -> str:
        """Why it accepts no appends although this server serves it; empty: it accepts them."""
        return "" if self.elsewhere else self.log.stopped

    @property
    def has_lost(self) -> bool:
        """Whether its log has lost records that were known to be in it."""
        return isinstance(self.log, ForwardingLog) and self.log.has_lost

    def leave_to(self, reason: str) -> None:
        """Admit no more batches, because this server does not own the partition.

        Parameters:
            reason: for clients: which server owns it.
        """
        self.elsewhere = reason
        self.landing = True
        self.log.stop(reason)
        self.wake()

    def check_owned(self) -> None:
        """Check that this server serves the partition.

        Raises:
            NotOwnerError: another server does.
        """
        if self.elsewhere:
            raise NotOwnerError(f"{self.name}: {self.elsewhere}")

    def check_not_stopped(self) -> None:
        """Check that the partition accepts appends.

        Raises:
            NotOwnerError: another server serves it.
            LogStoppedError: it is stopped.
        """
        self.check_owned()
        if self.log.stopped:
            raise self.stopped_error()

    def stopped_error(self) -> LogStoppedError:
        """Return the error of a partition that is stopped."""
        return LogStoppedError(f"{self.name} is stopped: {self.log.stopped}")

    @property
    def in_flight(self) -> int:
        """How many batches are in flight or wait to be."""
        return self._appends.in_flight

    @property
    def writer(self) -> Writer | None:
        """The writer under which this server sends now; None: none, or its log needs none."""
        return self._appends.writer

    @property
    def taken_over(self) -> bool:
        """Whether another server has taken over as the writer, as far as this one knows."""
        return self._appends.replaced

    @property
    def offsets_to_apply(self) -> int:
        """How many offsets of the log are not applied yet."""
        return max(self.log.end_offset - self.table.next_offset, 0)

    def watch(self, event: asyncio.Event) -> None:
        """Set an event whenever there may be more to read, until `unwatch`."""
        self._watchers.add(event)
        if self._forwarding is not None:
            self._forwarding.follow(self.wake)

    def wake(self) -> None:
        """Set all watching events."""
        for watcher in self._watchers:
            watcher.set()

    def unwatch(self, event: asyncio.Event) -> None:
        """Stop setting an event."""
        self._watchers.discard(event)
        if self._forwarding is not None and not self._watchers:
            self._forwarding.unfollow()
