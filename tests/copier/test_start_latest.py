"""Copies with `--start latest`: where each partition begins, with several copiers and crashes."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from pidlease.client.producer_memory import Memory
from pidlease.copier import copy_start
from pidlease.copier.copy_checkpoint import CopyCheckpoint, read_checkpoint
from pidlease.copier.copy_metrics import CopyMetrics
from pidlease.copier.copy_start import CopyStart
from pidlease.copier.group_membership import Saved
from pidlease.copier.partition_copy import PartitionCopy
from pidlease.copier.settings import CopySettings
from pidlease.core.lease import Lease
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.offset_requests import EARLIEST, LATEST
from tests.copier.sides import CopyProcess, make_topic, read_all, records_of
from tests.servers.pidlease import PidleaseServer, not_started
from tests.servers.waiting import WAIT_S, until

A, B, NEW = (TopicPartition("t", number) for number in range(3))
BEGUN = CopyCheckpoint(50, 9, 5, 49, 0, 50, "t", "c", "me")
STARTING = BEGUN._replace(starting=True)


class Source:
    """The source, with its group, that copiers of the same group share; all ends are 50."""

    name = "the source"

    def __init__(self, *places: TopicPartition, **saved: CopyCheckpoint) -> None:
        self.places = list(places)
        self.saved = {
            TopicPartition("t", int(name[1:])): _saved(each) for name, each in saved.items()
        }
        self.looks = 0
        #: The copy begins when so many ends were read; 0: it does not.
        self.begins_after = 0

    async def offset(self, place: TopicPartition, time_ms: int, isolation: int = 0) -> int:
        if time_ms == EARLIEST:
            return 0
        self.begins_after -= 1
        if not self.begins_after:
            self.saved[A] = _saved(BEGUN)
        return 50

    def topic_id(self, topic: str) -> str:
        return ""

    async def list_places(self) -> list[TopicPartition]:
        return self.places

    async def list_saved(
        self, places: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Saved]:
        self.looks += 1
        await asyncio.sleep(0)
        return {each: self.saved[each] for each in places if each in self.saved}

    async def start(self) -> CopyStart:
        """Start a copier; it has seen the partitions that are there."""
        start = CopyStart(self.list_places, self.list_saved)
        await start.note_partitions()
        self.places = list(self.places)
        return start


class Target:
    """The destination: empty."""

    async def records_until(self, place: TopicPartition) -> tuple[bool, int]:
        return False, 0

    async def offset(self, place: TopicPartition, time_ms: int, isolation: int = 0) -> int:
        return 0


class Hub:
    """A copier, to its partitions; it notes which ones are read, and what was saved then."""

    def __init__(self, source: Source, start: CopyStart) -> None:
        self.settings = CopySettings(
            source="a:1", destination="b:1", leases="http://b:2", group="g", topics=["t"],
            start=LATEST,
        )  # fmt: skip
        self.source, self.target, self.copy_start = source, Target(), start
        self.metrics, self.memory = CopyMetrics(), Memory(1 << 20)
        self.copier_id, self.cluster = "me", "c"
        self.destination = SimpleNamespace(channel=lambda *_: SimpleNamespace(
            begin=lambda *_: None, close=lambda: None
        ))  # fmt: skip
        self.begun: dict[TopicPartition, dict[TopicPartition, CopyCheckpoint]] = {}
        self.failed: list[Exception] = []

    async def prepare(self, topic: str, partition: int) -> str:
        return topic

    async def saved(self, place: TopicPartition) -> Saved | None:
        return self.source.saved.get(place)

    async def save(self, place: TopicPartition, checkpoint: CopyCheckpoint) -> None:
        self.source.saved[place] = _saved(checkpoint)

    async def lease(self, topic: str, partition: int, pid: int) -> Lease:
        return Lease(topic, partition, 9, 5, 0, 0, -1, float("inf"))

    def read(self, reader: PartitionCopy) -> None:
        self.begun[reader.place] = {
            place: read_checkpoint(*each) for place, each in self.source.saved.items()
        }

    def leave(self, reader: PartitionCopy) -> None:
        """It is not read."""

    def fail(self, error: Exception) -> None:
        self.failed.append(error)


def _saved(checkpoint: CopyCheckpoint) -> Saved:
    return checkpoint.offset, checkpoint.metadata()


def assigned(hub: Hub, *places: TopicPartition) -> list[PartitionCopy]:
    gate = asyncio.Barrier(len(places))
    copies = [PartitionCopy(cast("Any", hub), place, gate) for place in places]
    for each in copies:
        each.start()
    return copies


async def until_begun(hub: Hub, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(hub.begun) < count:
            assert not hub.failed
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _without_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_start, "_LOOK_S", 0)


async def test_a_copy_begins_when_each_partition_has_a_checkpoint() -> None:
    """Two copiers share the first start: neither takes a partition of the other for a new one."""
    source = Source(A, B)
    one, other = Hub(source, await source.start()), Hub(source, await source.start())
    copies = assigned(one, A)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not one.begun
    assert source.looks > 5
    assert read_checkpoint(*source.saved[A]) == STARTING._replace(sequence=-1, first=50, at=0)
    copies += assigned(other, B)
    await until_begun(one, 1)
    await until_begun(other, 1)
    assert one.begun[A].keys() == {A, B}
    assert not one.begun[A][A].starting
    assert not other.begun[B][B].starting
    assert {each.offset for each in one.begun[A].values()} == {50}
    for each in copies:
        await each.stop(lost=True)


async def test_a_start_that_was_killed_is_repeated() -> None:
    """Of the first start, one of three partitions has a checkpoint: the others are not new."""
    source = Source(A, B, NEW, t0=STARTING._replace(offset=40, first=40, sequence=-1, at=0))
    hub = Hub(source, await source.start())
    copies = assigned(hub, A, B, NEW)
    await until_begun(hub, 3)
    assert {each.done.offset for each in copies if each.done} == {40, 50}
    assert hub.begun[A][A].offset == 40
    assert [hub.begun[each].keys() for each in (A, B, NEW)] == [{A, B, NEW}] * 3
    for each in copies:
        await each.stop(lost=True)


@pytest.mark.parametrize("others", [BEGUN, STARTING], ids=["begun", "starting"])
async def test_a_partition_without_a_checkpoint_is_new_when_the_copy_has_begun(
    others: CopyCheckpoint,
) -> None:
    """Once it began at its end, and its first records were never copied."""
    source = Source(A, B, NEW, t0=STARTING, t1=others)
    hub = Hub(source, await source.start())  # after a restart
    (copy,) = assigned(hub, NEW)
    await until_begun(hub, 1)
    assert copy.done is not None
    assert copy.done.offset == (50 if others.starting else 0)
    await copy.stop(lost=True)


async def test_a_partition_that_came_after_the_copiers_start_is_new() -> None:
    """With a pattern that no topic matched, no checkpoint shows it."""
    source = Source()
    hub = Hub(source, await source.start())
    source.places.append(NEW)
    (copy,) = assigned(hub, NEW)
    await until_begun(hub, 1)
    assert copy.done is not None
    assert copy.done.offset == 0
    await copy.stop(lost=True)


async def test_a_copy_that_begins_while_an_end_is_read() -> None:
    """The end may be after the copy's beginning: the partition is new."""
    source = Source(A, NEW)
    hub = Hub(source, await source.start())
    source.begins_after = 2  # the first one is that where `once` ends
    (copy,) = assigned(hub, NEW)
    await until_begun(hub, 1)
    assert copy.done is not None
    assert copy.done.offset == 0
    await copy.stop(lost=True)


async def test_partitions_share_looks() -> None:
    places = [TopicPartition("t", number) for number in range(1000)]
    source = Source(*places)
    start = await source.start()
    assert not any(await asyncio.gather(*map(start.is_new, places)))
    assert source.looks <= 2
    source.saved[A] = _saved(BEGUN)
    assert await start.is_new(B)
    looks = source.looks
    assert await start.is_new(NEW)
    assert source.looks == looks


def test_what_came_while_the_copier_was_away_is_copied(tmp_path: Path) -> None:
    """A new partition and a new topic, from their first records; of the first one what is new."""
    with PidleaseServer(tmp_path / "a") as source, not_started(tmp_path / "b") as target:
        target.start()
        make_topic(source.bootstrap, "t-old", 1)

        def fill(topic: str, partition: int, value: bytes, count: int) -> None:
            producer = Producer({"bootstrap.servers": source.bootstrap})
            for _ in range(count):
                producer.produce(topic, value, partition=partition)
            assert producer.flush(WAIT_S) == 0

        def is_copying() -> bool:
            fill("t-old", 0, b"new", 1)
            return records_of(target) > 0

        fill("t-old", 0, b"old", 100)
        words = ("--topics-regex", "t-.*", "--group", "g", "--start", "latest")
        copier = CopyProcess(tmp_path / "1", source.bootstrap, target, *words).start()
        until(is_copying, "the copy to begin")
        copier.kill9()
        admin = AdminClient({"bootstrap.servers": source.bootstrap})
        admin.create_partitions([NewPartitions("t-old", 2)])["t-old"].result(WAIT_S)
        make_topic(source.bootstrap, "t-new", 1)
        fill("t-old", 1, b"new", 70)
        fill("t-new", 0, b"new", 80)
        again = CopyProcess(tmp_path / "2", source.bootstrap, target, *words, "--once")
        assert again.run() == 0, again.text
        assert "t-old-1 of the source came after the copy had begun" in again.text
        found = read_all(target.bootstrap, "t-old", 2)
        assert {row.value for rows in found.values() for row in rows} == {b"new"}
        assert len(found[1]) == 70
        assert len(read_all(target.bootstrap, "t-new", 1)[0]) == 80
