"""Batches that wait for Kafka while the log is in doubt: by the real log and appender."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from typing_extensions import override

from pidlease.core.backoff import Backoff
from pidlease.core.pid import Policy, make_pid
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.appenders import catch_up
from pidlease.engine.appenders.kafka_appender import KafkaAppender
from pidlease.engine.batch_identity import batch_of, identified
from pidlease.engine.partition import Partition
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.pending_batches import Pending, Submitted
from pidlease.engine.topic_counts import Counts
from pidlease.kafka.client.offset_requests import LeaderLog
from pidlease.kafka.client.produce_channels import ProduceSend
from pidlease.kafka.errors import UpstreamAwayError, UpstreamLostError
from pidlease.kafka.records.identity_header import Identity, encode_identity
from pidlease.kafka.records.record_batch import read_header
from pidlease.kafka.records.writer_batch import crc_of_send, under_writer
from pidlease.log.kafka import kafka_partition_log
from pidlease.log.kafka.kafka_partition_log import KafkaPartitionLog, Upstream
from pidlease.log.kafka.kafka_partition_log import Writers as LogWriters
from pidlease.storage.topics.topic_store import Topic
from tests.crash.seeds import new_random
from tests.sim.batches import make_batch
from tests.unit.engine.fakes import FakeLeases, settle
from tests.unit.engine.kafka_sim import START_MS, World

PLACE: Final = TopicPartition("t", 0)
PID: Final = make_pid(Policy.KAFKA, 1)
NOW_MS: Final = 1_700_000_000_000


class Patient(Submitted):
    """A batch of a Kafka client, whose request ends when the test says so."""

    patient = True
    over = False

    @property
    @override
    def ended(self) -> bool:
        return self.superseded or self.over


class Leader:
    """The leader of the partition: what it is sent, and what it reports of its log."""

    def __init__(self) -> None:
        self.sent: list[ProduceSend] = []
        #: Whether it takes no connection for Produce, but answers reads.
        self.refuses = False
        self.sends = self.looks = self.again = 0
        self.log = LeaderLog("id", 1, 0, 0, 0, 2**40)

    def send(self, _: int, send: ProduceSend) -> None:
        self.sends += 1
        if self.refuses:
            error = UpstreamAwayError("no connection")
            asyncio.get_running_loop().call_soon(send.completed, error)
        else:
            self.sent.append(send)

    async def log_of(self, _: TopicPartition, __: int = -1) -> LeaderLog:
        self.looks += 1
        await asyncio.sleep(0)
        return self.log

    def stale(self) -> None:
        pass

    def read_again(self) -> None:
        self.again += 1


class Bench:
    """A partition of that leader's log."""

    def __init__(self) -> None:
        async def owned(_: TopicPartition) -> None:
            return None

        self.leader = Leader()
        writers = SimpleNamespace(kept_ms=1000, ids=(), learns=False, owned=owned)
        self.log = KafkaPartitionLog(
            cast(Upstream, self.leader), PLACE, self.leader.log, cast(LogWriters, writers),
            cast(Any, None), asyncio.get_running_loop(),
        )  # fmt: skip
        self.log.producers_kept_ms = 10**9
        around = PartitionContext(
            FakeLeases(), Counts(), lambda: NOW_MS,
            appends=lambda log, partition: KafkaAppender(log, partition, lambda: NOW_MS),
        )  # fmt: skip
        self.partition = Partition(PLACE, Topic("t", "id", 1, {}), self.log, around)

    def produce(self, first: int, pid: int = PID) -> tuple[Patient, list[Outcome]]:
        numbers = (pid, 0, first) if pid > 0 else (-1, -1, -1)
        data = make_batch([b"%d" % first], pid=numbers[0], epoch=numbers[1], first=numbers[2])
        header = read_header(data)
        told: list[Outcome] = []
        pending = Patient(pid, header, data, batch_of(header), told.append)
        self.partition.produce(pending)
        return pending, told


async def happens(condition: Callable[[], object]) -> None:
    """Wait for an event."""
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not happen")


async def test_a_batch_without_a_pid_waits_until_the_leader_has_confirmed_the_log() -> None:
    """Nothing else asks the leader where all producers are such: they failed for ever."""
    bench = Bench()
    bench.log.note_connection_lost(1)
    told = [bench.produce(0, pid=-1)[1] for _ in range(3)]
    await happens(lambda: len(bench.leader.sent) == len(told))
    assert bench.leader.looks == 1
    for offset, send in enumerate(bench.leader.sent):
        send.appended(offset)
    assert [each[0].status for each in told] == [Status.APPENDED] * 3


async def test_a_batch_does_not_wait_for_a_log_that_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later ones would overtake it on the partition that is opened again."""
    monkeypatch.setattr(kafka_partition_log, "_REST_SECONDS", (0.0,))
    bench = Bench()
    bench.produce(0)
    await happens(lambda: bench.leader.sent)
    bench.leader.sent.pop().appended(0)
    _, told = bench.produce(1)
    await happens(lambda: bench.leader.sent)
    bench.leader.log = LeaderLog("id", 2, 2, 0, 0, 0)  # an unclean election
    bench.log.note_connection_lost(1)
    bench.leader.sent.pop().completed(UpstreamLostError("gone"))
    await happens(lambda: told)
    assert bench.log.stopped
    assert [each.status for each in told] == [Status.STOPPED]
    assert bench.leader.again == 1


async def test_a_leader_that_is_read_but_takes_nothing_is_not_asked_without_a_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[float] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        await settle()

    bench = Bench()
    bench.leader.refuses = True
    monkeypatch.setattr(catch_up, "asyncio", SimpleNamespace(
        **{name: getattr(asyncio, name) for name in ("create_task", "get_running_loop")},
        sleep=sleep,
    ))  # fmt: skip
    monkeypatch.setattr(catch_up, "_BACKOFF", Backoff(0.1, 1.0))
    pending, told = bench.produce(0)
    await happens(lambda: len(rests) > 5)
    assert rests[:5] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert bench.leader.sends <= len(rests) + 2
    pending.over = True
    await happens(lambda: told)
    assert [each.status for each in told] == [Status.FAILED]


async def test_a_monotonic_batch_that_is_given_up_fails_those_that_wait_after_it() -> None:
    """Gaps are allowed: they would be stored, and its retry would be a duplicate, and lost."""
    pid = make_pid(Policy.MONOTONIC, 1)
    world = World(new_random("given-up"), producers=0, batches=0, strict=0)
    world.faults = False

    def produce(first: int) -> tuple[Patient, list[Outcome]]:
        builder: Any = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
        identity = Identity(pid, "", 0, first, first)
        headers = [("pidlease", encode_identity(identity))]
        assert builder.append(0, START_MS, None, b"%d" % first, headers)
        data = bytearray(builder.build())
        header = under_writer(read_header(data), data)
        told: list[Outcome] = []
        batch = identified(identity, header, crc_of_send(header, data))
        pending = Patient(pid, header, data, batch, told.append)
        world.partition.produce(pending)
        return pending, told

    async def go(*until: list[Outcome]) -> None:
        for _ in range(300):
            world._read()
            if world.markers:
                world._mark()
            world._arrive()
            world._answer()
            await settle()
            if all(until):
                return
        raise AssertionError("it does not happen")

    ended, first = produce(10)
    _, second = produce(11)
    ended.over = True
    await go(first, second)
    assert [each[0].status for each in (first, second)] == [Status.FAILED] * 2
    again, later = produce(10)[1], produce(11)[1]
    await go(again, later)
    assert [each[0].status for each in (again, later)] == [Status.APPENDED] * 2


def test_a_batch_is_patient_only_as_its_listener_says() -> None:
    assert not Pending.patient
    assert not Submitted.patient
