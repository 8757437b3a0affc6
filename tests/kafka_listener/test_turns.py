"""Answers that wait for their turn: in order, one large one at a time, and never stuck.

And what is large leaves others theirs: between two turns of the loop only so much is done.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from pidlease.engine.partition import Partition
from pidlease.engine.producer_table import ProducerTable
from pidlease.storage.topics.topic_store import Topic
from proxy.kafka import client_connection
from proxy.kafka.admin.delete_topics_api import DeletingApi
from proxy.kafka.client_connection import REQUESTS_IN_SHARED_TURN_MAX, REQUESTS_IN_TURN_MAX
from proxy.kafka.kafka_listener import KafkaListener
from tests.crash.seeds import SOAK
from tests.kafka_listener.admin_requests import (
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_PRODUCERS,
    INCREMENTAL_ALTER_CONFIGS,
    SET,
    TOPIC,
    config_question,
    deletion,
    producer_question,
)
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient, creation, fetched, fetched_of
from tests.kafka_listener.harness import Server, Wanted, serving
from tests.kafka_listener.messages import FETCH, LIST_OFFSETS, METADATA

#: What may be done between two turns, in partitions, names and the like.
_STEPS_MAX: Final = 1000
_MANY: Final = 5000


async def test_large_answers_of_every_kind_on_one_connection(tmp_path: Path) -> None:
    """With far less memory than all of them together: those behind do not keep those before."""
    wanted = Wanted(memory_bytes_max=1 << 20)
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        for _ in range(3):
            await client.produce("t", batch([bytes(100_000)]))
        server.engine.topics["large"] = Topic.new("large", 9000)
        asked = config_question(*[(TOPIC, "t")] * 200, include_documentation=True)
        for _ in range(12):
            client.send(METADATA, 9, topics=None)
            client.send(FETCH, 11, **fetched([("t", 0, 0)]))
            client.send(DESCRIBE_CONFIGS, 4, **asked)
        async with asyncio.timeout(30):
            for _ in range(12):
                assert len((await client.receive()).topics) == 2
                assert fetched_of(await client.receive())[0].code == 0
                assert len((await client.receive()).results) == 200
        assert server.door.budget.used == 0


async def test_changes_on_one_connection_come_one_after_the_other(
    server: Server, client: WireClient
) -> None:
    for number in range(10):
        client.send(CREATE_TOPICS, 5, **creation(f"t-{number}"))
        client.send(DELETE_TOPICS, 5, **deletion(f"t-{number}"))
    for _ in range(10):
        assert (await client.receive()).topics[0].error_code == 0
        assert (await client.receive()).responses[0].error_code == 0
    assert not server.engine.topics


async def test_who_leaves_while_waiting_holds_nothing(server: Server, client: WireClient) -> None:
    await client.create("t")
    async with await server.connect() as leaver:
        for _ in range(40):  # another request would end the poll
            leaver.send(FETCH, 11, **fetched([("t", 0, 0)], wait_ms=60_000))
        await leaver.writer.drain()
        await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        while server.door.budget.used:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    await client.create("next")
    assert set(server.engine.topics) == {"t", "next"}


# ---------------------------------------------------------------------- turns within a request


class Beats:
    """Counts what is done between two turns of the loop."""

    def __init__(self) -> None:
        self.beat = 0
        self.most = 0
        self._now = (0, 0)

    def note(self) -> None:
        beat, count = self._now
        self._now = (self.beat, count + 1 if beat == self.beat else 1)
        self.most = max(self.most, self._now[1])

    def noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            self.note()
            return function(*arguments)

        return noted


@asynccontextmanager
async def _beating() -> AsyncIterator[Beats]:
    beats = Beats()

    async def beat() -> None:
        while True:
            beats.beat += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(beat())
    yield beats
    task.cancel()


def _times_asked(partitions: int) -> dict[str, object]:
    asked = [{"partition_index": n, "timestamp": -1, "current_leader_epoch": -1}
             for n in range(partitions)]  # fmt: skip
    return {"replica_id": -1, "topics": [{"name": "t", "partitions": asked}]}


async def test_many_partitions_are_fetched_in_turns(
    server: Server, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.engine.create_topic(Topic.new("t", _MANY))
    await client.produce("t", batch([b"v"]), partition=7)
    parts = [("t", number, 0) for number in range(_MANY + 1)]
    async with _beating() as beats:
        monkeypatch.setattr(server.engine, "partition", beats.noting(server.engine.partition))
        end = Partition.readable_end
        assert isinstance(end, property)
        assert end.fget is not None
        monkeypatch.setattr(Partition, "readable_end", property(beats.noting(end.fget)))
        monkeypatch.setattr(Partition, "watch", beats.noting(Partition.watch))
        for wait_ms, min_bytes in ((0, 1), (50, 1 << 20)):
            wanted = fetched(parts[:-1], wait_ms=wait_ms, min_bytes=min_bytes)
            found = fetched_of(await client.call(FETCH, 11, **wanted))
            assert [bool(part.data) for part in found] == [n == 7 for n in range(_MANY)]
            assert {part.code for part in found} == {0}
        found = fetched_of(await client.call(FETCH, 4, **fetched(parts, wait_ms=5000)))
        assert (found[-1].code, len(found)) == (3, _MANY + 1)
    assert 0 < beats.most <= _STEPS_MAX


async def test_offsets_of_many_partitions_are_told_in_turns(
    server: Server, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.engine.create_topic(Topic.new("t", _MANY))
    async with _beating() as beats:
        monkeypatch.setattr(server.engine, "partition", beats.noting(server.engine.partition))
        for version in (1, 6):
            body = await client.call(LIST_OFFSETS, version, **_times_asked(_MANY + 1))
            (topic,) = body.topics
            assert [part.partition_index for part in topic.partitions] == list(range(_MANY + 1))
            codes = [int(part.error_code) for part in topic.partitions]
            assert codes == [*[0] * _MANY, 3]
    assert 0 < beats.most <= _STEPS_MAX


@pytest.mark.parametrize("version", [5, 6])
async def test_many_topics_are_looked_up_in_turns(
    server: Server, client: WireClient, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    del server
    async with _beating() as beats:
        monkeypatch.setattr(DeletingApi, "_resolve", beats.noting(DeletingApi._resolve))
        names = [f"absent-{number}" for number in range(_MANY)]
        body = await client.call(DELETE_TOPICS, version, **deletion(*names, names[0]))
        codes = [int(each.error_code) for each in body.responses]
        assert codes == [42, *[3] * (_MANY - 1)]
    assert 0 < beats.most <= _STEPS_MAX


async def test_many_settings_of_one_resource_are_looked_at_in_turns(client: WireClient) -> None:
    await client.create("t")
    configs = [{"name": f"n-{n}", "config_operation": SET, "value": "1"} for n in range(20_000)]
    resource = {"resource_type": TOPIC, "resource_name": "t", "configs": configs}
    for named, code in ((configs, 40), ([*configs, configs[0]], 42)):
        resource["configs"] = named
        async with _beating() as beats:
            client.send(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
            begin = beats.beat
            (result,) = (await client.receive()).responses
            assert int(result.error_code) == code
            # Read, and then looked at, each some hundred at a time.
            assert beats.beat - begin > 2 * 20_000 // _STEPS_MAX


async def test_producers_of_many_partitions_are_told_in_turns(
    server: Server, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create("t", 60)
    pid = await client.lease()
    await client.produce("t", batch([b"v"], pid, 0, 0))
    partition = server.engine.partition("t", 0)
    assert partition is not None
    state = partition.producers[pid]
    for each in server.engine.partitions():
        each.producers.update({pid + number: state for number in range(150)})
    async with _beating() as beats:
        told = beats.noting(lambda found: found)
        described = ProducerTable.described_producers
        monkeypatch.setattr(
            ProducerTable, "described_producers", lambda self: map(told, described(self))
        )
        asked = producer_question({"t": range(60)})
        body = await client.call(DESCRIBE_PRODUCERS, 0, **asked)
        assert [len(part.active_producers) for part in body.topics[0].partitions] == [150] * 60
    assert 0 < beats.most <= _STEPS_MAX


async def test_a_topic_that_is_deleted_while_many_of_its_partitions_are_asked_for(
    server: Server, client: WireClient
) -> None:
    """Whatever the step at which it goes: each partition is told, and nobody waits for it."""
    parts = [("t", number, 0) for number in range(1500)]
    async with await server.connect() as other:
        for steps in range(0, 40, 3 if SOAK else 10):
            await server.engine.create_topic(Topic.new("t", 1500))
            await other.produce("t", batch([b"v"]), partition=1400)
            client.send(FETCH, 11, **fetched(parts, wait_ms=20_000, min_bytes=1 << 20))
            other.send(LIST_OFFSETS, 6, **_times_asked(1500))  # behind the poll it would end it
            await client.writer.drain()
            await other.writer.drain()
            for _ in range(steps):
                await asyncio.sleep(0)
            await server.engine.delete_topic("t")
            found = fetched_of(await client.receive())
            assert len(found) == 1500
            assert 3 in {part.code for part in found} <= {0, 3}
            (topic,) = (await other.receive()).topics
            assert {int(part.error_code) for part in topic.partitions} <= {0, 3}
    assert server.door.budget.used == 0


async def test_who_waits_for_many_partitions_is_woken_and_then_forgotten(
    server: Server, client: WireClient
) -> None:
    await server.engine.create_topic(Topic.new("t", 3000))
    partitions = server.engine.partitions()
    parts = [("t", number, 0) for number in range(3000)]
    leaver = await server.connect()
    for each in (leaver, client):
        each.send(FETCH, 11, **fetched(parts, wait_ms=20_000))
    async with asyncio.timeout(20):
        while not all(len(each._watchers) == 2 for each in partitions):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await leaver.__aexit__()
    async with await server.connect() as other:
        await other.produce("t", batch([b"v"]), partition=2999)
    found = fetched_of(await client.receive())
    assert [bool(part.data) for part in found] == [*[False] * 2999, True]
    async with asyncio.timeout(20):
        while any(each._watchers for each in partitions):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    assert server.door.budget.used == 0


async def test_records_that_are_not_enough_are_not_kept_while_a_poll_waits(
    server: Server, client: WireClient
) -> None:
    """They are read again when there are more, or when the time is up: then they are told."""
    await client.create("t")
    await client.produce("t", batch([bytes(1000)]))
    values = fetched([("t", 0, 0)], min_bytes=1 << 20)
    values["max_wait"] = timedelta(milliseconds=200)
    client.send(FETCH, 11, **values)
    await client.writer.drain()
    await asyncio.sleep(0.05)
    (found,) = fetched_of(await client.receive())
    assert len(found.data) > 1000
    assert server.door.budget.used == 0


async def _most_in_a_turn(server: Server, monkeypatch: pytest.MonkeyPatch) -> int:
    """Send a hundred requests at once, and return how many were handled in one turn at most."""
    many, turn = 100, 0
    handled: Counter[int] = Counter()
    handle, loop = KafkaListener.handle, asyncio.get_running_loop()

    def counted(*arguments: Any) -> None:
        handled[turn] += 1
        handle(*arguments)

    def ticking() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(ticking)

    monkeypatch.setattr(KafkaListener, "handle", counted)
    async with await server.connect() as client:
        ticking()
        for _ in range(many):
            client.send(METADATA, 9, topics=[])
        async with asyncio.timeout(30):
            for _ in range(many):
                await client.receive()
    assert sum(handled.values()) >= many
    return max(handled.values())


async def test_a_connection_leaves_others_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends a hundred requests at once has them handled over several turns of the loop."""
    async with serving(tmp_path) as server:
        # The tick may come before or after the requests of its turn.
        most = await _most_in_a_turn(server, monkeypatch)
        assert REQUESTS_IN_SHARED_TURN_MAX < most <= 2 * REQUESTS_IN_TURN_MAX


async def test_turns_are_shorter_while_others_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood holds up other connections by fewer requests at once."""
    monkeypatch.setattr(client_connection, "SHARED_SECONDS", math.inf)
    async with serving(tmp_path) as server, await server.connect() as other:
        await other.call(METADATA, 9, topics=[])
        assert await _most_in_a_turn(server, monkeypatch) <= 2 * REQUESTS_IN_SHARED_TURN_MAX
