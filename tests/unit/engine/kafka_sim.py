"""A partition of Kafka by its own rules, a server in front of it that dies, and its clients.

Every step is one thing that happens somewhere; which one is drawn from a seed. Kafka's rules are
those of ProducerAppendInfo and ProducerStateEntry: the last five batches of a producer, the next
sequence or 0 under a higher epoch, and anything from a producer that it does not know. A writer's
epoch is the coordinator's; the partition hears of it by a marker, which comes when it comes.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from pidlease.core.pid import Policy, make_pid
from pidlease.engine.append_outcome import UNKNOWN_OUTCOME, Done, Outcome, Status
from pidlease.engine.appenders.group_appender import Appender, AppendTarget
from pidlease.engine.appenders.kafka_appender import KafkaAppender
from pidlease.engine.batch_identity import batch_of, identified
from pidlease.engine.partition import Partition
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.pending_batches import Submitted
from pidlease.engine.topic_counts import Counts
from pidlease.kafka.codec.produce import PartitionResponse
from pidlease.kafka.records.identity_header import Identity, encode_identity
from pidlease.kafka.records.record_batch import BatchHeader, check_intact, read_header
from pidlease.kafka.records.writer_batch import LoggedBatch, Writer, crc_of_send, under_writer
from pidlease.log.kafka.kafka_partition_log import not_appended, sends_of
from pidlease.log.ports import (
    AppendReceiver,
    CommittedPart,
    Forwarded,
    NewBatch,
    PartitionLog,
)
from pidlease.storage.errors import LogError, LogStoppedError, NotOwnerError
from pidlease.storage.snapshots import PartitionRows, TopicPartition
from pidlease.storage.topics.topic_store import Topic
from tests.sim.batches import make_batch
from tests.unit.engine.fakes import FakeLeases, FakeLog, settle

KEPT_MS = 24 * 3600 * 1000
#: Writers are renewed often here.
WRITER_MS = 30_000
#: The id that the coordinator has given the partition's writer.
WRITER_ID = 4711
CONTROL, NO_CODEC = 0x20, 0
START_MS = 1_700_000_000_000
#: A request that a broker still holds when its connection is gone is worked on within this time.
LATE_MS = 60_000
NOT_ENOUGH_REPLICAS, OUT_OF_ORDER, OLD_EPOCH, TIMED_OUT = 19, 45, 47, 7

Told = Callable[[Forwarded], None]


@dataclass
class Known:
    """What Kafka knows of a producer."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))


class SimKafka:
    """The partition's leader."""

    def __init__(self) -> None:
        self.stored: list[BatchHeader] = []
        self.data: list[bytes] = []
        self.known: dict[int, Known] = {}
        #: The writer's epoch, as the coordinator knows it.
        self.epoch = -1
        #: Another one after the topic was deleted, and created again.
        self.topic_id = "id"

    @property
    def end(self) -> int:
        return self.stored[-1].last_offset + 1 if self.stored else 0

    def take(self, data: bytes) -> tuple[int, int]:
        """The code and the offset that are answered to a batch."""
        header = read_header(data)
        check_intact(header, data)
        pid, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
        if pid < 0:
            return 0, self._store(header, data)
        last = first + header.last_offset_delta
        known = self.known.get(pid)
        if known is not None:
            for each in known.batches:
                if (first, last) == each[:2] and epoch == known.epoch:
                    return 0, each[2]
            if epoch < known.epoch:
                return OLD_EPOCH, -1
            begins = epoch > known.epoch or not known.batches
            if first != (0 if begins else known.batches[-1][1] + 1):
                return OUT_OF_ORDER, -1
        if known is None or epoch > known.epoch:
            known = self.known[pid] = Known(epoch)
        offset = self._store(header, data)
        known.batches.append((first, last, offset))
        return 0, offset

    def _store(self, header: BatchHeader, data: bytes) -> int:
        self.stored.append(header._replace(base_offset=self.end))
        self.data.append(data)
        return self.stored[-1].base_offset

    def mark(self, epoch: int) -> None:
        """The marker of a transaction that was aborted."""
        known = self.known.get(WRITER_ID)
        if known is None or epoch > known.epoch:
            self.known[WRITER_ID] = Known(epoch)
        header = read_header(make_batch([b"marker"]))
        self._store(header._replace(producer_id=WRITER_ID, producer_epoch=epoch,
                                    attributes=CONTROL), b"")  # fmt: skip

    def sends(self, offset: int, end: int | None = None) -> list[LoggedBatch]:
        """As a server reads it."""
        found = []
        for header, data in zip(self.stored, self.data, strict=True):
            if header.last_offset >= offset and (end is None or header.last_offset < end):
                found += sends_of(header, memoryview(data), {WRITER_ID})
        return found

    def restart(self) -> None:
        """Its snapshot keeps the last batch of each producer only."""
        for known in self.known.values():
            for _ in range(len(known.batches) - 1):
                known.batches.popleft()

    def foreign(self) -> None:
        """Somebody writes past the server."""
        self.take(bytes(make_batch([b"foreign"])))


def outcome_of(code: int, offset: int) -> Forwarded:
    """What the log makes of an answer of Kafka."""
    if code == 0 and offset >= 0:
        return Forwarded(0, offset)
    return not_appended(PartitionResponse(code, offset))


def _deliver(new: NewBatch, receiver: AppendReceiver, answer: Forwarded) -> None:
    if answer.offset >= 0:
        receiver.landed(new, answer.offset)
    else:
        receiver.answered(new, answer)


class SimLog(FakeLog):
    """See `ports.ForwardingLog`: one life of the server's connections."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world
        self.end_offset = world.kafka.end
        self.confirmed, self.has_lost, self.leader_epoch = True, False, 0
        self.topic_id = world.kafka.topic_id
        self.producers_kept_ms = KEPT_MS
        self.writer_ms = WRITER_MS
        #: On their way to Kafka, by producer; and answers on their way back.
        self.out: dict[int, deque[tuple[NewBatch, Told]]] = {}
        self.back: dict[int, deque[tuple[Told, Forwarded]]] = {}

    def send(self, producer: int, new: NewBatch, receiver: AppendReceiver) -> None:
        told = partial(_deliver, new, receiver)
        self.out.setdefault(producer, deque()).append((new, told))

    async def _asked(self) -> None:
        gate = asyncio.Event()
        self._world.gates.append(gate)
        await gate.wait()
        if self._world.faults and self._world.random.random() < 0.1:
            raise LogError("nobody answers")

    async def owned(self) -> bool:
        await self._asked()
        return self._world.log is self

    async def take(self, doubt_ms: int) -> Writer:
        if not await self.owned():
            raise NotOwnerError("another one owns it")
        await self._asked()
        kafka = self._world.kafka
        kafka.epoch += 1
        writer = Writer(WRITER_ID, kafka.epoch)
        await self._asked()
        if kafka.epoch != writer.epoch:
            raise LogError("fenced meanwhile")
        self._world.markers.append(writer.epoch)
        return writer

    async def current_writer(self) -> Writer | None:
        await self._asked()
        return Writer(WRITER_ID, self._world.kafka.epoch)

    async def look(self) -> int:
        await self._asked()
        if self._world.kafka.topic_id != self.topic_id:
            self.stop("another topic")
            raise LogStoppedError(self.stopped)
        self.confirmed = True
        return self._world.kafka.end

    async def read_committed(self, offset: int, max_bytes: int) -> CommittedPart:
        raise NotImplementedError("no reader in this simulation")

    async def stable_end(self) -> int:
        return await self.look()

    def follow(self, on_more: Callable[[], None]) -> None:
        raise NotImplementedError("no reader in this simulation")

    def unfollow(self) -> None:
        raise NotImplementedError("no reader in this simulation")

    async def batches_from(self, offset: int, end: int) -> AsyncIterator[list[LoggedBatch]]:
        yield self._world.kafka.sends(offset, end)

    def read_batches(self, offset: int) -> Iterator[LoggedBatch]:
        return iter(self._world.kafka.sends(offset))


class SimClient:
    """A Kafka client: five batches in flight, and retries in order."""

    def __init__(self, world: "World", pid: int, count: int, timestamp: int) -> None:
        self.pid = pid
        self.count = count
        self.acked: dict[int, int] = {}
        #: The errors that it got, with their codes.
        self.errors: set[tuple[Status, int]] = set()
        self._world = world
        self._timestamp = timestamp
        #: Batches in flight, each with the server that it was sent to.
        self._flying: dict[int, Partition] = {}
        self._next = 0
        self._held = False
        self._life = 0
        #: A server that goes on after its successor has started; None: the successor.
        self._server: Partition | None = None

    @property
    def done(self) -> bool:
        return len(self.acked) == self.count

    @property
    def can_send(self) -> bool:
        if self._held:  # again from the first one on, when all have been answered
            return not self._flying and not self.done
        return self._next < self.count and len(self._flying) < 5

    def send(self) -> None:
        if self._held:
            self._held = False
            self._next = min(set(range(self.count)) - self.acked.keys())
        number, life = self._next, self._life
        self._next += 1
        if number in self.acked:
            return
        self._flying[number] = self._server or self._world.partition
        self._produce(number, partial(self._told, life, number))

    def _produce(self, number: int, done: Done) -> None:
        data = make_batch([b"%d" % number], pid=self.pid, epoch=0, first=number,
                          timestamps=self._timestamp)  # fmt: skip
        header = read_header(data)
        server = self._server or self._world.partition
        server.produce(Submitted(self.pid, header, data, batch_of(header), done))

    def stored(self) -> list[tuple[int, int]]:
        """The numbers that stand in the log, with their offsets."""
        return [
            (each.base_sequence, each.base_offset)
            for each in self._world.kafka.stored
            if each.producer_id == self.pid
        ]

    def _told(self, life: int, number: int, outcome: Outcome) -> None:
        if life != self._life:
            return
        self._flying.pop(number, None)
        if outcome.status in (Status.APPENDED, Status.DUPLICATE):
            self.acked[number] = outcome.offset
            return
        self.errors.add((outcome.status, outcome.code))
        fault = self._world.fault
        retriable = outcome.status in (Status.FAILED, Status.NOT_OWNER, Status.SESSION_ENDED) or (
            outcome.status is Status.REFUSED
            and outcome.code in (NOT_ENOUGH_REPLICAS, fault.code if fault else NOT_ENOUGH_REPLICAS)
        )
        if not retriable:
            self._world.wrong.append(f"batch {number} of {self.pid}: {outcome}")
        self._hold()

    def _hold(self) -> None:
        """Send again, to whichever server the next connection reaches."""
        self._held = True
        self._server = None
        if self._moves and self._world.zombies and self._world.random.random() < 0.2:
            self._server = self._world.random.choice(self._world.zombies)

    @property
    def _moves(self) -> bool:
        return self._world.moving

    def disconnected(self) -> None:
        """The server died: what was in flight comes again."""
        self._life += 1
        self._flying.clear()
        self._hold()

    def lost(self, server: Partition) -> None:
        """A server has ended, and with it the connection: no response comes any more."""
        if self._server is server or server in self._flying.values():
            self.disconnected()


def rows_before(number: int) -> int:
    """How many records the batches before one hold: each has one to three."""
    return sum(each % 3 + 1 for each in range(number))


class StrictClient(SimClient):
    """One of ours: batches of some records, under the partition's writer. It may meet a zombie."""

    _moves = True

    def _first(self, number: int) -> int:
        return rows_before(number)

    def _produce(self, number: int, done: Done) -> None:
        begin, end = rows_before(number), rows_before(number + 1)
        server = self._server or self._world.partition
        pid, identity = self._identity(server, number)
        builder: Any = DefaultRecordBatchBuilder(2, NO_CODEC, 0, -1, -1, -1, 1 << 20)
        headers = [("pidlease", encode_identity(identity))]
        for row in range(begin, end):
            value = b"%d/%d" % (self.pid, row)
            builder.append(row - begin, START_MS, None, value, headers if row == begin else [])
        data = bytearray(builder.build())
        header = under_writer(read_header(data), data)
        batch = identified(identity, header, crc_of_send(header, data))
        server.produce(Submitted(pid, header, data, batch, done))

    def _identity(self, server: Partition, number: int) -> tuple[int, Identity]:
        """The PID of a batch at a server, and what its first record says."""
        first, count = self._first(number), number % 3 + 1
        return self.pid, Identity(self.pid, "", 0, first, first + count - 1)

    def rows(self) -> list[tuple[int, int]]:
        """Its rows in the log, in the log's order, with their offsets."""
        found = []
        for header, data in zip(self._world.kafka.stored, self._world.kafka.data, strict=True):
            if header.producer_id == WRITER_ID and data:
                for record in DefaultRecordBatch(data):
                    pid, _, row = record.value.decode().partition("/")
                    if int(pid) == self.pid:
                        found.append((int(row), header.base_offset + record.offset))
        return found

    def stored(self) -> list[tuple[int, int]]:
        rows = self.rows()
        assert [row for row, _ in rows] == list(range(rows_before(self.count))), self.pid
        found = dict(rows)
        return [(number, found[rows_before(number)]) for number in range(self.count)]


class MonotonicClient(StrictClient):
    """One with holes in its numbers. An error ends its session, as a door does it."""

    def __init__(self, world: "World", pid: int, count: int, timestamp: int) -> None:
        super().__init__(world, pid, count, timestamp)
        self._session = [False]

    def _first(self, number: int) -> int:
        return super()._first(number) * 7 + 3

    def _produce(self, number: int, done: Done) -> None:
        session = self._session
        if session[0]:
            done(Outcome(Status.SESSION_ENDED))
            return

        def told(outcome: Outcome) -> None:
            if outcome.status not in (Status.APPENDED, Status.DUPLICATE):
                session[0] = True
            done(outcome)

        super()._produce(number, told)

    def _hold(self) -> None:
        super()._hold()
        self._session = [False]


class EpochClient(StrictClient):
    """One with a string for a producer id, which counts its requests. Its PID is in its values."""

    def _identity(self, server: Partition, number: int) -> tuple[int, Identity]:
        name = f"client {self.pid}"
        return server.names.take(name), Identity(-1, name, 0, number, number)


@dataclass(frozen=True)
class CodeFault:
    """An error code that Kafka answers to a batch, instead of what it would say.

    Attributes:
        code: the error code.
        stored: whether the batch was appended all the same.
    """

    code: int
    stored: bool


class World:
    """All of it.

    Parameters:
        random: draws what happens next.
        producers: how many clients.
        batches: of each.
        strict: how many more, of policy strict; half as many of policy monotonic.
        epoch: how many more, of policy epoch.
        fault: an error code that is to be answered often.
        moving: whether Kafka clients, too, reach servers that were replaced. Kafka knows all of
            them then: whoever it forgets is safe at one server only.
    """

    def __init__(
        self,
        random: Random,
        producers: int,
        batches: int,
        strict: int = 0,
        epoch: int = 0,
        fault: CodeFault | None = None,
        *,
        moving: bool = False,
    ) -> None:
        self.random = random
        self.moving = moving
        self.fault = fault
        self.now_ms = START_MS
        self.faults = True
        self.gates: deque[asyncio.Event] = deque()
        self.wrong: list[str] = []
        self.happened: dict[str, int] = {}
        #: Faults that came when nothing was on its way to Kafka, and never yet when something was.
        self._owed: deque[Callable[[], None]] = deque()
        self.kafka = SimKafka()
        self.late: deque[tuple[int, bytes]] = deque()
        #: Epochs whose markers are on their way.
        self.markers: deque[int] = deque()
        #: Servers that were stopped, and go on behind their successor.
        self.zombies: list[Partition] = []
        self.zombie_logs: list[SimLog] = []
        #: Where clients move, until when a server that was replaced finds that out and ends.
        self._ends_ms: deque[int] = deque()
        self._rows: PartitionRows | None = None
        self.start()
        # Every other one brings records of long ago, which Kafka may forget at any time.
        self.clients = [
            SimClient(self, make_pid(Policy.KAFKA, number), batches,
                      START_MS if number % 2 or moving else START_MS - 10 * KEPT_MS)
            for number in range(1, producers + 1)
        ]  # fmt: skip
        self.clients += [
            StrictClient(self, make_pid(Policy.STRICT, number), batches, START_MS)
            for number in range(1, strict + 1)
        ]
        self.clients += [
            MonotonicClient(self, make_pid(Policy.MONOTONIC, number), batches, START_MS)
            for number in range(1, strict // 2 + 1)
        ]
        self.clients += [
            EpochClient(self, make_pid(Policy.EPOCH, number), batches, START_MS)
            for number in range(1, epoch + 1)
        ]

    def start(self) -> None:
        """A life of the server, from its last snapshot and the log behind it."""
        self.log = SimLog(self)
        leases = FakeLeases()
        around = PartitionContext(leases, Counts(), lambda: self.now_ms, appends=self._lanes)
        self.partition = Partition(TopicPartition("t", 0), Topic("t", "i", 1, {}), self.log, around)
        if self._rows is None:
            self.partition.table.restore({}, 0, -1)
        else:
            self.partition.table.restore(dict(self._rows.producers), self._rows.next_offset, -1)
        self.partition.table.replay(self.log.read_batches(self.partition.next_offset), self.now_ms)
        self.partition.note_leases()

    def _lanes(self, log: PartitionLog, partition: AppendTarget) -> Appender:
        return KafkaAppender(log, partition, lambda: self.now_ms, self._rest)

    async def _rest(self, _: float) -> None:
        """How long a wait lasts is drawn like everything else: the same seed runs the same way."""
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()

    # ------------------------------------------------------------------ what may happen

    async def step(self) -> None:
        """One thing happens."""
        self.now_ms += self.random.randrange(400)
        while self.late and self.late[0][0] <= self.now_ms:
            self._late()
        while self._ends_ms and self._ends_ms[0] <= self.now_ms:
            self._step_down()
        common: list[Callable[[], None]] = [
            self._arrive, self._answer, self._client, self._read
        ] * 12  # fmt: skip
        if self.markers:
            common += [self._mark] * 12
        if self.fault is not None and self.faults:
            common += [self._answer_fault] * 6
        rare = [self._refuse, self._cut, self._time_out, self._late, self._kill, self._stop,
                self._snapshot, self.kafka.restart, self.kafka.foreign, self._forget,
                self.partition.settle, self._plain]  # fmt: skip
        if self.fault is not None:
            common *= 4
        event = self.random.choice([*common, *(rare if self.faults else [])])
        if self._owed and self.faults and any(self.log.out.values()):
            event = self._owed.popleft()
        if self.fault is not None and self.faults and not self.fault_told:
            event = self.random.choice([event, self._answer_fault])
        event()
        await settle()

    @property
    def fault_told(self) -> bool:
        """Whether a client has got the error that the fault's answer is translated to."""
        fault = self.fault
        if fault is None or self.happened.get("fault", 0) < 3:
            return False
        definite = outcome_of(fault.code, -1).definite
        wanted = (Status.REFUSED, fault.code) if definite else (Status.FAILED, UNKNOWN_OUTCOME)
        return any(wanted in client.errors for client in self.clients)

    def _plain(self) -> None:
        """Somebody writes without a PID, and does not care."""
        data = make_batch([b"plain"])
        header = read_header(data)
        self.partition.produce(Submitted(0, header, data, batch_of(header), lambda _: None))

    def _read(self) -> None:
        """Somebody who asked how far the log goes is told."""
        if self.gates:
            self.gates.popleft().set()

    def _mark(self) -> None:
        """A marker comes into the partition, at last."""
        self.kafka.mark(self.markers.popleft())

    def _stop(self) -> None:
        """The server is stopped, and another one takes its place; then it goes on."""
        if not self.moving and not any(isinstance(each, StrictClient) for each in self.clients):
            return
        self._note("stopped")
        self.zombies.append(self.partition)
        self.zombie_logs.append(self.log)
        if self.moving:
            self._ends_ms.append(self.now_ms + LATE_MS)
        for client in self.clients:
            client.disconnected()
        self.start()

    def _step_down(self) -> None:
        """A server that was replaced ends; what it has sent may still be stored."""
        self._ends_ms.popleft()
        server, log = self.zombies.pop(0), self.zombie_logs.pop(0)
        for pid in sorted(log.out):
            self._lose(pid, log)
        for client in self.clients:
            client.lost(server)

    def _note(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    def _client(self) -> None:
        ready = [each for each in self.clients if each.can_send]
        if ready:
            self.random.choice(ready).send()

    def _some(self, queues: Mapping[int, deque[Any]]) -> int | None:
        ready = sorted(pid for pid, queue in queues.items() if queue)
        return self.random.choice(ready) if ready else None

    def _meets(self, kind: str, fault: Callable[[], None]) -> int | None:
        """What is on its way that a fault hits. Each kind is to happen once at least."""
        pid = self._some(self.log.out)
        if pid is None and kind not in self.happened and fault not in self._owed:
            self._owed.append(fault)
        return pid

    def _arrive(self) -> None:
        log = self.random.choice([self.log, self.log, *self.zombie_logs])
        pid = self._some(log.out)
        if pid is not None:
            new, told = log.out[pid].popleft()
            code, offset = self.kafka.take(bytes(new.data))
            if code == OLD_EPOCH:
                self._note("fenced")
            answer = outcome_of(code, offset)
            log.back.setdefault(pid, deque()).append((told, answer))

    def _back(self, pid: int, told: Told, answer: Forwarded) -> None:
        self.log.back.setdefault(pid, deque()).append((told, answer))

    def _answer(self) -> None:
        log = self.random.choice([self.log, self.log, *self.zombie_logs])
        pid = self._some(log.back)
        if pid is not None:
            told, answer = log.back[pid].popleft()
            told(answer)

    def _refuse(self) -> None:
        """Too few replicas: nothing was stored, for certain."""
        pid = self._meets("refused", self._refuse)
        if pid is not None:
            _, told = self.log.out[pid].popleft()
            self._note("refused")
            self._back(pid, told, outcome_of(NOT_ENOUGH_REPLICAS, -1))

    def _answer_fault(self) -> None:
        """The error code that is looked at here."""
        pid, fault = self._some(self.log.out), self.fault
        # Plain batches have no client that would tell.
        if not pid or fault is None:
            return
        new, told = self.log.out[pid].popleft()
        code, offset = self.kafka.take(bytes(new.data)) if fault.stored else (0, -1)
        if not code:
            self._note("fault")
            code = fault.code
        self._back(pid, told, outcome_of(code, offset))

    def _time_out(self) -> None:
        """Stored, and the other replicas were late: nobody knows."""
        pid = self._meets("timed out", self._time_out)
        if pid is not None:
            new, told = self.log.out[pid].popleft()
            code, offset = self.kafka.take(bytes(new.data))
            if not code:
                self._note("timed out")
                code = TIMED_OUT  # beside the offset, as Kafka does it
            self._back(pid, told, outcome_of(code, offset))

    def _cut(self) -> None:
        """A connection ends: answers are lost, and so are requests, but for the first ones."""
        pid = self._meets("cut", self._cut)
        if pid is not None:
            self._note("cut")
            self._lose(pid)

    def _lose(self, pid: int, log: SimLog | None = None) -> None:
        log = log or self.log
        reached = self.random.randrange(3)
        for number, (new, told) in enumerate([*log.out.pop(pid, ())]):
            if number < reached:
                late_ms = self.now_ms + self.random.randrange(LATE_MS)
                self.late.append((late_ms, bytes(new.data)))
                self.late = deque(sorted(self.late, key=lambda each: each[0]))
            answers = log.back.setdefault(pid, deque())
            answers.append((told, Forwarded(0, -1, reason="cut")))
        # Answers that were on their way are lost, too.
        lost = log.back.get(pid, deque())
        log.back[pid] = deque((told, Forwarded(0, -1, reason="cut")) for told, _ in lost)

    def _late(self) -> None:
        """A broker comes to a request whose connection is gone."""
        if self.late:
            _, data = self.late.popleft()
            code, offset = self.kafka.take(data)
            if not code and offset == self.kafka.stored[-1].base_offset:
                self._note("stored late")

    def _forget(self) -> None:
        """Kafka forgets who brings old records.

        Not between two arrivals of one batch: it looks for them every ten minutes, and nothing
        could tell then (docs/in-front-of-kafka.md).
        """
        for client in self.clients[1::2] if not self.moving else ():
            late = any(read_header(each).producer_id == client.pid for _, each in self.late)
            if (
                not late
                and not self.log.out.get(client.pid)
                and self.kafka.known.pop(client.pid, None) is not None
            ):
                self._note("forgotten")

    def _snapshot(self) -> None:
        self._rows = self.partition.rows()

    def _kill(self) -> None:
        """Kill -9 of the server, and a new life."""
        self._note("killed")
        for pid in sorted(self.log.out):
            if self.log.out[pid]:
                self._lose(pid)
        for client in self.clients:
            client.disconnected()
        self.start()

    # ------------------------------------------------------------------ to the end, and looked at

    async def run(self, steps: int) -> None:
        """So many steps with faults, or until a client has met its own; and then without."""
        for number in range(20 * steps):
            if number >= steps and (self.fault is None or self.fault_told):
                break
            await self.step()
        self.faults = False
        for _ in range(200_000):
            if all(client.done for client in self.clients):
                return
            await self.step()
        raise AssertionError(f"stuck: {[len(client.acked) for client in self.clients]}")

    def check(self) -> None:
        """Each record once and in order, where it was told to be, and nothing said for nothing."""
        assert not self.wrong, self.wrong[:3]
        for client in self.clients:
            found = client.stored()
            assert [number for number, _ in found] == list(range(client.count))
            for number, offset in found:
                assert client.acked[number] in (-1, offset)
