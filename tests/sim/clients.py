"""A naive idempotent producer: what any client of the protocol does, and nothing clever.

At most five batches in flight for each partition, sent in order; after a retriable error it
waits until all in flight are answered and sends them again in order, with the same boundaries;
after a lost connection it does so at once. It never uses a sequence for other content.

Between client and server lies a wire: what was sent arrives later, in order for each connection.
What a lost connection still carried may arrive as well, before or after what the next one brings.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.batch_identity import batch_of
from pidlease.engine.partition import Partition
from pidlease.engine.pending_batches import Submitted
from pidlease.kafka.records.record_batch import read_header
from tests.sim.batches import make_batch

IN_FLIGHT_MAX: Final = 5

#: Answers on which a client sends again.
RETRIABLE: Final = frozenset((Status.FAILED, Status.STOPPED, Status.NO_LEASE))
SUCCESS: Final = frozenset((Status.APPENDED, Status.DUPLICATE))


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A batch of a client: sequence of its first record, and the records."""

    first: int
    values: list[bytes]


@dataclass(slots=True, eq=False)
class Stream:
    """One producer's batches for one partition; lives on when the server dies."""

    name: str
    partition: int
    target: int
    pid: int = -1
    produced: list[bytes] = field(default_factory=list)
    acknowledged: int = 0
    offsets: dict[int, bytes] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    statuses: Counter[Status] = field(default_factory=Counter)
    _unacked: deque[Sent] = field(default_factory=deque)
    _sent: int = 0
    _flying: int = 0
    _connection: int = 0
    _wires: list[deque[tuple[int, Sent]]] = field(default_factory=lambda: [deque()])
    _failed: bool = False
    _made: int = 0

    @property
    def done(self) -> bool:
        """Whether all batches were acknowledged."""
        return self._made == self.target and not self._unacked

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight on this connection."""
        return self._flying == 0

    def connect(self, *, server_died: bool = False) -> None:
        """Lose the connection with all answers on it, and connect again."""
        self._connection += 1
        if server_died:
            self._wires.clear()
        self._wires.append(deque())
        self._flying = self._sent = 0
        self._failed = False

    def deliver(self, partition: Partition, random: Random) -> None:
        """Let the server read a batch from one of the connections."""
        self._wires = [wire for wire in self._wires[:-1] if wire] + self._wires[-1:]
        wire = random.choice(self._wires)
        if wire:
            connection, sent = wire.popleft()
            data = make_batch(sent.values, pid=self.pid, epoch=0, first=sent.first)
            header = read_header(data)
            answer = partial(self._answered, connection, sent)
            partition.produce(Submitted(self.pid, header, data, batch_of(header), answer))

    def send(self, random: Random) -> None:
        """Send a batch, if it is time for one."""
        if self._failed:
            if self._flying:
                return
            self._failed = False
            self._sent = 0
        if self._flying >= IN_FLIGHT_MAX:
            return
        if self._sent == len(self._unacked):
            if len(self._unacked) >= IN_FLIGHT_MAX or self._made == self.target:
                return
            self._make(random)
        sent = self._unacked[self._sent]
        self._sent += 1
        self._flying += 1
        self._wires[-1].append((self._connection, sent))

    def _make(self, random: Random) -> None:
        first = len(self.produced)
        count = random.choice([1, 1, 1, 2, 5])
        size = random.choice([0, 0, 10, 100, 500])
        values = [b"%s/%d " % (self.name.encode(), first + n) + b"." * size for n in range(count)]
        self.produced.extend(values)
        self._unacked.append(Sent(first, values))
        self._made += 1

    def _answered(self, connection: int, sent: Sent, outcome: Outcome) -> None:
        if connection != self._connection:
            return  # nobody listens any more
        self._flying -= 1
        self.statuses[outcome.status] += 1
        if outcome.status in RETRIABLE:
            self._failed = True
        elif outcome.status not in SUCCESS:
            self.errors.append(f"{self.name}: {sent.first} was answered {outcome}")
        elif not self._unacked or self._unacked[0] is not sent:
            # Those in front failed, and then came through from a connection that was lost.
            self._failed = True
        else:
            self._unacked.popleft()
            self._sent -= 1
            self.acknowledged += len(sent.values)
            if outcome.offset >= 0:
                self.offsets[outcome.offset] = sent.values[0]
