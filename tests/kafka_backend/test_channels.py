"""Batches to the leaders over sockets, against brokers that a test plays."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop
from kio.index import load_request_schema
from kio.serial import entity_reader
from typing_extensions import override

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_API_VERSIONS, API_PRODUCE
from pidlease.kafka.client.cluster import Cluster, UpstreamTopic, View
from pidlease.kafka.client.produce_channels import ProduceChannels, ProduceSend
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.kafka.codec.produce import PartitionResponse, ProduceBatch
from pidlease.kafka.errors import UpstreamAwayError, UpstreamError, UpstreamLostError
from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.kafka_backend.test_link import frame, read
from tests.servers.waiting import until

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
_SECONDS = 30.0


class Broker:
    """Answers Produce when the test says so.

    Attributes:
        asked: what it was asked, taken apart.
        connections: how many there were.
    """

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Any] = asyncio.Queue()
        self.connections = 0
        self.port = 0
        #: Cleared: it reads nothing but the question for its versions.
        self.reads = asyncio.Event()
        self.reads.set()
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, port)
        self.port = self._server.sockets[0].getsockname()[1]

    def end(self, number: int) -> None:
        """End one of its connections."""
        self._writers[number].transport.abort()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        kind: Any = load_request_schema(API_PRODUCE, 8)
        while True:
            try:
                asked = await read(reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            if struct.unpack_from(">h", asked)[0] == API_API_VERSIONS:
                writer.write(frame(asked[4:8] + struct.pack(">hihhhi", 0, 1, API_PRODUCE, 3, 8, 0)))
                await self.reads.wait()
                continue
            at = entity_reader(kind.__header_schema__)(asked, 0)[1]
            self.asked.put_nowait((asked[4:8], entity_reader(kind)(asked, at)[0], writer))

    async def take(self) -> tuple[Any, Callable[[int], None]]:
        """The next request, and how all its batches are answered: a code, 0 for success."""
        async with asyncio.timeout(_SECONDS):
            correlation, body, writer = await self.asked.get()

        def answer(code: int) -> None:
            parts = [(topic.name.encode(), part.index)
                     for topic in body.topic_data for part in topic.partition_data]  # fmt: skip
            rows = [struct.pack(">h", len(name)) + name
                    + struct.pack(">iihqqqih", 1, index, code, -1 if code else 7, -1, 0, 0, -1)
                    for name, index in parts]  # fmt: skip
            head = correlation + struct.pack(">i", len(rows))
            writer.write(frame(b"".join([head, *rows]) + struct.pack(">i", 0)))

        return body, answer


class Known:
    """What is asked of the cluster; brokers 1 and 2 are the test's."""

    def __init__(self, *brokers: Broker) -> None:
        self.brokers = brokers
        self.refreshes = 0
        self.config = UpstreamConfig((), connect_seconds=_SECONDS, request_seconds=20.0)
        self.view = View()
        self.lead(1)

    def lead(self, broker: int) -> None:
        topic = UpstreamTopic("t", "id", internal=False, leaders=(broker, broker))
        self.view = View(topics={"t": topic})

    def address(self, broker: int) -> tuple[str, int]:
        return LOOPBACK, self.brokers[broker - 1].port

    def stale(self) -> None:
        self.refreshes += 1


@asynccontextmanager
async def sending(count: int = 1) -> AsyncIterator[tuple[ProduceChannels, Known, list[Broker]]]:
    brokers = [Broker() for _ in range(count)]
    for each in brokers:
        await each.listen()
    known = Known(*brokers)
    channels = ProduceChannels(cast(Cluster, known))
    try:
        yield channels, known, brokers
    finally:
        channels.close()
        for each in brokers:
            each.close()


class Sent(ProduceSend):
    """A batch whose outcome a test waits for."""

    def __init__(self, batch: ProduceBatch) -> None:
        super().__init__(*batch)
        self.over = False
        self.future: asyncio.Future[PartitionResponse | UpstreamError] = (
            asyncio.get_running_loop().create_future()
        )

    @property
    @override
    def ended(self) -> bool:
        return self.over

    def completed(self, result: PartitionResponse | UpstreamError) -> None:
        self.future.set_result(result)


def send(
    channels: ProduceChannels, producer: int, batch: ProduceBatch
) -> asyncio.Future[PartitionResponse | UpstreamError]:
    sent = Sent(batch)
    channels.send(producer, sent)
    return sent.future


async def within(
    future: asyncio.Future[PartitionResponse | UpstreamError],
) -> PartitionResponse | UpstreamError:
    async with asyncio.timeout(_SECONDS):
        return await future


async def test_the_leader_gives_up_before_the_connection_does() -> None:
    async with sending() as (channels, known, (broker,)):
        sent = send(channels, 5, ProduceBatch(PLACE, b"x"))
        body, answer = await broker.take()
        assert body.timeout.total_seconds() == 0.8 * known.config.request_seconds
        answer(0)
        assert await within(sent) == PartitionResponse(0, 7)


@pytest.mark.parametrize(("code", "refreshes"), [(76, 0), (6, 1), (100, 1)])
async def test_an_error_of_stale_metadata_refreshes_it(code: int, refreshes: int) -> None:
    """A compression type that the broker lacks says nothing of the leader; an unknown id does."""
    async with sending() as (channels, known, (broker,)):
        sent = send(channels, 5, ProduceBatch(PLACE, b"x"))
        (await broker.take())[1](code)
        assert await within(sent) == PartitionResponse(code, -1, 0)
        assert known.refreshes == refreshes


@pytest.mark.parametrize(("producer", "sent"), [(5, [b"c"]), (0, [b"b", b"c"])])
async def test_a_batch_whose_request_has_ended_is_not_sent(
    producer: int, sent: list[bytes]
) -> None:
    """Nor is what follows it of its producer: Kafka might take that for the producer's first."""
    async with sending() as (channels, _, (broker,)):
        ended, following, other = (Sent(ProduceBatch(PLACE, data)) for data in (b"a", b"b", b"c"))
        for key, each in ((producer, ended), (producer, following), (7, other)):
            channels.send(key, each)
        ended.over = True
        for expected in sent:
            body, answer = await broker.take()
            assert body.topic_data[0].partition_data[0].records == expected
            answer(0)
        assert isinstance(await within(ended.future), UpstreamAwayError)
        assert isinstance(await within(following.future), UpstreamAwayError) == bool(producer)
        assert await within(other.future) == PartitionResponse(0, 7)


@pytest.mark.parametrize(("in_flight", "lost"), [(False, [1]), (True, [1, 1])])
async def test_one_of_several_idle_connections_that_ends_is_no_lost_leader(
    *, in_flight: bool, lost: list[int]
) -> None:
    """Kafka closes idle ones. With a request in flight, or as the last one, it is a sign."""
    told: list[int] = []
    async with sending() as (channels, _, (broker,)):
        channels.on_lost = told.append
        sent = [send(channels, producer, ProduceBatch(PLACE, b"x")) for producer in (5, 6)]
        answers = [(await broker.take())[1] for _ in sent]
        assert broker.connections == 2
        for answer in answers[in_flight:]:
            answer(0)
        done = sent if not in_flight else [each for each in sent if each is not sent[0]]
        for each in done:
            assert await within(each) == PartitionResponse(0, 7)
        broker.end(0)
        if in_flight:
            assert isinstance(await within(sent[0]), UpstreamLostError)
        both = channels._channels[1]
        await asyncio.to_thread(until, lambda: not all(each.open for each in both), "the end")
        broker.end(1)
        await asyncio.to_thread(until, lambda: len(told) >= len(lost), "the sign")
        assert (told, channels.connected(1)) == (lost, False)


async def test_producers_share_a_connection_one_behind_the_other() -> None:
    """Who has nothing in flight leaves it to the next."""
    async with sending() as (channels, _, (broker,)):
        for producer in range(1, 9):
            sent = send(channels, producer, ProduceBatch(PLACE, b"x"))
            (await broker.take())[1](0)
            assert await within(sent) == PartitionResponse(0, 7)
        assert broker.connections == 1


async def test_a_connection_that_could_not_be_made_is_tried_again() -> None:
    async with sending() as (channels, known, (broker,)):
        (port,) = free_ports(1)
        broker.close()
        broker.port = port
        assert isinstance(
            await within(send(channels, 5, ProduceBatch(PLACE, b"x"))), UpstreamAwayError
        )
        await broker.listen(port)
        sent = send(channels, 5, ProduceBatch(PLACE, b"x"))
        (await broker.take())[1](0)
        assert await within(sent) == PartitionResponse(0, 7)
        assert known.address(1)[1] == port


async def test_without_a_producer_the_next_goes_to_the_new_leader() -> None:
    """Although more is in flight to the old one; of a producer it would have to stay in order."""
    async with sending(2) as (channels, known, (old, new)):
        for producer, leader in ((0, new), (5, old)):
            known.lead(1)
            first, second = (send(channels, producer, ProduceBatch(PLACE, b"x")) for _ in range(2))
            refuse, later = (await old.take())[1], (await old.take())[1]
            known.lead(2)
            refuse(6)
            assert (await within(first)) == PartitionResponse(6, -1, 0)
            third = send(channels, producer, ProduceBatch(PLACE, b"x"))
            if leader is new:
                (await new.take())[1](0)
            later(0)
            if leader is old:
                (await old.take())[1](0)
            assert await within(second) == await within(third) == PartitionResponse(0, 7)


async def test_a_request_belongs_to_one_transaction() -> None:
    async with sending() as (channels, _, (broker,)):
        ids = ["one", "two", None, None]
        places = [PLACE, OTHER, PLACE, OTHER]
        sent = [send(channels, 5, ProduceBatch(place, b"x", id_))
                for place, id_ in zip(places, ids, strict=True)]  # fmt: skip
        asked = []
        for _ in range(3):
            body, answer = await broker.take()
            parts = [part.index for topic in body.topic_data for part in topic.partition_data]
            asked.append((body.transactional_id, parts))
            answer(0)
        assert asked == [("one", [0]), ("two", [1]), (None, [0, 1])]
        for each in sent:
            assert await within(each) == PartitionResponse(0, 7, 0)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_who_wakes_sends_nothing_of_before(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    """Not even the rest of a request, of which the socket had no room for all."""

    async def check() -> None:
        suspended = False
        async with sending() as (channels, _, (broker,)):
            channels.was_suspended = lambda: suspended
            broker.reads.clear()
            sent = send(channels, 5, ProduceBatch(PLACE, bytes(32 << 20)))
            (channel,) = channels._channels[1]
            async with asyncio.timeout(_SECONDS):
                while channel._connection is None or not channel._connection.paused:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            suspended = True
            broker.reads.set()
            came = asyncio.ensure_future(broker.asked.get())
            async with asyncio.timeout(_SECONDS):
                await asyncio.wait([came, sent], return_when=asyncio.FIRST_COMPLETED)
            assert not came.done(), "the broker has all of the batch"
            assert isinstance(await within(sent), UpstreamLostError)
            came.cancel()
            # It is noted; what comes now is sent.
            suspended = False
            again = send(channels, 5, ProduceBatch(PLACE, b"x"))
            (await broker.take())[1](0)
            assert await within(again) == PartitionResponse(0, 7)
            assert broker.connections == 2

    run(check())
