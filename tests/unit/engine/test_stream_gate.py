"""Batches that wait until a stream's end is known keep their order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import pytest_asyncio
from typing_extensions import override

from pidlease.core.pid import Policy, make_pid
from pidlease.core.state import Batch
from pidlease.engine.batch_identity import batch_of
from pidlease.engine.partition import AlreadyRead, Partition
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.pending_batches import Pending, Submitted
from pidlease.engine.stream_gate import (
    ORDER_HEADER,
    STREAM_HEADER,
    Closed,
    Closing,
    Refusal,
    StreamBatch,
    StreamGate,
    StreamSend,
)
from pidlease.engine.topic_counts import Counts
from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.record_batch import read_header, whole_batches
from pidlease.log.ports import AppendDone, LogPart, NewBatch
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import TopicPartition
from pidlease.storage.topics.topic_store import Topic
from tests.kafka_listener.batches import identified
from tests.sim.batches import make_batch
from tests.unit.engine.fakes import FakeLeases, FakeLog

_PID = make_pid(Policy.MONOTONIC, 7)


class _Log(FakeLog):
    """A log with one batch, which can be read when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.end_offset = 1
        self.last = make_batch([b"old"])
        self.reads = 0
        #: Whether the test ends its appends.
        self.waits = False
        self.allowed = asyncio.Semaphore(0)

    @override
    def append(self, batches: Sequence[NewBatch], done: AppendDone) -> None:
        super().append(batches, done)
        if not self.waits:
            asyncio.get_running_loop().call_soon(self.succeed)

    @override
    async def read(self, offset: int, max_bytes: int) -> LogPart:
        self.reads += 1
        found = bytes(self.last)
        await self.allowed.acquire()
        return LogPart(found, whole_batches(found))


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[IoPool]:
    pool = IoPool(asyncio.get_running_loop(), 1)
    yield pool
    pool.close()


class _Stream:
    """A partition that is a stream, and a producer under policy monotonic."""

    def __init__(self, pool: IoPool) -> None:
        self.log = _Log()
        leases = FakeLeases()
        leases.fences[_PID] = 0
        context = PartitionContext(leases, Counts(), lambda: 1000)
        name = TopicPartition("s", 0)
        self.partition = Partition(name, Topic("s", "id", 1, {}), self.log, context)
        self.partition.set_stream(is_stream=True, pool=pool)
        self.outcomes: list[tuple[int, str]] = []
        #: Of the ordered batches; None: it was admitted.
        self.refusals: list[Refusal | None] = []

    @property
    def gate(self) -> StreamGate:
        assert self.partition.gate is not None
        return self.partition.gate

    def send(self, sequence: int) -> None:
        data = make_batch([b"%d" % sequence], pid=-1, epoch=-1, first=-1)
        header = read_header(data)
        self.partition.produce(
            Submitted(
                _PID, header, data, Batch(0, sequence, sequence, 1, header.crc),
                lambda outcome: self.outcomes.append((sequence, outcome.status.value)),
            )
        )  # fmt: skip

    def send_ordered(self, order: bytes) -> None:
        self.partition.produce(self.ordered(order))

    def ordered(self, order: bytes | None, closing: Closing = Closing.NO) -> StreamBatch:
        data = make_batch([b"ordered"], pid=-1)
        header = read_header(data)
        send = StreamSend(closing, order)
        done: Callable[[object], None] = lambda _: self.refusals.append(send.refusal)  # noqa: E731
        return StreamBatch(-1, header, data, batch_of(header), done, self.gate, send)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)


async def test_a_batch_of_the_turn_in_which_the_end_is_known(pool: IoPool) -> None:
    stream = _Stream(pool)
    stream.send(5)
    stream.log.allowed.release()
    await _until(lambda: stream.gate.is_known)
    stream.send(6)
    await _until(lambda: len(stream.outcomes) == 2)
    assert stream.outcomes == [(5, "appended"), (6, "appended")]


async def test_only_ordered_batches_wait_for_the_search_for_the_last_stream_seq(
    pool: IoPool,
) -> None:
    """The search may read the whole log; once all batches of the stream waited for it."""
    stream = _Stream(pool)
    stream.send(5)
    stream.send_ordered(b"a")
    stream.send(6)
    stream.log.allowed.release()
    await _until(lambda: stream.log.reads == 2)
    await _until(lambda: len(stream.outcomes) == 2)
    stream.send(7)
    stream.send_ordered(b"b")
    await _until(lambda: len(stream.outcomes) == 3)
    assert stream.outcomes == [(5, "appended"), (6, "appended"), (7, "appended")]
    assert not stream.refusals
    stream.log.allowed.release()
    await _until(lambda: len(stream.refusals) == 2)
    assert stream.refusals == [None, None]


async def test_no_batch_passes_a_failed_one_of_its_producer(pool: IoPool) -> None:
    """Once it was stored, and the first, when it was sent again, was taken for a duplicate."""
    stream = _Stream(pool)
    stream.log.end_offset = 0
    stream.partition.gate = None
    stream.partition.set_stream(is_stream=True, pool=pool)
    stream.log.waits = True
    stream.send(10)
    stream.partition.produce(stream.ordered(None, Closing.WITH_DATA))
    stream.send(20)
    assert not stream.outcomes
    assert not stream.refusals
    stream.log.allowed.release()
    await _until(lambda: stream.log.waiting is not None)
    stream.log.waits = False
    stream.log.fail()  # both: they are in one append
    await _until(lambda: len(stream.outcomes) == 2)
    assert stream.outcomes == [(10, "failed"), (20, "failed")]
    for _ in range(4):
        stream.log.allowed.release()
    stream.send(10)
    stream.send(20)
    await _until(lambda: len(stream.outcomes) == 4)
    assert stream.outcomes[2:] == [(10, "appended"), (20, "appended")]


async def test_a_stream_seq_that_lands_during_the_search_for_the_last_one(pool: IoPool) -> None:
    """It is behind what was read: the search begins again, and a lower one is refused."""
    stream = _Stream(pool)
    stream.send_ordered(b"4")
    stream.log.allowed.release()
    await _until(lambda: stream.log.reads == 2)
    header = (ORDER_HEADER, b"5")
    landed = bytearray(identified([b"x"], Identity(0, "", 0, 0, 0), header=header))
    landed[:8] = (1).to_bytes(8, "big")
    stream.log.last, stream.log.end_offset = landed, 2
    stream.gate.appended(stream.ordered(b"5"), 1)
    for _ in range(3):
        stream.log.allowed.release()
    await _until(lambda: len(stream.refusals) == 1)
    assert stream.refusals == [Refusal.OUT_OF_ORDER]
    assert not stream.log.stored


async def test_what_was_read_for_a_batch_is_not_read_again_after_the_gate(
    pool: IoPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the reads of the gate and of the partition caused each other, up to two minutes."""
    stream = _Stream(pool)
    seen: list[AlreadyRead] = []
    validate = stream.partition.produce

    def produce(pending: Pending, read: AlreadyRead) -> None:
        seen.append(read)
        validate(pending, read)

    monkeypatch.setattr(stream.partition, "produce", produce)
    data = make_batch([b"1"], pid=-1, epoch=-1, first=-1)
    header = read_header(data)
    sent = Submitted(_PID, header, data, Batch(0, 1, 1, 1, header.crc), lambda _: None)
    validate(sent, AlreadyRead(log=True))
    stream.log.allowed.release()
    await _until(lambda: len(stream.log.stored) == 1)
    assert seen == [AlreadyRead(log=True)]


async def test_a_close_that_arrives_while_the_end_is_read(pool: IoPool) -> None:
    """Another server has stored it: `Partition.read_on` applies it meanwhile."""
    stream = _Stream(pool)
    known = asyncio.create_task(stream.gate.known())
    await _until(lambda: stream.log.reads == 1)
    stream.log.last = _closing()
    stream.log.end_offset = 2
    stream.gate.doubt()
    stream.log.allowed.release()
    stream.log.allowed.release()
    await known
    assert stream.gate.closed == Closed(1, 2)


def _closing() -> bytearray:
    header = (STREAM_HEADER, Closing.WITH_DATA.value)
    data = bytearray(identified([b"last"], Identity(0, "", 0, 0, 0), header=header))
    data[:8] = (1).to_bytes(8, "big")
    return data
