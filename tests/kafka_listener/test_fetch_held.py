"""Errors of a Fetch that a client can only ask again about wait as long as records would."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.cluster import UpstreamTopic, View
from pidlease.kafka.codec.fetch import (
    READ_UNCOMMITTED,
    EncodedPartition,
    FetchPosition,
    FetchRequest,
)
from pidlease.kafka.codec.primitives import RequestHeader
from pidlease.kafka.errors import UpstreamAwayError, UpstreamLostError
from proxy.kafka.forwarded.leader_fetches import ClientFetches, LeaderFetches
from proxy.kafka.forwarded.response_memory import ResponseMemory
from proxy.kafka.memory_budget import MemoryBudget
from tests.kafka_backend.test_upstream_wire import read_request, write_response
from tests.kafka_listener.batches import batch, records_of
from tests.kafka_listener.client import fetched, fetched_of
from tests.kafka_listener.harness import Server, serving
from tests.kafka_listener.messages import FETCH

#: Long enough that nothing is mistaken for it.
WAIT_MS: Final = 400
LONG_MS: Final = 60_000
AT_ONCE_S: Final = 20.0
STORAGE, RANGE, NOT_LEADER, UNKNOWN, OFFSET_NOT_AVAILABLE = 56, 1, 6, 3, 78


def took(began: float) -> float:
    return time.monotonic() - began


# ---------------------------------------------------------------------- the embedded log


async def _with_a_broken_log(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topic `bad` cannot be read, `good` is empty."""

    async def read(offset: int, max_bytes: int) -> bytes:
        raise OSError(5, "the disk is gone")

    async with await server.connect() as client:
        for topic in ("bad", "good"):
            await client.create(topic)
        await client.produce("bad", batch([b"x"]))
    bad = server.engine.partition("bad", 0)
    assert bad is not None
    monkeypatch.setattr(bad.log, "read", read)


async def test_a_log_that_cannot_be_read_is_told_when_the_wait_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server, await server.connect() as client:
        await _with_a_broken_log(server, monkeypatch)
        began = time.monotonic()
        assert (await client.fetch("bad", 0, wait_ms=WAIT_MS)).code == STORAGE
        assert took(began) > WAIT_MS / 1000 * 0.9
        began = time.monotonic()
        assert (await client.fetch("bad", 0, wait_ms=0)).code == STORAGE
        assert took(began) < AT_ONCE_S


async def test_records_and_other_errors_do_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server, await server.connect() as client:
        await _with_a_broken_log(server, monkeypatch)
        began = time.monotonic()
        for other, code in ((("nowhere", 0, 0), UNKNOWN), (("good", 0, 9), RANGE)):
            asked = fetched([("bad", 0, 0), other], wait_ms=LONG_MS)
            parts = fetched_of(await client.call(FETCH, 11, **asked))
            assert [each.code for each in parts] == [STORAGE, code]
        # Records that come while the error is held back.
        client.send(FETCH, 11, **fetched([("bad", 0, 0), ("good", 0, 0)], wait_ms=LONG_MS))
        await asyncio.sleep(0.05)
        async with await server.connect() as writer:
            await writer.produce("good", batch([b"new"]))
        parts = fetched_of(await client.receive())
        assert [each.code for each in parts] == [STORAGE, 0]
        assert [each.value for each in records_of(parts[1].data)] == [b"new"]
        # Records that are there already.
        asked = fetched([("bad", 0, 0), ("good", 0, 0)], wait_ms=LONG_MS)
        assert fetched_of(await client.call(FETCH, 11, **asked))[1].data
        assert took(began) < AT_ONCE_S


async def test_a_log_that_can_be_read_again_has_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server, await server.connect() as client:
        await _with_a_broken_log(server, monkeypatch)
        client.send(FETCH, 11, **fetched([("bad", 0, 0)], wait_ms=LONG_MS))
        await asyncio.sleep(0.05)
        monkeypatch.undo()
        async with await server.connect() as writer:
            await writer.produce("bad", batch([b"y"]))
        (found,) = fetched_of(await client.receive())
        assert (found.code, len(records_of(found.data))) == (0, 2)


# ---------------------------------------------------------------------- in front of Kafka


class Broker:
    """One of Kafka's, and the connection to it."""

    open = True
    announced = 0
    arriving = False

    def __init__(self) -> None:
        self.dead = False
        self.codes: dict[int, int] = {}
        self.data: dict[int, bytes] = {}
        self.asked: list[tuple[list[int], float]] = []
        self._polls: list[tuple[asyncio.Future[bytearray], Callable[[], bytearray]]] = []

    def begin(self, frame: bytes, _: float) -> asyncio.Future[bytearray]:
        answer: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
        _, body = read_request(FETCH, 11, bytes(frame))
        numbers = [int(part.partition) for topic in body.topics for part in topic.partitions]
        seconds = body.max_wait.total_seconds()
        self.asked.append((numbers, seconds))

        def made() -> bytearray:
            return self._answer(numbers)

        def over() -> None:
            if not answer.done():
                answer.set_result(made())

        if any(number in self.codes or number in self.data for number in numbers):
            over()
        else:
            asyncio.get_running_loop().call_later(seconds, over)
        self._polls.append((answer, made))
        return answer

    def give(self, number: int, data: bytes) -> None:
        """A record comes into a partition."""
        self.data[number] = data
        for answer, made in self._polls:
            if not answer.done():
                answer.set_result(made())

    def die(self) -> None:
        self.dead = True
        for answer, _ in self._polls:
            if not answer.done():
                answer.set_exception(UpstreamLostError("gone"))

    def close(self) -> None:
        """Nothing is asked of it any more."""

    def _answer(self, numbers: list[int]) -> bytearray:
        parts = [
            {"partition_index": number, "error_code": ErrorCode(self.codes.get(number, 0)),
             "high_watermark": 1, "last_stable_offset": 1, "log_start_offset": 0,
             "preferred_read_replica": -1, "aborted_transactions": None,
             "records": self.data.get(number)}
            for number in numbers
        ]  # fmt: skip
        values = {"error_code": ErrorCode.none, "session_id": 0,
                  "responses": [{"topic": "t", "partitions": parts}]}  # fmt: skip
        return bytearray(write_response(FETCH, 11, values))


class Cluster:
    """Two brokers; partitions 0 and 2 are led by the first, 1 by the second."""

    def __init__(self, *leaders: int) -> None:
        self.brokers = {0: Broker(), 1: Broker()}
        self.view = self._view(leaders or (0, 1, 0))
        self.on_change: list[Callable[[View, View], None]] = []
        self.links = SimpleNamespace(order=asyncio.Lock(), connection=self._link)
        self.fetches = ClientFetches()
        self.fetching = LeaderFetches(self, 1 << 20)  # type: ignore[arg-type]

    def stale(self) -> None:
        """It is looked at again when a test says so."""

    async def missing(self, places: list[TopicPartition]) -> set[TopicPartition]:
        """Kafka has what the view shows."""
        return {place for place in places if not self.view.has(*place)}

    def lead(self, *leaders: int) -> None:
        before, self.view = self.view, self._view(leaders)
        for told in self.on_change:
            told(before, self.view)

    def _view(self, leaders: tuple[int, ...]) -> View:
        return View(topics={"t": UpstreamTopic("t", "i", internal=False, leaders=leaders)})

    async def _link(self, broker: int, _: RequestHeader, *, polling: bool) -> Any:
        assert polling
        if self.brokers[broker].dead:
            raise UpstreamAwayError("connection refused")
        return self.brokers[broker]

    async def fetch(self, *numbers: int, wait_ms: int = LONG_MS, topic: str = "t") -> list[int]:
        """The codes that partitions are answered with; the size of records in the place of a 0."""
        positions = [FetchPosition(number, 0, 1 << 20) for number in numbers]
        request = FetchRequest(wait_ms, 1, 1 << 20, READ_UNCOMMITTED, [(topic, positions)])
        header = RequestHeader(FETCH, 11, 5, "c", 0)
        links: Any = self.links
        slot: Any = SimpleNamespace(connection=SimpleNamespace(budget=MemoryBudget(1 << 30)))
        memory = ResponseMemory(slot, 1 << 20, time.monotonic() + wait_ms / 1000)
        rows = await self.fetching._gather(links, self.fetches, memory, header, request)
        found = []
        for number in numbers:
            row = rows.get((topic, number), ErrorCode.none)
            found.append((row.code or row.size) if isinstance(row, EncodedPartition) else row.value)
        return found


async def test_a_leader_that_is_away_is_told_when_the_wait_is_over() -> None:
    for why in ("refused", "no leader", "told by Kafka"):
        cluster = Cluster()
        code = NOT_LEADER
        if why == "refused":
            cluster.brokers[1].dead = True
        elif why == "no leader":
            cluster.lead(0, -1, 0)
        else:
            cluster.brokers[1].codes[1] = code = OFFSET_NOT_AVAILABLE
        began = time.monotonic()
        assert await cluster.fetch(1, wait_ms=WAIT_MS) == [code], why
        assert took(began) > WAIT_MS / 1000 * 0.9, why
        assert len(cluster.brokers[1].asked) <= 1, "a leader is asked once"
        began = time.monotonic()
        assert await cluster.fetch(1, wait_ms=0) == [code], why
        assert took(began) < AT_ONCE_S


async def test_a_timer_that_fires_early_asks_no_leader_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second request would wait as long again."""
    wait = asyncio.wait

    async def early(*waiting: Any, **given: Any) -> Any:
        if given.get("timeout"):
            given["timeout"] -= 0.005
        return await wait(*waiting, **given)

    monkeypatch.setattr(asyncio, "wait", early)
    cluster = Cluster()
    cluster.brokers[1].codes[1] = OFFSET_NOT_AVAILABLE
    for _ in range(10):
        assert await cluster.fetch(1, wait_ms=20) == [OFFSET_NOT_AVAILABLE]
    assert len(cluster.brokers[1].asked) == 10


async def test_a_leader_that_dies_while_it_waits_is_told_when_the_wait_is_over() -> None:
    cluster = Cluster()
    asyncio.get_running_loop().call_later(0.05, cluster.brokers[1].die)
    began = time.monotonic()
    assert await cluster.fetch(1, wait_ms=WAIT_MS) == [NOT_LEADER]
    assert took(began) > WAIT_MS / 1000 * 0.9


@pytest.mark.parametrize("dead", [True, False])
async def test_records_elsewhere_do_not_wait(dead: bool) -> None:
    """Those that are there, and those that come; of another broker, and of the same."""
    cluster = Cluster()
    first, second = cluster.brokers.values()
    if dead:
        second.dead = True
    else:
        second.codes[1] = NOT_LEADER
    began = time.monotonic()
    asyncio.get_running_loop().call_later(0.05, first.give, 0, b"abc")
    assert await cluster.fetch(1, 0) == [NOT_LEADER, 3]
    assert await cluster.fetch(1, 0) == [NOT_LEADER, 3]
    assert took(began) < AT_ONCE_S


async def test_records_of_the_same_broker_do_not_wait() -> None:
    cluster = Cluster()
    first = cluster.brokers[0]
    first.codes[2] = OFFSET_NOT_AVAILABLE
    began = time.monotonic()
    asyncio.get_running_loop().call_later(0.05, first.give, 0, b"abc")
    assert await cluster.fetch(2, 0) == [OFFSET_NOT_AVAILABLE, 3]
    assert took(began) < AT_ONCE_S
    assert [numbers for numbers, _ in first.asked] == [[2, 0], [0]]


@pytest.mark.parametrize("dead", [True, False])
async def test_a_request_that_follows_ends_the_wait(dead: bool) -> None:
    cluster = Cluster()
    cluster.brokers[1].dead = dead
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    loop.call_later(0.05, cluster.fetches.followed.set_result, None)
    assert await cluster.fetch(1, 0) == [NOT_LEADER if dead else 0, 0]
    assert took(began) < AT_ONCE_S
    # What was asked of a broker goes on, and belongs to the next request.
    cluster.fetches.followed = loop.create_future()
    cluster.brokers[0].give(0, b"abc")
    assert await cluster.fetch(1, 0) == [NOT_LEADER if dead else 0, 3]
    assert len(cluster.brokers[0].asked) == 1


async def test_nothing_anywhere_waits_once() -> None:
    """The other broker waits as long as the client, and is not asked again and again."""
    cluster = Cluster()
    cluster.brokers[1].dead = True
    for _ in range(3):
        began = time.monotonic()
        assert await cluster.fetch(1, 0, wait_ms=WAIT_MS) == [NOT_LEADER, 0]
        assert took(began) > WAIT_MS / 1000 * 0.5
    assert len(cluster.brokers[0].asked) <= 6


async def test_a_new_leader_ends_the_wait() -> None:
    cluster = Cluster(0, -1, 0)
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    loop.call_later(0.05, cluster.lead, 0, -1, 1)  # that is another partition's
    loop.call_later(0.15, cluster.lead, 0, 1, 1)
    assert await cluster.fetch(1) == [NOT_LEADER]
    assert 0.1 < took(began) < AT_ONCE_S
    cluster.brokers[1].give(1, b"abc")
    assert await cluster.fetch(1) == [3]
    assert not cluster.fetching._held


async def test_a_leader_that_is_back_is_asked_within_the_wait() -> None:
    """One broker, started again: the cluster looks as it did, so nothing tells."""
    cluster = Cluster()
    second = cluster.brokers[1]
    second.die()
    began = time.monotonic()

    def back() -> None:
        second.dead = False
        second.give(1, b"abc")

    asyncio.get_running_loop().call_later(0.05, back)
    assert await cluster.fetch(1) == [3]
    assert took(began) < AT_ONCE_S


@pytest.mark.parametrize("code", [1, 3, 29, 74, 100])
async def test_what_a_client_acts_on_is_told_at_once(code: int) -> None:
    """OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, authorization, a fenced epoch, topic ids."""
    cluster = Cluster(0, -1, 0)
    cluster.brokers[0].codes[0] = code
    began = time.monotonic()
    assert await cluster.fetch(1, 0) == [NOT_LEADER, code]
    assert await cluster.fetch(0, topic="nowhere") == [UNKNOWN]
    assert took(began) < AT_ONCE_S
