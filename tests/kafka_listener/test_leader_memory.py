"""With Kafka as the log, what leaders return to many consumers at once fits the memory for it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.cluster import UpstreamTopic, View
from pidlease.kafka.codec.fetch import FetchPosition, FetchRequest, write_forwarded_fetch
from pidlease.kafka.codec.primitives import read_request_header
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.kafka.client_connection import Slot
from proxy.kafka.forwarded import leader_fetches
from proxy.kafka.forwarded.leader_fetches import ClientFetches, LeaderFetches
from proxy.kafka.forwarded.response_memory import ResponseMemory
from proxy.kafka.memory_budget import MemoryBudget
from tests.kafka_backend.test_link import frame, read
from tests.kafka_backend.test_upstream_wire import read_request, write_response
from tests.kafka_listener.messages import FETCH

_MIB: Final = 1 << 20
_FETCH_MAX: Final = 4 * _MIB
#: Longer than this nothing takes, on however busy a machine.
_HANG_S: Final = 120


class Broker:
    """Leads the partition with its number, and returns as much as it is asked for.

    Attributes:
        asked: the most bytes of each request.
        speaks: cleared: it keeps its answers to itself.
        hangs: it ends in the middle of an answer.
    """

    def __init__(self, batch_bytes: int) -> None:
        self.asked: list[int] = []
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.hangs = False
        self._batch_bytes = batch_bytes
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                asked = await read(reader)
                _, body = read_request(FETCH, 11, asked)
                self.asked.append(int(body.max_bytes))
                await self.speaks.wait()
                # The first batch is whole in any case.
                answer = _answer(body, max(int(body.max_bytes), self._batch_bytes))
                sent = frame(asked[4:8] + answer[4:])
                writer.write(sent[: len(sent) // 2] if self.hangs else sent)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def _answer(asked: Any, size: int) -> bytes:
    parts = [
        {"partition_index": part.partition, "error_code": ErrorCode.none, "high_watermark": 9,
         "last_stable_offset": 9, "log_start_offset": 0, "preferred_read_replica": -1,
         "aborted_transactions": None, "records": bytes(size)}
        for topic in asked.topics for part in topic.partitions
    ]  # fmt: skip
    topics = [{"topic": "t", "partitions": parts}]
    values = {"error_code": ErrorCode.none, "session_id": 0, "responses": topics}
    return write_response(FETCH, 11, values)


class Consumer:
    """A client of the server, and the server's own connections for it."""

    def __init__(self, fetching: LeaderFetches, budget: MemoryBudget, ports: list[int]) -> None:
        self.budget = budget
        self.links: dict[int, BrokerConnection] = {}
        self.fetches = ClientFetches()
        #: Its responses that are not sent yet.
        self.unsent: list[Slot] = []
        self._fetching = fetching
        self._ports = ports
        self._brokers: Any = SimpleNamespace(order=asyncio.Lock(), connection=self._link)
        self._connection: Any = SimpleNamespace(
            budget=budget, answering=asyncio.Lock(), is_next=lambda _: True,
            flush_soon=lambda: None, writable=SimpleNamespace(wait=lambda: asyncio.sleep(0)),
            followed=lambda _: asyncio.get_running_loop().create_future(),
        )  # fmt: skip

    async def _link(self, broker: int, _: object, *, polling: bool) -> BrokerConnection:
        assert polling
        link = self.links.get(broker)
        if link is None or not link.open:
            link = self.links[broker] = BrokerConnection((LOOPBACK, self._ports[broker]), _HANG_S)
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: link, *link.address)
        return link

    async def fetch(self, wait_ms: int = 100) -> int:
        """The bytes of the answer, which is kept until `sent`."""
        positions = [
            ("t", FetchPosition(number, 0, 64 * _MIB)) for number in range(len(self._ports))
        ]
        request = FetchRequest(wait_ms, 1, 64 * _MIB, 0, [])
        asked = bytearray(write_forwarded_fetch(11, request, positions))
        slot = Slot(self._connection, 5, 0)
        await self._fetching.answer(
            self._brokers, self.fetches, slot, read_request_header(asked), asked
        )
        self.unsent.append(slot)
        return sum(map(len, slot.answer))

    def sent(self) -> None:
        for slot in self.unsent:
            self.budget.release(slot.reserved)
        self.unsent.clear()

    def held(self) -> int:
        """The bytes of answers in memory, whether they are complete or not."""
        size = sum(link._frame_size for link in self.links.values() if link._frame is not None)
        for each in self.fetches.pending.values():
            if each.answer.done() and not each.answer.exception():
                size += len(each.answer.result())
        return size + sum(len(part) for slot in self.unsent for part in slot.answer)

    def close(self) -> None:
        for link in self.links.values():
            link.close()


@asynccontextmanager
async def consuming(
    count: int, budget: MemoryBudget, batch_bytes: int = 0
) -> AsyncIterator[tuple[list[Consumer], list[Broker]]]:
    """Consumers of two partitions, which two brokers lead."""
    brokers = [Broker(batch_bytes), Broker(batch_bytes)]
    ports = [await each.listen() for each in brokers]
    topic = UpstreamTopic("t", "i", internal=False, leaders=(0, 1))
    cluster: Any = SimpleNamespace(
        view=View(topics={"t": topic}), on_change=[], missing=_none, stale=lambda: None
    )
    fetching = LeaderFetches(cluster, _FETCH_MAX)
    consumers = [Consumer(fetching, budget, ports) for _ in range(count)]
    try:
        yield consumers, brokers
    finally:
        for each in consumers:
            each.close()
        for broker in brokers:
            broker.close()


async def _none(_: list[TopicPartition]) -> set[TopicPartition]:
    return set()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(_HANG_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_many_consumers_at_once_get_all_and_no_more_than_fits() -> None:
    budget = MemoryBudget(4 * _FETCH_MAX)
    async with consuming(20, budget) as (consumers, brokers):
        for each in brokers:
            each.speaks.clear()
        highest = 0

        async def catch_up(consumer: Consumer) -> None:
            size = 0
            while size < 2 * _FETCH_MAX:
                size += await consumer.fetch()
                await asyncio.sleep(0.01)  # it is sent
                consumer.sent()

        async def watch() -> None:
            nonlocal highest
            while True:
                highest = max(highest, sum(each.held() for each in consumers))
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        async with asyncio.timeout(_HANG_S), asyncio.TaskGroup() as group:
            for consumer in consumers:
                group.create_task(catch_up(consumer))
            await _until(lambda: all(len(each.asked) == len(consumers) for each in brokers))
            for each in brokers:
                each.speaks.set()
        watching.cancel()
        # The rows' own bytes are beside the records.
        assert _FETCH_MAX // 2 < highest <= budget.limit + _MIB
        assert budget.used == 0
        assert {size for each in brokers for size in each.asked} == {_FETCH_MAX // 2}


async def test_a_batch_that_is_larger_counts_with_its_size() -> None:
    """One at a time: nothing else has room while it is there, and all get theirs in the end."""
    budget = MemoryBudget(4 * _FETCH_MAX)
    size = 2 * budget.limit
    async with consuming(3, budget, size) as (consumers, _), asyncio.timeout(_HANG_S):
        for first in consumers:
            for _ in range(2):
                assert size < await first.fetch(60_000) < size + _MIB
                assert size < first.held() < budget.used + 1000 < size + _MIB
                for each in consumers:
                    if each is not first:
                        assert await each.fetch(1) < 1000
                        assert each.held() < 1000
                        each.sent()
                first.sent()
                assert budget.used == 0


async def test_what_comes_after_the_answer_is_not_read_before_the_next_request() -> None:
    """Of a client that asks no more it would take memory for ever."""
    budget = MemoryBudget(4 * _FETCH_MAX)
    async with consuming(1, budget) as ((consumer,), (_, late)):
        late.speaks.clear()
        assert await consumer.fetch(60_000) > _FETCH_MAX // 2
        consumer.sent()
        late.speaks.set()
        await _until(lambda: consumer.links[1].announced > 0)
        assert (consumer.held(), budget.used) == (0, 0)
        size = 0
        async with asyncio.timeout(_HANG_S):
            while size < _FETCH_MAX:
                size += await consumer.fetch(60_000)
                consumer.sent()
        assert len(late.asked) == 1
        assert (consumer.held(), budget.used) == (0, 0)


async def test_without_memory_there_is_an_answer_when_the_wait_is_over() -> None:
    """And what a leader has for it stays for the next request."""
    budget = MemoryBudget(4 * _FETCH_MAX)
    async with consuming(1, budget) as ((consumer,), brokers):
        budget.add(budget.limit)
        for _ in range(3):
            async with asyncio.timeout(_HANG_S):
                assert await consumer.fetch() < 1000
            assert consumer.held() < 1000
            consumer.sent()
        budget.release(budget.limit)
        async with asyncio.timeout(_HANG_S):
            assert await consumer.fetch(60_000) > _FETCH_MAX // 2
        assert all(len(each.asked) == 1 for each in brokers)


async def test_who_ends_just_as_there_is_memory_takes_none() -> None:
    for turns in range(8):
        budget = MemoryBudget(_MIB)
        budget.add(_MIB)
        connection: Any = SimpleNamespace(budget=budget)
        memory = ResponseMemory(Slot(connection, 5, 0), _MIB, time.monotonic() + _HANG_S)
        link = BrokerConnection((LOOPBACK, 1), 1.0)
        assert not memory.admits(link, 1000)
        await asyncio.sleep(0.01)
        budget.release(_MIB)
        for _ in range(turns):
            await asyncio.sleep(0)
        held = budget.used
        memory.close()
        for _ in range(20):
            await asyncio.sleep(0)
        assert budget.used == held, turns


async def test_an_answer_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the client of a dead broker's partition got nothing of all others for half a minute."""
    monkeypatch.setattr(leader_fetches, "_HANGS_SECONDS", 0.2)
    monkeypatch.setattr(leader_fetches, "_LATE_SECONDS", 10.0 * _HANG_S)
    budget = MemoryBudget(4 * _FETCH_MAX)
    async with consuming(1, budget) as ((consumer,), (_, dying)), asyncio.timeout(_HANG_S):
        dying.hangs = True
        size = 0
        while not dying.asked or size < _FETCH_MAX:
            size += await consumer.fetch(500)
            consumer.sent()
        dying.hangs = False
        while size < 3 * _FETCH_MAX:
            size += await consumer.fetch(500)
            consumer.sent()
        assert (consumer.held(), budget.used) == (0, 0)
