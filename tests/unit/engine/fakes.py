"""A log that does what a test says, and what else a partition needs around it."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pidlease.core.judge import Age
from pidlease.core.pid import Policy, make_pid
from pidlease.core.timed_offset import TimedOffset
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.batch_identity import batch_of
from pidlease.engine.leases.lease_owners import LeaseOwners
from pidlease.engine.leases.lease_table import LeasedPartition
from pidlease.engine.leases.leases import Leases
from pidlease.engine.partition import Partition
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.pending_batches import Submitted
from pidlease.engine.topic_counts import Counts
from pidlease.kafka.records.record_batch import BatchHeader, read_header
from pidlease.kafka.records.writer_batch import LoggedBatch
from pidlease.log.ports import AppendDone, LogPart, NewBatch
from pidlease.storage.errors import AppendFailedError, LogError, LogStoppedError
from pidlease.storage.snapshots import TopicPartition
from pidlease.storage.topics.topic_store import Topic
from tests.sim.batches import make_batch

PID = make_pid(Policy.KAFKA, 1)
OTHER = make_pid(Policy.KAFKA, 2)


class FakeLog:
    """See `ports.PartitionLog`. An append waits until the test lets it through, or fails it."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self.stopped = ""
        self.waiting: tuple[Sequence[NewBatch], AppendDone] | None = None
        self.stored: list[BatchHeader] = []
        self.groups: list[int] = []

    def append(self, batches: Sequence[NewBatch], done: AppendDone) -> None:
        assert self.waiting is None, "an append while another one is under way"
        assert batches
        self.waiting = batches, done

    def succeed(self) -> None:
        """Let the append that waits through."""
        batches, done = self._take()
        offsets = []
        for header in (each.header for each in batches):
            offsets.append(self.end_offset)
            self.stored.append(header._replace(base_offset=self.end_offset))
            self.end_offset += header.records
        self.groups.append(len(batches))
        done(offsets)

    def fail(self, error: LogError | None = None) -> None:
        """Fail the append that waits."""
        _, done = self._take()
        done(error or AppendFailedError("no space left"))

    def _take(self) -> tuple[Sequence[NewBatch], AppendDone]:
        assert self.waiting is not None, "no append is under way"
        waiting, self.waiting = self.waiting, None
        return waiting

    @property
    def promised_end(self) -> int:
        return self.end_offset

    def stop(self, reason: str, detail: str = "") -> None:
        self.stopped = reason

    def stop_short(self, reason: str, offset: int, detail: str = "") -> None:
        self.stop(reason, detail)

    async def flush(self, *, timed: bool = False) -> None:
        if self.stopped:
            raise LogStoppedError(self.stopped)

    @property
    def kept_offset(self) -> int:
        return self.start_offset

    async def delete_records(self, before: int) -> None:
        self.start_offset = before

    async def retain(self, limit_offset: int, now_ms: int) -> int:
        return 0

    async def read(self, offset: int, max_bytes: int) -> LogPart:
        raise NotImplementedError

    async def find_time(self, timestamp: int) -> TimedOffset | None:
        return None

    def read_batches(self, offset: int) -> Iterator[LoggedBatch]:
        return (LoggedBatch(header) for header in self.stored if header.last_offset >= offset)


@dataclass
class FakeLeases(Leases):
    """The leases, as far as a partition uses them."""

    ages: dict[int, Age] = field(default_factory=dict)
    full: bool = False
    adopted: list[int] = field(default_factory=list)
    fences: dict[int, int] = field(default_factory=dict)
    formers: dict[int, int] = field(default_factory=dict)
    owners: LeaseOwners | None = None

    def age(self, pid: int, hole_ms: int) -> Age:
        return self.ages.get(pid, Age.YOUNG)

    def adopt(self, pid: int, partition: LeasedPartition) -> bool:
        if not self.full:
            self.adopted.append(pid)
        return not self.full

    def unsure(self, pid: int) -> bool:
        return False

    async def look(self) -> None:
        raise AssertionError("nothing is unsure")

    def restore(
        self,
        pids: Iterable[int],
        partition: LeasedPartition,
        former: LeasedPartition | None = None,
    ) -> None:
        self.adopted += pids


class Bench:
    """A partition with a fake log, a clock that stands, and short words to use it."""

    def __init__(self, leases: FakeLeases | None = None) -> None:
        self.log = FakeLog()
        self.leases = FakeLeases() if leases is None else leases
        self.now_ms = 1000
        #: The batches that were sent, in order.
        self.pendings: list[Submitted] = []
        self.around = PartitionContext(self.leases, Counts(), lambda: self.now_ms)
        self.partition = Partition(
            TopicPartition("t", 0), Topic("t", "id", 1, {}), self.log, self.around
        )

    def send(
        self, first: int, count: int = 1, *, pid: int = PID, epoch: int = 0, content: bytes = b""
    ) -> list[Outcome]:
        """Produce a batch; the list holds the outcome as soon as there is one."""
        values = [b"%d" % (first + index) + content for index in range(count)]
        data = make_batch(values, pid=pid, epoch=epoch, first=first)
        header = read_header(data)
        told: list[Outcome] = []
        self.pendings.append(Submitted(pid, header, data, batch_of(header), told.append))
        self.partition.produce(self.pendings[-1])
        return told

    async def flow(self) -> None:
        """Let all appends through, until nothing is in flight."""
        await settle()
        while self.log.waiting is not None:
            self.log.succeed()
            await settle()

    async def fail(self, error: LogError | None = None) -> None:
        """Fail the next append."""
        await settle()
        self.log.fail(error)
        await settle()

    def sequences(self, pid: int = PID) -> list[int]:
        """What stands in the log of a producer."""
        return [
            header.base_sequence + index
            for header in self.log.stored
            if header.producer_id == pid
            for index in range(header.records)
        ]


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def statuses(*told: list[Outcome]) -> list[Status]:
    """The outcomes; each batch must have exactly one."""
    assert [len(each) for each in told] == [1] * len(told), told
    return [each[0].status for each in told]


def offsets(*told: list[Outcome]) -> list[int]:
    """The offsets that were told."""
    return [each[0].offset for each in told]
