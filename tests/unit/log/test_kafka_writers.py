"""A writer that goes on under another id: what went under the one before may still come."""

import asyncio
from random import Random

import pytest

from pidlease.coordination.writer_ids import WriterOf
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.transactions import Fencing
from pidlease.kafka.error_codes import TRANSACTIONAL_ID_NOT_FOUND
from pidlease.kafka.errors import UpstreamAwayError, UpstreamRefusedError
from pidlease.kafka.records.writer_batch import Writer
from pidlease.log.kafka.kafka_writers import KafkaWriters, WriterUnavailableError
from pidlease.log.ports import LATE_MS
from pidlease.storage.errors import LogError, NotOwnerError
from tests.servers.waiting import WAIT_S
from tests.sim.pool import SeededPool

PLACE = TopicPartition("t", 0)
BEFORE, NOW = 4711, 4712
HOUR_MS = 3_600_000


class Ids:
    """See `writer_ids.WriterIds`."""

    def __init__(self, *pids: int) -> None:
        self.recorded = {pid: WriterOf("t", 0, given_ms=1) for pid in pids}

    def all(self) -> dict[int, WriterOf]:
        return dict(self.recorded)

    def add(self, pid: int, writer_of: WriterOf) -> None:
        self.recorded[pid] = writer_of


class ScriptedFencing(Fencing):
    """Kafka gives the same id each time, and another one since it has forgotten the first."""

    def __init__(self, ids: Ids) -> None:
        self._ids_on_record = ids
        self.pid = NOW
        self.epoch = -1
        self.marked: list[Writer] = []

    async def raise_epoch(self, place: TopicPartition) -> Writer:
        assert place == PLACE
        self.epoch += 1
        return Writer(self.pid, self.epoch)

    async def current(self, place: TopicPartition) -> Writer | None:
        return self.marked[-1]

    async def mark(self, place: TopicPartition, writer: Writer) -> None:
        assert writer.pid in self._ids_on_record.recorded, "not on record yet"
        self.marked.append(writer)


class Bench:
    """A server that stands by for an hour, and then takes over."""

    def __init__(self, *on_record: int) -> None:
        self.now_ms = 1_700_000_000_000
        self.ids = Ids(*on_record)
        self.fencing = ScriptedFencing(self.ids)
        pool = SeededPool(asyncio.get_running_loop(), Random(0))
        self.writers = KafkaWriters(self.fencing, self.ids, pool, lambda: self.now_ms)
        self.now_ms += HOUR_MS
        self.writers.load()

    async def take(self, doubt_ms: int = 0) -> Writer:
        return await self.writers.take(PLACE, doubt_ms)


async def test_the_two_minutes_count_from_the_takeover() -> None:
    """The server before it may have sent until then, not until this process began."""
    bench = Bench(BEFORE)
    with pytest.raises(WriterUnavailableError, match="may arrive for 120 s more"):
        await bench.take()
    bench.now_ms += LATE_MS - 1
    with pytest.raises(WriterUnavailableError, match="another producer id"):
        await bench.take()
    assert not bench.fencing.marked
    bench.now_ms += 1
    assert (await bench.take()).pid == NOW
    assert len(bench.fencing.marked) == 1
    assert set(bench.ids.recorded) == {BEFORE, NOW}


async def test_the_ids_are_read_after_a_takeover_before_clients_may_send_under_others() -> None:
    """What the former owner has stored until then counts; a read from before does not."""
    bench = Bench()
    assert bench.writers.knows(PLACE), "alone, a server stores all ids itself"
    bench.writers.after_take = asyncio.Event().wait  # type: ignore[assignment] # others exist
    await bench.writers.learn({1})
    bench.ids.recorded[BEFORE] = WriterOf("t", 0, given_ms=1)
    bench.writers.open_anew(PLACE)
    assert not bench.writers.knows(PLACE)
    assert BEFORE not in bench.writers.ids
    async with asyncio.timeout(WAIT_S):
        while not bench.writers.knows(PLACE):  # noqa: ASYNC110 - a bounded wait
            await asyncio.sleep(0)
    assert BEFORE in bench.writers.ids


async def test_a_failed_look_at_the_writer_does_not_forget_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the next attempt of a replaced server took the writer back."""
    bench = Bench()
    await bench.take()
    other = Writer(NOW, 7)
    answers: list[Writer | UpstreamAwayError] = [UpstreamAwayError("away"), other, other]

    async def current(_: TopicPartition) -> Writer:
        answer = answers.pop(0)
        if isinstance(answer, UpstreamAwayError):
            raise answer
        return answer

    monkeypatch.setattr(bench.fencing, "current", current)
    with pytest.raises(WriterUnavailableError, match="away"):
        await bench.take()
    for _ in range(2):
        with pytest.raises(NotOwnerError, match="another server has taken the writer"):
            await bench.take()
    assert not answers


async def test_a_writer_that_kafka_has_forgotten_is_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After transactional.id.expiration.ms without a takeover, by this server or another one."""
    bench = Bench()
    await bench.take()
    asked: list[TopicPartition] = []

    async def current(place: TopicPartition) -> Writer:
        asked.append(place)
        raise UpstreamRefusedError("forgotten", TRANSACTIONAL_ID_NOT_FOUND)

    monkeypatch.setattr(bench.fencing, "current", current)
    assert (await bench.take()).epoch == 1
    assert asked == [PLACE]


async def test_the_fences_are_read_after_the_writer_is_taken() -> None:
    """Before that, the former owner may still append a batch of a producer that was fenced."""
    bench = Bench(NOW)
    marked = []

    async def read_fences() -> None:
        marked.append(len(bench.fencing.marked))

    bench.writers.after_take = read_fences
    await bench.take()
    await bench.take()
    assert marked == [1, 2]


async def test_without_the_fences_the_writer_is_not_taken() -> None:
    bench = Bench(NOW)

    async def away() -> None:
        raise LogError("away")

    bench.writers.after_take = away
    with pytest.raises(LogError, match="away"):
        await bench.take()
    bench.writers.after_take = None
    await bench.take()
    assert len(bench.fencing.marked) == 2


async def test_an_id_that_another_server_has_recorded_is_not_waited_for() -> None:
    """It took the partition over meanwhile, and waited itself."""
    bench = Bench(BEFORE)

    async def nothing() -> None:
        pass

    bench.writers.after_take = nothing
    bench.ids.recorded[NOW] = WriterOf("t", 0, given_ms=2)
    assert (await bench.take()).pid == NOW


async def test_after_a_move_the_two_minutes_begin_again() -> None:
    bench = Bench(BEFORE)

    async def nothing() -> None:
        pass

    bench.writers.after_take = nothing
    bench.now_ms += LATE_MS
    bench.writers.open_anew(PLACE)
    with pytest.raises(WriterUnavailableError, match="may arrive for 120 s more"):
        await bench.take()
    bench.now_ms += LATE_MS
    assert (await bench.take()).pid == NOW


async def test_the_same_id_is_not_waited_for() -> None:
    """Its marker fences whatever went under it before."""
    bench = Bench(NOW)
    assert (await bench.take()).pid == NOW


async def test_a_partition_without_a_writer_before_is_not_waited_for() -> None:
    bench = Bench()
    assert (await bench.take()).pid == NOW
    assert set(bench.ids.recorded) == {NOW}


async def test_of_its_own_sends_a_server_knows_when_they_were() -> None:
    bench = Bench(BEFORE)
    bench.now_ms += LATE_MS
    await bench.take()
    bench.fencing.pid = NOW + 1
    bench.now_ms += HOUR_MS
    with pytest.raises(WriterUnavailableError, match="another producer id"):
        await bench.take(doubt_ms=bench.now_ms - 1)
    assert (await bench.take(doubt_ms=bench.now_ms - LATE_MS)).pid == NOW + 1
