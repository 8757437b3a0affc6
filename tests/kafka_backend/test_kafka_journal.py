"""The coordinator's rows in a real Kafka: several servers, lost responses, late servers."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from random import Random
from typing import Any, ClassVar

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from pidlease.coordination.boot_clock import boot_seconds
from pidlease.coordination.journal.journal import Fields, JournalError, Row
from pidlease.coordination.journal.journal_sequence import JournalSequence
from pidlease.coordination.ownership import OwnershipError
from pidlease.coordination.pid_sequence import SequenceError
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.kafka_client import Upstream
from pidlease.kafka.client.produce_channels import ProduceSend
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.kafka.client.transactions import SERVED_TOPIC
from pidlease.kafka.codec.produce import PartitionResponse
from pidlease.kafka.errors import UpstreamError, UpstreamLostError
from pidlease.kafka.records.writer_batch import Writer
from pidlease.log.kafka import kafka_journal
from pidlease.log.kafka.kafka_journal import KafkaJournal, create_served_topic
from tests.crash.seeds import SOAK, new_random
from tests.kafka_backend.served_topic import delete_served_topic, is_served
from tests.servers.kafka import KafkaServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka]

_STEPS = 2_000 if SOAK else 60


class Lossy(Upstream):
    """A client of Kafka that loses the next batch, or the response to it.

    Attributes:
        lose: "batch" or "response"; empty: nothing.
        lost: what it has lost.
    """

    lose = ""

    def __init__(self, config: UpstreamConfig) -> None:
        super().__init__(config)
        self.lost: list[str] = []
        #: Responses that wait for the test; None: none of them does.
        self.held: list[Callable[[], None]] | None = None

    def send(self, producer: int, send: ProduceSend) -> None:
        if self.held is not None:
            send = _Held(send, self.held)
        if self.lose:
            self.lost.append(self.lose)
            lost, self.lose = self.lose, ""
            if lost == "batch":
                send.completed(UpstreamLostError("the batch was lost"))
                return
            send = _Unanswered(send)
        super().send(producer, send)


class _Unanswered(ProduceSend):
    def __init__(self, send: ProduceSend) -> None:
        super().__init__(send.place, send.data)
        self._send = send

    def appended(self, offset: int) -> None:
        self._send.completed(UpstreamLostError(f"the response was lost: offset {offset}"))

    def completed(self, result: PartitionResponse | UpstreamError) -> None:
        self._send.completed(result)


class _Held(ProduceSend):
    def __init__(self, send: ProduceSend, held: list[Callable[[], None]]) -> None:
        super().__init__(send.place, send.data)
        self._send = send
        self._held = held

    def appended(self, offset: int) -> None:
        self._held.append(partial(self._send.appended, offset))

    def completed(self, result: PartitionResponse | UpstreamError) -> None:
        self._held.append(partial(self._send.completed, result))


class Server:
    """A server's journal, and its connection to Kafka."""

    def __init__(self, kafka: KafkaServer, folder: str) -> None:
        host, port = kafka.bootstrap.rsplit(":", 1)
        #: From now on it claims nothing: it serves, or it was replaced, and ends.
        self.serves = False
        self.upstream = Lossy(UpstreamConfig(bootstrap=((host, int(port)),)))
        self.journal = KafkaJournal(self.upstream, folder, folder, lambda: 1_700_000_000_000)
        self.sequence = JournalSequence(self.journal, folder, lambda: 1_700_000_000_000, 1 << 60)

    async def claim(self, looks: int = 1) -> str:
        """Look so many times whether it can serve; return the owner."""
        owner = ""
        for _ in range(looks):
            owner = await asyncio.to_thread(self.journal.claim)
            if not owner:
                self.serves = True
                break
        return owner

    async def put(self, name: str, value: int | None) -> None:
        fields = None if value is None else {"value": value}
        await asyncio.to_thread(self.journal.put, [Row("t", name, fields)])

    async def rows(self) -> dict[str, int]:
        await asyncio.to_thread(self.journal.refresh)
        found = self.journal.all("t")
        return {name: fields["value"] for name, fields in found.items()}

    async def still(self) -> bool:
        return await asyncio.to_thread(self.journal.still)

    async def close(self) -> None:
        await self.upstream.close()


@asynccontextmanager
async def servers(kafka: KafkaServer, *folders: str) -> AsyncIterator[list[Server]]:
    async with AsyncExitStack() as stack:
        found = []
        for folder in folders:
            server = Server(kafka, folder)
            stack.push_async_callback(server.close)
            await server.upstream.start()
            found.append(server)
        yield found


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(autouse=True)
def _without_the_topic(kafka: KafkaServer) -> None:
    if is_served(kafka):
        delete_served_topic(kafka)


LOOKS = kafka_journal.SILENT_LOOKS + 2


async def test_rows_outlive_their_server(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "a") as (first, second):
        assert await first.claim() == ""
        assert first.journal.first_service
        await first.put("one", 1)
        await first.put("two", 2)
        await first.put("one", None)
        await first.put("two", 3)
        assert await first.rows() == {"two": 3}
        # The same directory: its former server has ended.
        assert await second.claim() == ""
        assert not second.journal.first_service
        assert await second.rows() == {"two": 3}


async def test_a_server_stands_by_until_the_other_one_is_silent(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b") as (first, second):
        assert await first.claim() == ""
        await first.put("one", 1)
        assert await second.claim() == "a"
        await first.put("one", 2)
        assert await second.claim(LOOKS - 3) == "a"
        await first.put("one", 3)  # a sign of life
        assert await second.claim(LOOKS - 3) == "a"
        assert await second.claim(LOOKS) == ""
        assert await second.rows() == {"one": 3}
        # The first one has not noticed; Kafka rejects what it sends.
        with pytest.raises(JournalError, match="another server serves this cluster: b"):
            await first.put("one", 4)
        assert not await first.still()
        with pytest.raises(JournalError, match="another server"):
            await first.rows()
        assert await second.still()
        await second.put("one", 5)
        assert await second.rows() == {"one": 5}


async def test_a_server_that_was_replaced_learns_it_by_a_question(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b") as (first, second):
        assert await first.claim() == ""
        assert len(await asyncio.to_thread(first.sequence.blocks)) == 0
        assert await second.claim(LOOKS) == ""
        await asyncio.to_thread(second.sequence.take)
        with pytest.raises(SequenceError, match="another server"):
            await asyncio.to_thread(first.sequence.blocks)
        assert not await first.still()


async def test_a_server_that_stops_is_replaced_at_once(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b") as (first, second):
        assert await first.claim() == ""
        assert await second.claim() == "a"
        await first.journal.release()
        assert await second.claim() == ""
        with pytest.raises(JournalError, match="stops"):
            await first.put("one", 1)


@pytest.mark.parametrize("lost", ["batch", "response"])
async def test_an_unknown_outcome_is_settled(kafka: KafkaServer, lost: str) -> None:
    async with servers(kafka, "a", "a") as (first, second):
        assert await first.claim() == ""
        block = await asyncio.to_thread(first.sequence.take)
        first.upstream.lose = lost
        await first.put("one", 1)
        assert first.upstream.lost == [lost]
        assert await first.rows() == {"one": 1}
        first.upstream.lose = lost
        after = await asyncio.to_thread(first.sequence.take)
        assert len(first.upstream.lost) == 2
        assert after.first == block.end
        assert await first.still()
        assert await second.claim() == ""
        assert await second.rows() == {"one": 1}
        assert await asyncio.to_thread(second.sequence.blocks) == [block, after]


class _SlowDecoding:
    """Decoding in a thread that ends when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self._goes_on = threading.Event(), threading.Event()
        self._decode = kafka_journal._decode
        monkeypatch.setattr(kafka_journal, "_decode", self)

    def __call__(self, *args: Any) -> Any:
        found = self._decode(*args)
        self.began.set()
        assert self._goes_on.wait(WAIT_S)
        return found

    def end(self) -> None:
        self._goes_on.set()


async def _read_slowly(server: Server, decoding: _SlowDecoding) -> asyncio.Task[dict[str, int]]:
    """Put rows, and read them before the response is there; it comes while they are decoded."""
    rows = [Row("t", str(number), {"value": 1}) for number in range(101)]
    held = server.upstream.held = []
    putting = asyncio.create_task(asyncio.to_thread(server.journal.put, rows))
    await asyncio.to_thread(until, lambda: bool(held), "the batch is in the log")
    reading = asyncio.create_task(server.rows())
    assert await asyncio.to_thread(decoding.began.wait, WAIT_S)
    server.upstream.held = None
    for respond in held:
        respond()
    await putting
    return reading


async def test_rows_that_were_read_slowly_are_not_put_over_newer_ones(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a bug: an older binding of a name replaced a newer one permanently."""
    async with servers(kafka, "a") as (server,):
        assert await server.claim() == ""
        decoding = _SlowDecoding(monkeypatch)
        reading = await _read_slowly(server, decoding)
        await server.put("7", 2)
        decoding.end()
        assert (await reading)["7"] == 2
        assert (await server.rows())["7"] == 2


async def test_a_batch_that_was_read_slowly_is_not_taken_for_a_later_one(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a bug: a batch that was lost counted as stored."""
    async with servers(kafka, "a") as (server,):
        assert await server.claim() == ""
        decoding = _SlowDecoding(monkeypatch)
        reading = await _read_slowly(server, decoding)
        server.upstream.lose = "batch"
        later = asyncio.create_task(server.put("7", 2))
        await asyncio.to_thread(until, lambda: bool(server.upstream.lost), "the batch is lost")
        decoding.end()
        await reading
        await later
        assert (await server.rows())["7"] == 2


async def test_a_server_that_has_not_read_for_long_ends(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed rows may be gone from the log, and would stay here."""
    async with servers(kafka, "a", "b") as (first, second):
        assert await first.claim() == ""
        await first.put("one", 1)
        assert await second.claim() == "a"
        later = boot_seconds() + kafka_journal._UNREAD_SECONDS_MAX + 1
        monkeypatch.setattr(kafka_journal, "boot_seconds", lambda: later)
        with pytest.raises(JournalError, match=r"not read for so long.*start it again"):
            await first.rows()
        assert not await first.still()
        with pytest.raises(OwnershipError, match="not read for so long"):
            await second.claim()
        assert "not read for so long" in second.journal.ended


async def test_the_writer_is_renewed(kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with servers(kafka, "a") as (server,):
        assert await server.claim() == ""
        before = server.journal._writer
        assert await server.still()
        assert server.journal._writer == before
        monkeypatch.setattr(kafka_journal, "_RENEW_SECONDS", 0.0)
        assert await server.still()
        after = server.journal._writer
        assert before is not None
        assert after == before._replace(epoch=before.epoch + 1)
        await server.put("one", 1)
        assert await server.rows() == {"one": 1}


async def test_batches_of_a_forgotten_writer_are_waited_for(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "a") as (first, second):
        assert await first.claim() == ""
        # As if Kafka had forgotten the transactional id since.
        row = first.journal._owner_row("a")
        assert row.fields is not None
        await asyncio.to_thread(
            first.journal.put, [row._replace(fields=row.fields | {"writer": 12345})]
        )
        with pytest.raises(OwnershipError, match="may arrive for 120 s more"):
            await second.claim()
        with pytest.raises(OwnershipError, match="may arrive for"):
            await second.claim()
        second.journal._late_until = time.monotonic()
        assert await second.claim() == ""
        await second.put("one", 1)


async def test_of_two_that_begin_at_once_one_serves(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b") as both:
        # Each may find the topic without an owner, and then fence the other one.
        await asyncio.gather(*(each.claim() for each in both), return_exceptions=True)
        assert sum([await each.still() for each in both]) == 1
        # The one that created the topic may not be the first to serve.
        assert sum(each.journal.first_service for each in both) <= 1


async def test_a_topic_of_an_earlier_version_is_not_new(kafka: KafkaServer) -> None:
    """That version had no rows; it may have leased PIDs."""
    async with servers(kafka, "a") as (server,):
        assert await create_served_topic(server.upstream.cluster)
        assert await server.claim() == ""
        assert not server.journal.first_service


async def test_the_server_that_created_the_topic_may_serve_later(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b") as (first, second):
        await first.journal._make_topic()
        assert await second.claim() == ""
        assert not second.journal.first_service
        assert await first.claim(LOOKS) == ""
        assert not first.journal.first_service


async def test_an_owner_that_shows_itself_during_a_takeover_stays(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with servers(kafka, "a", "b") as (first, second):
        assert await first.claim() == ""
        assert await second.claim(LOOKS - 3) == "a"
        monkeypatch.setattr(kafka_journal, "SILENT_LOOKS", 1)
        raised = second.upstream.fencing.raise_epoch
        late: list[bool] = []

        async def raise_epoch(place: TopicPartition) -> Writer:
            late.append(await first.still())
            return await raised(place)

        monkeypatch.setattr(second.upstream.fencing, "raise_epoch", raise_epoch)
        assert await second.claim() == "a"
        assert late == [True]
        # It was fenced, and becomes the writer again.
        assert await first.still()
        await first.put("one", 1)
        assert await first.rows() == {"one": 1}


async def test_a_topic_that_was_deleted_is_not_created_again(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b") as (first, second):
        assert await first.claim() == ""
        assert await second.claim() == "a"
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.delete_topics([SERVED_TOPIC])[SERVED_TOPIC].result(WAIT_S)
        await _until_seen(second, exists=False)
        with pytest.raises(OwnershipError, match="was deleted"):
            await second.claim()
        assert await create_served_topic(second.upstream.cluster)
        await _until_seen(second, exists=True)
        with pytest.raises(OwnershipError, match="was deleted"):
            await second.claim()


async def _until_seen(server: Server, *, exists: bool) -> None:
    """Wait until a server's metadata show that the topic exists, or that it does not."""
    async with asyncio.timeout(WAIT_S):
        while (SERVED_TOPIC in server.upstream.cluster.view.topics) is not exists:
            server.upstream.stale()
            await asyncio.sleep(0.05)


async def test_what_others_write_there_does_not_count(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b") as (first, second):
        assert await first.claim() == ""
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(SERVED_TOPIC, b"no JSON", b"some key")
        producer.produce(SERVED_TOPIC, None, b"some key")
        producer.produce(SERVED_TOPIC, b"[]", b"t/one")
        producer.flush(WAIT_S)
        before = first.journal._writer
        # The next batch does not land where it must.
        await first.put("one", 1)
        assert first.journal._writer != before
        assert await first.rows() == {"one": 1}
        assert await second.claim(LOOKS) == ""
        assert await second.rows() == {"one": 1}


async def test_a_newer_format_is_refused(kafka: KafkaServer) -> None:
    async with servers(kafka, "a", "b") as (first, second):
        assert await first.claim() == ""
        await asyncio.to_thread(first.journal.put, [Row("format", "", {"version": 1})])
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(SERVED_TOPIC, b'{"version": 2}', b"format/")
        producer.flush(WAIT_S)
        with pytest.raises(OwnershipError, match="format 2"):
            await second.claim()
        # For good: rows after it were not applied.
        for _ in range(2):
            with pytest.raises(JournalError, match="format 2"):
                await asyncio.to_thread(first.journal.refresh)


async def test_random_histories(kafka: KafkaServer) -> None:
    """Three servers take over from each other at any time; batches and responses get lost.

    No number of a PID is leased twice, and what was acknowledged by the owner stays.
    """
    random = new_random("journal")
    taken: list[range] = []
    expected: dict[str, set[int | None]] = {}
    numbers = count()
    lost = takeovers = 0
    async with AsyncExitStack() as stack:
        alive: list[Server] = []
        folders = count()
        for _ in range(_STEPS):
            while len(alive) < 3:
                server = Server(kafka, f"folder-{next(folders)}")
                stack.push_async_callback(server.close)
                await server.upstream.start()
                alive.append(server)
            server = random.choice(alive)
            server.upstream.lose = random.choice(["", "", "batch", "response"])
            before = len(server.upstream.lost)
            try:
                takeovers += await _step(random, server, taken, expected, next(numbers))
            except (JournalError, OwnershipError, SequenceError) as error:
                print(server.journal._server, error)
            lost += len(server.upstream.lost) - before
            server.upstream.lose = ""
            if server.journal.ended:
                alive.remove(server)
        last = Server(kafka, "last")
        stack.push_async_callback(last.close)
        await last.upstream.start()
        assert await last.claim(LOOKS) == ""
        found = await last.rows()
        for name, values in expected.items():
            assert found.get(name) in values, name
        blocks = await asyncio.to_thread(last.sequence.blocks)
    numbers_taken = sorted(each.start for each in taken)
    assert len(set(numbers_taken)) == len(numbers_taken)
    assert {block.first for block in blocks} >= set(numbers_taken)
    print(f"{lost} losses, {takeovers} takeovers, {len(taken)} blocks")
    assert lost
    assert takeovers
    assert taken


async def _step(
    random: Random,
    server: Server,
    taken: list[range],
    expected: dict[str, set[int | None]],
    number: int,
) -> int:
    """Do something with a server; return how many takeovers that was."""
    if not server.serves:
        owner = await server.claim(LOOKS if random.random() < 0.7 else 1)
        return 0 if owner else 1
    if random.random() < 0.4:
        block = await asyncio.to_thread(server.sequence.take)
        taken.append(range(block.first, block.end))
        return 0
    name = random.choice("abc")
    value = random.choice([number, number, None])
    before = expected.setdefault(name, {None})
    expected[name] = before | {value}  # until the outcome is known
    await server.put(name, value)
    expected[name] = {value}
    return 0


class _Noting(dict[str, Fields]):
    """Rows of a kind; notes those that are taken out."""

    taken: ClassVar[list[str]] = []

    def pop(self, id_: str, *default: Any) -> Any:
        self.taken.append(id_)
        return super().pop(id_, *default)


async def test_a_row_that_is_put_again_is_never_missing(kafka: KafkaServer) -> None:
    """Threads read rows while they change: without its map, a server would own nothing.

    Once a bug: a row was taken out, and put in again.
    """
    async with servers(kafka, "a") as (server,):
        assert await server.claim() == ""
        await server.put("one", 1)
        rows = server.journal._rows["t"] = _Noting(server.journal._rows["t"])
        await server.put("one", 2)
        assert await server.rows() == {"one": 2}
        assert rows.taken == []
        await server.put("one", None)
        assert rows.taken == ["one"]
