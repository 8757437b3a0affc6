"""A partition of Kafka by its own rules, a server in front of it that dies, and its clients.

Every step is one thing that happens somewhere; which one is drawn from a seed. Kafka's rules are
those of ProducerAppendInfo and ProducerStateEntry: the last five batches of a producer, the next
sequence or 0 under a higher epoch, and anything from a producer that it does not know.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from pidlease.core.pid import Policy, make_pid
from pidlease.engine.appends import Appending, Appends
from pidlease.engine.counts import Counts
from pidlease.engine.lanes import Lanes
from pidlease.engine.outcome import Outcome, Status
from pidlease.engine.partition import Partition, Surroundings
from pidlease.engine.whose import batch_of
from pidlease.storage.errors import LogError
from pidlease.storage.ports import Forwarded, NewBatch, PartitionLog
from pidlease.storage.record_batch import BatchHeader, read_header
from pidlease.storage.snapshots import PartitionRows, TopicPartition
from pidlease.storage.topics import Topic
from pidlease.storage.writer import LoggedBatch
from tests.sim.batches import make_batch
from tests.unit.engine.fakes import FakeLeases, FakeLog, settle

KEPT_MS = 24 * 3600 * 1000
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
        self.known: dict[int, Known] = {}

    @property
    def end(self) -> int:
        return self.stored[-1].last_offset + 1 if self.stored else 0

    def take(self, header: BatchHeader) -> tuple[int, int]:
        """The code and the offset that are answered to a batch."""
        pid, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
        if pid < 0:
            self.stored.append(header._replace(base_offset=self.end))
            return 0, self.stored[-1].base_offset
        last = first + header.last_offset_delta
        known = self.known.get(pid)
        if known is not None:
            for each in known.batches:
                if (first, last) == each[:2] and epoch == known.epoch:
                    return 0, each[2]
            if epoch < known.epoch:
                return OLD_EPOCH, -1
            if first != (0 if epoch > known.epoch else known.batches[-1][1] + 1):
                return OUT_OF_ORDER, -1
        if known is None or epoch > known.epoch:
            known = self.known[pid] = Known(epoch)
        offset = self.end
        known.batches.append((first, last, offset))
        self.stored.append(header._replace(base_offset=offset))
        return 0, offset

    def restart(self) -> None:
        """Its snapshot keeps the last batch of each producer only."""
        for known in self.known.values():
            last = known.batches[-1]
            known.batches.clear()
            known.batches.append(last)

    def foreign(self) -> None:
        """Somebody writes past the server."""
        header = read_header(make_batch([b"foreign"]))
        self.stored.append(header._replace(base_offset=self.end))


class SimLog(FakeLog):
    """See `ports.ForwardingLog`: one life of the server's connections."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world
        self.end_offset = world.kafka.end
        self.producers_kept_ms = KEPT_MS
        #: On their way to Kafka, by producer; and answers on their way back.
        self.out: dict[int, deque[tuple[NewBatch, Told]]] = {}
        self.back: dict[int, deque[tuple[Told, Forwarded]]] = {}

    def send(self, producer: int, new: NewBatch, told: Told) -> None:
        self.out.setdefault(producer, deque()).append((new, told))

    async def look(self) -> int:
        gate = asyncio.Event()
        self._world.gates.append(gate)
        await gate.wait()
        if self._world.faults and self._world.random.random() < 0.1:
            raise LogError("nobody answers")
        return self._world.kafka.end

    async def batches_from(self, offset: int, end: int) -> AsyncIterator[list[LoggedBatch]]:
        yield [LoggedBatch(each) for each in self._world.kafka.stored
               if offset <= each.last_offset < end]  # fmt: skip

    def read_batches(self, offset: int) -> Iterator[LoggedBatch]:
        return (LoggedBatch(each) for each in self._world.kafka.stored
                if each.last_offset >= offset)  # fmt: skip


class SimClient:
    """A Kafka client: five batches in flight, and retries in order."""

    def __init__(self, world: "World", pid: int, count: int, timestamp: int) -> None:
        self.pid = pid
        self.count = count
        self.acked: dict[int, int] = {}
        self._world = world
        self._timestamp = timestamp
        self._flying: set[int] = set()
        self._next = 0
        self._held = False
        self._life = 0

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
        data = make_batch([b"%d" % number], pid=self.pid, epoch=0, first=number,
                          timestamps=self._timestamp)  # fmt: skip
        header = read_header(data)
        self._flying.add(number)
        self._world.partition.produce(
            self.pid, header, data, batch_of(header), partial(self._told, life, number)
        )

    def _told(self, life: int, number: int, outcome: Outcome) -> None:
        if life != self._life:
            return
        self._flying.discard(number)
        if outcome.status in (Status.APPENDED, Status.DUPLICATE):
            self.acked[number] = outcome.offset
            return
        retriable = outcome.status is Status.FAILED or outcome.code == NOT_ENOUGH_REPLICAS
        if not retriable:
            self._world.wrong.append(f"batch {number} of {self.pid}: {outcome}")
        self._hold()

    def _hold(self) -> None:
        self._held = True

    def disconnected(self) -> None:
        """The server died: what was in flight comes again."""
        self._life += 1
        self._flying.clear()
        self._hold()


class World:
    """All of it.

    Parameters:
        random: draws what happens next.
        producers: how many clients.
        batches: of each.
    """

    def __init__(self, random: Random, producers: int, batches: int) -> None:
        self.random = random
        self.now_ms = START_MS
        self.faults = True
        self.gates: deque[asyncio.Event] = deque()
        self.wrong: list[str] = []
        self.happened: dict[str, int] = {}
        self.kafka = SimKafka()
        self.late: deque[tuple[int, BatchHeader]] = deque()
        self._rows: PartitionRows | None = None
        self.start()
        # Every other one brings records of long ago, which Kafka may forget at any time.
        self.clients = [
            SimClient(self, make_pid(Policy.KAFKA, number), batches,
                      START_MS if number % 2 else START_MS - 10 * KEPT_MS)
            for number in range(1, producers + 1)
        ]  # fmt: skip

    def start(self) -> None:
        """A life of the server, from its last snapshot and the log behind it."""
        self.log = SimLog(self)
        leases = FakeLeases()
        around = Surroundings(leases, Counts({}), lambda: self.now_ms, appends=self._lanes)
        self.partition = Partition(TopicPartition("t", 0), Topic("t", "i", 1, {}), self.log, around)
        if self._rows is None:
            self.partition.restore({}, 0, -1)
        else:
            self.partition.restore(dict(self._rows.producers), self._rows.next_offset, -1)
        self.partition.replay(self.log.read_batches(self.partition.next_offset), self.now_ms)
        self.partition.note_leases()

    def _lanes(self, log: PartitionLog, partition: Appending) -> Appends:
        return Lanes(log, partition, lambda: self.now_ms)

    # ------------------------------------------------------------------ what may happen

    async def step(self) -> None:
        """One thing happens."""
        self.now_ms += self.random.randrange(400)
        while self.late and self.late[0][0] <= self.now_ms:
            self._late()
        common: list[Callable[[], None]] = [
            self._arrive, self._answer, self._client, self._read
        ] * 12  # fmt: skip
        rare = [self._refuse, self._cut, self._time_out, self._late, self._kill, self._snapshot,
                self.kafka.restart, self.kafka.foreign, self._forget,
                self.partition.settle, self._plain]  # fmt: skip
        event = self.random.choice([*common, *(rare if self.faults else [])])
        event()
        await settle()

    def _plain(self) -> None:
        """Somebody writes without a PID, and does not care."""
        data = make_batch([b"plain"])
        header = read_header(data)
        self.partition.produce(0, header, data, batch_of(header), lambda _: None)

    def _read(self) -> None:
        """Somebody who asked how far the log goes is told."""
        if self.gates:
            self.gates.popleft().set()

    def _note(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    def _client(self) -> None:
        ready = [each for each in self.clients if each.can_send]
        if ready:
            self.random.choice(ready).send()

    def _some(self, queues: Mapping[int, deque[Any]]) -> int | None:
        ready = sorted(pid for pid, queue in queues.items() if queue)
        return self.random.choice(ready) if ready else None

    def _arrive(self) -> None:
        pid = self._some(self.log.out)
        if pid is not None:
            new, told = self.log.out[pid].popleft()
            code, offset = self.kafka.take(new.header)
            self._back(pid, told, Forwarded(code, offset, reason=f"code {code}"))

    def _back(self, pid: int, told: Told, answer: Forwarded) -> None:
        self.log.back.setdefault(pid, deque()).append((told, answer))

    def _answer(self) -> None:
        pid = self._some(self.log.back)
        if pid is not None:
            told, answer = self.log.back[pid].popleft()
            told(answer)

    def _refuse(self) -> None:
        """Too few replicas: nothing was stored, for certain."""
        pid = self._some(self.log.out)
        if pid is not None:
            _, told = self.log.out[pid].popleft()
            self._note("refused")
            self._back(pid, told, Forwarded(NOT_ENOUGH_REPLICAS, -1, definite=True, reason="isr"))

    def _time_out(self) -> None:
        """Stored, and the other replicas were late: nobody knows."""
        pid = self._some(self.log.out)
        if pid is not None:
            new, told = self.log.out[pid].popleft()
            code, offset = self.kafka.take(new.header)
            if not code:
                self._note("timed out")
                code, offset = TIMED_OUT, -1
            self._back(pid, told, Forwarded(code, offset, reason="late replicas"))

    def _cut(self) -> None:
        """A connection ends: answers are lost, and so are requests, but for the first ones."""
        pid = self._some(self.log.out)
        if pid is not None:
            self._note("cut")
            self._lose(pid)

    def _lose(self, pid: int) -> None:
        reached = self.random.randrange(3)
        for number, (new, told) in enumerate([*self.log.out.pop(pid, ())]):
            if number < reached:
                self.late.append((self.now_ms + self.random.randrange(LATE_MS), new.header))
                self.late = deque(sorted(self.late, key=lambda each: each[0]))
            answers = self.log.back.setdefault(pid, deque())
            answers.append((told, Forwarded(0, -1, reason="cut")))
        # Answers that were on their way are lost, too.
        lost = self.log.back.get(pid, deque())
        self.log.back[pid] = deque((told, Forwarded(0, -1, reason="cut")) for told, _ in lost)

    def _late(self) -> None:
        """A broker comes to a request whose connection is gone."""
        if self.late:
            _, header = self.late.popleft()
            code, offset = self.kafka.take(header)
            if not code and offset == self.kafka.stored[-1].base_offset:
                self._note("stored late")

    def _forget(self) -> None:
        """Kafka forgets who brings old records.

        Not between two arrivals of one batch: it looks for them every ten minutes, and nothing
        could tell then (docs/in-front-of-kafka.md).
        """
        for client in self.clients[1::2]:
            late = any(each.producer_id == client.pid for _, each in self.late)
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
        """So many steps with faults, and as many as it takes without."""
        for _ in range(steps):
            await self.step()
        self.faults = False
        for _ in range(200_000):
            if all(client.done for client in self.clients):
                return
            await self.step()
        raise AssertionError(f"stuck: {[len(client.acked) for client in self.clients]}")

    def check(self) -> None:
        """Each record once and in order, where it was told to be, and nothing said for nothing."""
        assert not self.wrong
        for client in self.clients:
            found = [each for each in self.kafka.stored if each.producer_id == client.pid]
            assert [each.base_sequence for each in found] == list(range(client.count))
            for each in found:
                assert client.acked[each.base_sequence] in (-1, each.base_offset)
