"""A partition of Kafka as the engine sees it, with a cluster that says what a test says."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from crc32c import crc32c
from structlog.testing import capture_logs

from pidlease.core.backoff import Backoff
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.cluster import NO_LEADER, UpstreamTopic, View
from pidlease.kafka.client.offset_requests import LeaderLog
from pidlease.kafka.client.produce_channels import ProduceSend
from pidlease.kafka.codec.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchedRecords
from pidlease.kafka.codec.produce import PartitionResponse
from pidlease.kafka.error_codes import OFFSET_OUT_OF_RANGE
from pidlease.kafka.errors import UpstreamAwayError, UpstreamError, UpstreamLostError
from pidlease.kafka.records.batch_records import batches_in
from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.record_batch import read_header
from pidlease.kafka.records.writer_batch import Writer, stamp
from pidlease.log.kafka import kafka_partition_log as module
from pidlease.log.kafka.kafka_partition_log import KafkaPartitionLog, Upstream, Writers
from pidlease.log.ports import Forwarded, NewBatch
from pidlease.storage.errors import DamagedLogError, LogStoppedError, OffsetRangeError
from pidlease.storage.io_pool import IoPool
from tests.kafka_listener.batches import identified
from tests.sim.batches import make_batch, simple

PLACE = TopicPartition("t", 0)
NOT_LEADER = 6


class FakeUpstream:
    """The cluster."""

    def __init__(self) -> None:
        self.fetched: deque[FetchedRecords | UpstreamError] = deque()
        self.asked: list[int] = []
        self.isolations: list[int] = []
        self.stales = self.again = 0
        self.told: Callable[[PartitionResponse | UpstreamError], None] | None = None

    def send(self, _: int, send: ProduceSend) -> None:
        self.told = send.completed

    async def fetch(
        self, _: TopicPartition, offset: int, __: int, isolation: int = READ_UNCOMMITTED
    ) -> FetchedRecords:
        self.isolations.append(isolation)
        self.asked.append(offset)
        found = self.fetched.popleft()
        if isinstance(found, UpstreamError):
            raise found
        return found

    def stale(self) -> None:
        self.stales += 1

    def read_again(self) -> None:
        self.again += 1


class Told:
    """Keeps the outcomes of batches."""

    def __init__(self) -> None:
        self.outcomes: list[Forwarded] = []

    def landed(self, _: NewBatch, offset: int) -> None:
        self.outcomes.append(Forwarded(0, offset))

    def answered(self, _: NewBatch, answer: Forwarded) -> None:
        self.outcomes.append(answer)


class NoWriters:
    """Nobody is a writer."""

    ids: frozenset[int] = frozenset()
    learns = False


class OtherWriters:
    """Another active server has taken the writer, under an id that is new here."""

    learns = True

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ids: set[int] = set()
        self.asked: list[set[int]] = []

    async def learn(self, unknown: set[int]) -> None:
        self.asked.append(set(unknown))
        self.ids.add(self.pid)


def opened(
    end: int, *, topic_id: str = "id", leader: int = 1, epoch: int = 5, reached: int = -1
) -> LeaderLog:
    """A log from offset 0 on, which is as it was up to its end or an offset before."""
    return LeaderLog(topic_id, leader, epoch, 0, end, end if reached < 0 else reached)


@asynccontextmanager
async def partition(end: int = 0) -> AsyncIterator[tuple[KafkaPartitionLog, FakeUpstream]]:
    loop = asyncio.get_running_loop()
    upstream = FakeUpstream()
    pool = IoPool(loop, 1)
    try:
        yield KafkaPartitionLog(cast(Upstream, upstream), PLACE, opened(end),
                                cast(Writers, NoWriters()), pool, loop), upstream  # fmt: skip
    finally:
        pool.close()


def at(offset: int, records: int) -> bytes:
    """A batch as it stands in the log."""
    data = make_batch([b"x"] * records)
    data[:8] = offset.to_bytes(8, "big")
    return bytes(data)


@pytest.fixture
def no_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF", Backoff(0.0, 0.0))


@pytest.mark.usefixtures("no_rests")
@pytest.mark.parametrize(
    "failure",
    [FetchedRecords(NOT_LEADER, -1, -1, b""), UpstreamAwayError("away")],
    ids=["code", "away"],
)
async def test_a_partition_that_moved_is_read_from_its_new_leader(
    failure: FetchedRecords | UpstreamError,
) -> None:
    async with partition(3) as (log, upstream):
        upstream.fetched += (failure, FetchedRecords(0, 3, 0, b"records"))
        assert (await log.read(0, 100)).data == b"records"
        assert upstream.asked == [0, 0]
        assert upstream.stales == 1


async def test_acknowledgements_may_overtake_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a partition under load was stopped: Kafka seemed to have lost records."""
    async with partition(3) as (log, upstream):
        asked: list[int] = []

        async def log_of(_: TopicPartition, epoch: int) -> LeaderLog:
            asked.append(end := log.end_offset)
            log.end_offset += 2
            return opened(end)

        monkeypatch.setattr(upstream, "log_of", log_of, raising=False)
        assert await log.look() == 3
        assert (log.end_offset, log.stopped, asked) == (5, "", [3])


async def test_an_end_before_what_was_acknowledged_is_a_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_REST_SECONDS", (0.0, 0.0))
    async with partition(3) as (log, upstream):

        async def log_of(_: TopicPartition, epoch: int) -> LeaderLog:
            return opened(2)

        monkeypatch.setattr(upstream, "log_of", log_of, raising=False)
        with pytest.raises(LogStoppedError, match="up to 2: Kafka has lost records"):
            await log.look()


async def test_another_topic_of_the_name_is_another_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async with partition(3) as (log, upstream):

        async def log_of(_: TopicPartition, epoch: int) -> LeaderLog:
            return opened(30, topic_id="other")

        monkeypatch.setattr(upstream, "log_of", log_of, raising=False)
        with pytest.raises(LogStoppedError, match="deleted and created again"):
            await log.look()
        assert log.stopped
        assert upstream.stales == 1, "the metadata show the new topic"


async def test_an_offset_before_the_known_end_is_a_sign_of_another_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the end known when the batch was sent: acknowledgements come in any order."""
    async with partition(10) as (log, upstream):
        told = Told()
        for _ in range(2):
            log.send(5, simple(0, records=3), told)
            assert upstream.told is not None
            first = upstream.told
            log.send(6, simple(0, records=3), told)
            upstream.told(PartitionResponse(0, log.end_offset + 3))
            first(PartitionResponse(0, log.end_offset - 6))
            assert log.confirmed
        await send(log, upstream, PartitionResponse(0, 0))
        assert not log.confirmed

        async def log_of(_: TopicPartition, epoch: int) -> LeaderLog:
            if not asked:
                log.doubt()  # another sign, while it is asked
            asked.append(True)
            return opened(log.end_offset)

        asked: list[bool] = []
        monkeypatch.setattr(upstream, "log_of", log_of, raising=False)
        await log.look()
        assert log.confirmed
        assert len(asked) == 2


@pytest.mark.parametrize(
    ("leader", "epoch", "reached", "lost"),
    [
        (2, 6, 10, False), (2, 6, 9, True), (2, 7, 9, True), (1, 7, 9, True), (1, 7, 10, False),
        (1, 6, 9, False), (1, 5, 9, True), (1, 5, 12, False),
    ],
)  # fmt: skip
async def test_a_leader_that_has_less_than_was_known_has_lost_records(
    monkeypatch: pytest.MonkeyPatch, leader: int, epoch: int, reached: int, *, lost: bool
) -> None:
    """Its log has grown past the known end. A leader that stays keeps what it has."""
    async with partition(10) as (log, upstream):
        asked: list[int] = []

        async def log_of(_: TopicPartition, epoch_: int) -> LeaderLog:
            asked.append(epoch_)
            return opened(30, leader=leader, epoch=epoch, reached=reached)

        monkeypatch.setattr(upstream, "log_of", log_of, raising=False)
        if lost:
            with pytest.raises(LogStoppedError, match="Kafka has lost records"):
                await log.look()
            assert (log.has_lost, upstream.again) == (True, 1)
        else:
            assert await log.look() == 30
            assert log.leader_epoch == epoch
        assert asked == [5]


def _view(leader: int, epoch: int, topic_id: str = "id") -> View:
    topic = UpstreamTopic("t", topic_id, internal=False, leaders=(leader,), epochs=(epoch,))
    return View(topics={"t": topic})


async def test_nothing_is_sent_to_another_leader_before_it_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with partition(10) as (log, upstream):
        told = Told()
        log.send(5, simple(0, records=3), told)
        former = upstream.told
        assert former is not None
        for view in (_view(1, 5), _view(1, 4), _view(NO_LEADER, 6), _view(2, 0, "other"), View()):
            log.note_view(view)
            assert log.confirmed
        log.note_view(_view(1, 6))
        assert (log.confirmed, log.leader_epoch) == (True, 6), "it stays, so it has lost nothing"
        log.note_view(_view(2, 7))
        assert not log.confirmed
        upstream.told = None
        log.send(5, simple(0, records=3), told)
        await asyncio.sleep(0)
        assert upstream.told is None
        assert told.outcomes[0].definite
        former(PartitionResponse(0, 10))  # the former leader may have lost it by now
        assert told.outcomes[1] == Forwarded(0, -1, reason=told.outcomes[1].reason)
        assert log.end_offset == 10
        ends = [10, 13]

        async def log_of(_: TopicPartition, epoch: int) -> LeaderLog:
            assert epoch == 6
            return opened(ends.pop(0), leader=2, epoch=7, reached=10)

        monkeypatch.setattr(upstream, "log_of", log_of, raising=False)
        await log.look()
        assert (log.confirmed, log.leader_epoch) == (True, 7)
        assert await send(log, upstream, PartitionResponse(0, 10)) == Forwarded(0, 10)
        log.note_connection_lost(1)
        assert log.confirmed
        log.note_connection_lost(2)
        assert not log.confirmed


async def test_a_response_of_a_former_leader_while_the_new_one_is_asked_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No sign has come yet: the question itself shows the new leader."""
    async with partition(10) as (log, upstream):
        told = Told()
        for number in range(2):
            log.send(5 + number, simple(0, records=3), told)
        late: list[Any] = []

        async def log_of(_: TopicPartition, epoch: int) -> LeaderLog:
            if not late:
                late.append(True)
                assert upstream.told is not None
                upstream.told(PartitionResponse(0, 10))
            return opened(30, leader=2, epoch=6, reached=10)

        monkeypatch.setattr(upstream, "log_of", log_of, raising=False)
        with pytest.raises(LogStoppedError, match="went up to 13"):
            await log.look()


async def test_batches_are_read_once_each_and_cut_ones_again() -> None:
    whole = [at(0, 3), at(3, 1), at(4, 5)]
    async with partition(9) as (log, upstream):
        upstream.fetched += (
            FetchedRecords(0, 9, 0, whole[0] + whole[1][:-5]),
            FetchedRecords(
                0, 9, 0, whole[0] + whole[1]
            ),  # from the middle of what a broker keeps whole
            FetchedRecords(0, 9, 0, whole[2]),
        )
        found = [each.header for some in [some async for some in log.batches_from(0, 9)]
                 for each in some]  # fmt: skip
        assert [(each.base_offset, each.last_offset) for each in found] == [(0, 2), (3, 3), (4, 8)]
        assert upstream.asked == [0, 3, 4]


def under(writer: Writer, offset: int) -> bytes:
    """A batch of a named producer, as it stands in the log under a writer."""
    data = bytearray(identified([b"x"], Identity(7, "", 1, offset, offset)))
    stamp(read_header(data), data, writer, offset)
    data[:8] = offset.to_bytes(8, "big")
    return bytes(data)


def in_transaction(writer: Writer, offset: int) -> bytes:
    """The same with the mark of a transaction."""
    data = bytearray(under(writer, offset))
    data[22] |= 0x10
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("threaded", [False, True])
async def test_the_writer_of_another_server_is_known_before_its_batches_are_applied(
    threaded: bool,
) -> None:
    writer = Writer(4711, 3)
    content = at(0, 1) + under(writer, 1) + under(writer, 2) + in_transaction(writer, 3)
    writers = OtherWriters(writer.pid)
    loop, upstream = asyncio.get_running_loop(), FakeUpstream()
    pool = IoPool(loop, 1)
    try:
        log = KafkaPartitionLog(cast(Upstream, upstream), PLACE, opened(3),
                                cast(Writers, writers), pool, loop)  # fmt: skip
        upstream.fetched.append(FetchedRecords(0, 4, 0, content))
        log.end_offset = 4
        if threaded:
            found = await asyncio.to_thread(lambda: list(log.read_batches(0)))
        else:
            found = [each async for some in log.batches_from(0, 4) for each in some]
    finally:
        pool.close()
    assert [each.identity and each.identity.first for each in found] == [None, 1, 2, None]
    assert writers.asked == [{4711}]


async def test_no_record_of_a_transaction_names_a_producer() -> None:
    """A writer sends none, so the ids of writers are not read for it."""
    writers = OtherWriters(4711)
    loop, upstream = asyncio.get_running_loop(), FakeUpstream()
    pool = IoPool(loop, 1)
    try:
        log = KafkaPartitionLog(cast(Upstream, upstream), PLACE, opened(1),
                                cast(Writers, writers), pool, loop)  # fmt: skip
        upstream.fetched.append(FetchedRecords(0, 1, 0, in_transaction(Writer(4711, 3), 0)))
        found = [each async for some in log.batches_from(0, 1) for each in some]
    finally:
        pool.close()
    assert [each.identity for each in found] == [None]
    assert not writers.asked


async def send(log: KafkaPartitionLog, upstream: FakeUpstream, result: Any) -> Forwarded:
    told = Told()
    log.send(5, simple(0, records=3), told)
    assert upstream.told is not None
    upstream.told(result)
    (answer,) = told.outcomes
    return answer


async def test_the_end_lies_behind_the_last_acknowledged_record() -> None:
    async with partition(10) as (log, upstream):
        assert await send(log, upstream, PartitionResponse(0, 10)) == Forwarded(0, 10)
        assert log.end_offset == 13
        await send(log, upstream, PartitionResponse(0, 4))  # answers come in any order
        assert log.end_offset == 13
        for code in (7, 19):
            assert (await send(log, upstream, PartitionResponse(code, 20))).offset == -1
        assert log.end_offset == 13


async def test_what_was_not_sent_is_certain_and_what_was_lost_is_not() -> None:
    async with partition() as (log, upstream):
        assert (await send(log, upstream, UpstreamAwayError("no leader"))).definite
        assert not (await send(log, upstream, UpstreamLostError("ended"))).definite


async def test_an_unexpected_code_is_logged() -> None:
    async with partition() as (log, upstream):
        with capture_logs() as lines:
            for code in (0, 7, 19, 999):
                assert (await send(log, upstream, PartitionResponse(code, -1))).definite == (
                    code == 19
                )
        unexpected = [each for each in lines if "unexpected" in each["event"]]
        assert [each["code"] for each in unexpected] == [999]


@pytest.mark.usefixtures("no_rests")
async def test_a_reader_gets_what_is_committed_and_the_present_end() -> None:
    aborted = make_batch([b"x"] * 2, pid=7, epoch=0, first=0, in_transaction=True)
    async with partition(0) as (log, upstream):
        upstream.fetched += (
            UpstreamAwayError("away"),
            FetchedRecords(0, 9, 0, bytes(aborted) + at(2, 1), 3, [(7, 0)]),
        )
        part = await log.read_committed(0, 100)
        headers = [header for header, _ in batches_in(bytes(part.data))]
        assert [(each.last_offset, each.records) for each in headers] == [(1, 0), (2, 1)]
        assert (part.end_offset, log.stable_offset, log.end_offset) == (3, 3, 9)
        assert upstream.isolations == [READ_COMMITTED] * 2


async def test_the_error_about_an_offset_has_the_present_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others may have deleted records, or the log may have grown meanwhile."""
    async with partition(3) as (log, upstream):

        async def log_of(_: TopicPartition, __: int) -> LeaderLog:
            return opened(8)._replace(start=5)

        monkeypatch.setattr(upstream, "log_of", log_of, raising=False)
        upstream.fetched.append(FetchedRecords(OFFSET_OUT_OF_RANGE, -1, -1, b""))
        with pytest.raises(OffsetRangeError) as refused:
            await log.read_committed(2, 100)
        assert (refused.value.start, refused.value.end) == (5, 8)
        upstream.fetched += (
            FetchedRecords(OFFSET_OUT_OF_RANGE, -1, -1, b""), FetchedRecords(0, 8, 5, b"", 8),
        )  # fmt: skip
        assert (await log.read_committed(8, 100)).end_offset == 8


async def test_a_replay_passes_over_old_formats_but_not_over_damage() -> None:
    builder = LegacyRecordBatchBuilder(1, 0, 1 << 20)
    for offset in range(3):
        builder.append(offset, timestamp=0, key=None, value=b"old")
    old = bytes(builder.build())
    flipped = bytearray(at(3, 1))
    flipped[16] = 1  # the format, which no CRC covers
    async with partition(9) as (log, upstream):
        upstream.fetched.append(FetchedRecords(0, 4, 0, old + at(3, 1)))
        found = [each.header for some in [some async for some in log.batches_from(0, 4)]
                 for each in some]  # fmt: skip
        assert [each.base_offset for each in found] == [3]
        upstream.fetched.append(FetchedRecords(0, 4, 0, old + flipped))
        with pytest.raises(DamagedLogError, match="3: its CRC"):
            _ = [some async for some in log.batches_from(0, 4)]
