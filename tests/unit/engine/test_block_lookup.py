"""PIDs that another server may have leased: refused after a look that began behind the batch."""

import asyncio
from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from typing_extensions import override

from pidlease.coordination.pid_sequence import SequenceError
from pidlease.core.blocks import PidBlock
from pidlease.core.judge import Age
from pidlease.core.pid import Policy, make_pid
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.appenders.catch_up import ParkedBatches
from pidlease.engine.appenders.group_appender import AppendTarget, GroupAppender
from pidlease.engine.batch_identity import identified as judged_by
from pidlease.engine.leases.pid_blocks import PidBlocks
from pidlease.engine.partition import Partition
from pidlease.engine.pending_batches import Submitted
from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.record_batch import read_header
from pidlease.kafka.records.writer_batch import crc_of_send, under_writer
from pidlease.log.ports import PartitionLog
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import TopicPartition
from pidlease.storage.topics.topic_store import Topic
from tests.kafka_listener.batches import identified
from tests.unit.engine.fakes import OTHER, PID, Bench, FakeLeases, settle, statuses

LEASE_MS = 1000
APPENDED, UNKNOWN, FAILED = Status.APPENDED, Status.UNKNOWN, Status.FAILED


# ---------------------------------------------------------------------- one partition


@dataclass
class LookingLeases(FakeLeases):
    """Of some PIDs nothing is known before the test ends a look."""

    unknown: set[int] = field(default_factory=set)
    looks: list[asyncio.Future[None]] = field(default_factory=list)

    def unsure(self, pid: int) -> bool:
        return pid in self.unknown

    async def look(self) -> None:
        self.looks.append(asyncio.get_running_loop().create_future())
        await self.looks[-1]

    def leased_elsewhere(self, pid: int) -> None:
        self.unknown.discard(pid)
        self.ages[pid] = Age.YOUNG

    def never_leased(self, pid: int) -> None:
        self.unknown.discard(pid)


def looking_bench(*pids: int) -> tuple[Bench, LookingLeases]:
    leases = LookingLeases(ages=dict.fromkeys(pids, Age.NEVER), unknown=set(pids))
    return Bench(leases), leases


async def test_a_batch_waits_for_the_look_and_is_stored() -> None:
    bench, leases = looking_bench(PID)
    told = bench.send(0)
    other = bench.send(0, pid=OTHER)
    await bench.flow()
    assert (told, statuses(other)) == ([], [APPENDED]), "only producers in question wait"
    leases.leased_elsewhere(PID)
    leases.looks[0].set_result(None)
    await bench.flow()
    assert statuses(told) == [APPENDED]
    assert len(leases.looks) == 1


async def test_batches_behind_it_wait_too_and_keep_their_order() -> None:
    bench, leases = looking_bench(PID)
    told = [bench.send(0)]
    await settle()
    told.append(bench.send(1))
    leases.leased_elsewhere(PID)  # by the blocks of another look: nothing is to pass the first one
    told.append(bench.send(2))
    await bench.flow()
    assert told == [[], [], []]
    leases.looks[0].set_result(None)
    await bench.flow()
    assert statuses(*told) == [APPENDED] * 3
    assert bench.sequences() == [0, 1, 2]
    assert len(leases.looks) == 1, "who is known needs no look"


async def test_a_pid_that_nobody_leased_is_refused_after_one_look() -> None:
    bench, leases = looking_bench(PID)
    told = bench.send(0)
    await settle()
    assert told == []
    leases.looks[0].set_result(None)
    await bench.flow()
    assert statuses(told) == [UNKNOWN]
    assert len(leases.looks) == 1
    leases.never_leased(PID)
    assert statuses(bench.send(0)) == [UNKNOWN], "no block of the sequence has it: no look"
    assert len(leases.looks) == 1


async def test_a_coordinator_that_is_away_refuses_nobody_for_good() -> None:
    bench, leases = looking_bench(PID)
    first, second = bench.send(0), bench.send(1)
    await settle()
    leases.looks[0].set_exception(SequenceError("away"))
    await settle()
    assert statuses(first, second) == [FAILED, FAILED]
    again = bench.send(1)
    await settle()
    leases.leased_elsewhere(PID)
    leases.looks[1].set_result(None)
    await bench.flow()
    assert statuses(again) == [FAILED], "the first one comes first again"
    assert statuses(await _sent(bench, 0), await _sent(bench, 1)) == [APPENDED] * 2


async def _sent(bench: Bench, first: int) -> list[Outcome]:
    told = bench.send(first)
    await bench.flow()
    return told


async def test_nothing_of_a_monotonic_producer_passes_a_batch_that_failed() -> None:
    """Holes are allowed: what came behind it would make its retry a duplicate."""
    pid = make_pid(Policy.MONOTONIC, 7)
    bench, leases = looking_bench(pid)

    def send(first: int, *, spoilt: bool = False) -> list[Outcome]:
        identity = Identity(pid, "", 0, first, first)
        data = bytearray(identified([b"x"], identity))
        header = under_writer(read_header(data), data)
        batch = judged_by(identity, header, crc_of_send(header, data))
        told: list[Outcome] = []
        if spoilt:
            batch = batch._replace(records=2)
        bench.partition.produce(Submitted(pid, header, data, batch, told.append))
        return told

    told = [send(1), send(2, spoilt=True), send(3)]
    await settle()
    more = send(4)
    leases.leased_elsewhere(pid)
    leases.looks[0].set_result(None)
    await bench.flow()
    assert statuses(*told, more) == [APPENDED, Status.MALFORMED, FAILED, FAILED]


# ---------------------------------------------------------------------- with a log that is read


class ReadOnRequest(ParkedBatches):
    """Batches that wait for a read of the log, which the test ends."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[asyncio.Future[None]] = []

    async def _read(self, producers: Set[int]) -> None:
        self.reads.append(asyncio.get_running_loop().create_future())
        await self.reads[-1]


class ReadingAppender(GroupAppender):
    """An appender of a log that others write to as well: it is read before `ready` is set."""

    shared = True

    def __init__(self, log: PartitionLog, partition: AppendTarget) -> None:
        super().__init__(log, partition)
        self.reading = ReadOnRequest()
        self.ready = False

    @override
    def catch_up_for(  # type: ignore[override]
        self, pid: int, *, in_flight: bool, waited: bool = False
    ) -> ReadOnRequest | None:
        held = not waited and self.reading.holds(pid)
        return self.reading if held or not self.ready else None


def reading_bench() -> tuple[Bench, LookingLeases, ReadingAppender]:
    bench, leases = looking_bench(PID)
    bench.around = replace(bench.around, appends=ReadingAppender)
    bench.partition = Partition(
        TopicPartition("t", 0), Topic("t", "id", 1, {}), bench.log, bench.around
    )
    appender = bench.partition._appends
    assert isinstance(appender, ReadingAppender)
    return bench, leases, appender


async def test_a_lookup_after_a_read_of_the_log_is_not_overtaken_by_the_next_read() -> None:
    """Once a bug: the second batch was validated before the first one, and refused as a gap."""
    bench, leases, appender = reading_bench()
    told = [bench.send(0)]
    await settle()
    told.append(bench.send(1))  # it waits for the read after the one that has begun
    appender.reading.reads[0].set_result(None)
    await settle()
    assert len(leases.looks) == 1, "the first one waits for a lookup"
    assert len(appender.reading.reads) == 2, "the second one waits for the log"
    appender.ready = True
    leases.leased_elsewhere(PID)
    leases.looks[0].set_result(None)
    await settle()
    appender.reading.reads[1].set_result(None)
    await bench.flow()
    assert statuses(*told) == [APPENDED, APPENDED]
    assert bench.sequences() == [0, 1]


async def test_what_was_looked_up_is_sent_again_if_the_log_must_be_read_meanwhile() -> None:
    """It does not wait for the log: what waits there has come after it."""
    bench, leases, appender = reading_bench()
    told = [bench.send(0)]
    await settle()
    told.append(bench.send(1))
    appender.reading.reads[0].set_result(None)
    await settle()
    leases.leased_elsewhere(PID)
    leases.looks[0].set_result(None)  # but it is not ready
    await settle()
    assert statuses(told[0]) == [FAILED]
    appender.ready = True
    appender.reading.reads[1].set_result(None)
    await bench.flow()
    assert statuses(told[1]) == [FAILED], "the first one has to come again"
    assert bench.sequences() == []
    again = [bench.send(0), bench.send(1)]
    await bench.flow()
    assert statuses(*again) == [APPENDED, APPENDED]
    assert bench.sequences() == [0, 1]


# ---------------------------------------------------------------------- the looks


class Coordinator:
    """The sequence of several servers; a read returns what was there when it ended."""

    shared = True

    def __init__(self) -> None:
        self.recorded = [PidBlock(1, 100, 0, "before")]
        self.asked: list[int] = []
        self.error: Exception | None = None

    def blocks(self, beyond: int = 0) -> list[PidBlock]:
        self.asked.append(beyond)
        if self.error is not None:
            raise self.error
        return [block for block in self.recorded if block.end > beyond]

    def take(self, at_least: int = 1) -> PidBlock:
        return self.record("me")

    def record(self, owner: str) -> PidBlock:
        block = PidBlock(self.recorded[-1].end, 100, 10_000, owner)
        self.recorded.append(block)
        return block


class GatedPool(IoPool):
    """Jobs are done when the test says so; their results come a moment later."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop(), threads=0)
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((work, done))

    def read(self) -> Callable[[], None]:
        """The read happens now; what is returned brings its result."""
        work, done = self.jobs.pop(0)
        result: Any
        try:
            result = work()
        except SequenceError as error:
            result = error
        return lambda: done(result)


class Looks:
    """The blocks of one server."""

    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.pool = GatedPool()
        self.blocks = PidBlocks(self.coordinator, self.pool, lambda: 10_000, LEASE_MS)
        self.blocks.load()

    def look(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.blocks.look())

    async def job(self) -> Callable[[], None]:
        """The next read, when it has begun."""
        async with asyncio.timeout(30):
            while not self.pool.jobs:  # noqa: ASYNC110 - a look rests a moment before it begins
                await asyncio.sleep(0.001)
        return self.pool.read()


def kafka(number: int) -> int:
    return make_pid(Policy.KAFKA, number)


async def test_blocks_of_others_between_ours_are_in_question() -> None:
    looks = Looks()
    looks.coordinator.record("other")  # 101 to 200
    looks.blocks.first(0)  # ours, 201 to 300
    assert not looks.blocks.unsure(kafka(50))
    assert looks.blocks.unsure(kafka(150)), "below our own block, and nobody has looked"
    assert not looks.blocks.unsure(kafka(250))
    assert looks.blocks.unsure(kafka(350))
    looking = looks.look()
    (await looks.job())()
    await looking
    assert looks.coordinator.asked == [0, 101]
    assert [looks.blocks.ages.taken_ms(kafka(n)) for n in (50, 150, 250, 350)] == [
        0, 10_000, 10_000, -1,
    ]  # fmt: skip
    assert [looks.blocks.unsure(kafka(n)) for n in (150, 250, 350)] == [False, False, True]


async def test_a_look_serves_only_those_who_came_before_it_began() -> None:
    """The model's kafka-unknown-block: what was leased behind the read is not unknown."""
    looks = Looks()
    before = [looks.look() for _ in range(3)]
    result = await looks.job()
    block = looks.coordinator.record("other")
    late = [looks.look() for _ in range(3)]
    await settle()
    result()
    await asyncio.gather(*before)
    assert looks.blocks.unsure(kafka(block.first))
    await settle()
    assert not any(each.done() for each in late), "the look had begun before they came"
    (await looks.job())()
    await asyncio.gather(*late)
    assert not looks.blocks.unsure(kafka(block.first))
    assert len(looks.coordinator.asked) == 3, "the start, and one look for each three"


async def test_a_look_that_fails_is_told_and_the_next_one_looks_again() -> None:
    looks = Looks()
    looks.coordinator.error = SequenceError("ZooKeeper is away")
    looking, gone = looks.look(), looks.look()
    await settle()
    gone.cancel()
    (await looks.job())()
    with pytest.raises(SequenceError, match="is away"):
        await looking
    looks.coordinator.error = None
    block = looks.coordinator.record("other")
    looking = looks.look()
    (await looks.job())()
    await looking
    assert not looks.blocks.unsure(kafka(block.first))


async def test_who_has_a_sequence_alone_is_never_unsure() -> None:
    looks = Looks()
    looks.coordinator.shared = False
    assert not looks.blocks.unsure(kafka(350))
