"""Topics that are not known here: Kafka is asked before it is said that there are none."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client import all_topics_cluster as module
from pidlease.kafka.client.all_topics_cluster import AllTopicsCluster
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.cluster import UpstreamTopic, View
from pidlease.kafka.client.settings import Address, UpstreamConfig
from pidlease.kafka.errors import UpstreamAwayError

#: LEADER_NOT_AVAILABLE.
_BEING_MADE = 5
#: Two brokers; the second one may lag behind, or be ahead.
FIRST, SECOND = ("127.0.0.1", 1), ("127.0.0.1", 2)


def topic(name: str, partitions: int = 1) -> UpstreamTopic:
    return UpstreamTopic(name, f"id of {name}", internal=False, leaders=(0,) * partitions)


class ScriptedCluster(AllTopicsCluster):
    """Its brokers answer when the test lets them."""

    def __init__(self, *brokers: Address) -> None:
        super().__init__(UpstreamConfig(brokers))
        self.view = View("cluster", 0, dict(enumerate(brokers)), {})
        self.there: dict[Address, dict[str, UpstreamTopic]] = {FIRST: {}, SECOND: {}}
        self.being_made: set[str] = set()
        self.asked: list[tuple[Address, set[str]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.away = False
        self._under_way = 0

    async def any_connection(self) -> BrokerConnection:
        if self.away:
            raise UpstreamAwayError("nobody answers")
        return await self._connection(FIRST)

    async def _connection(self, address: Address) -> BrokerConnection:
        return cast("BrokerConnection", SimpleNamespace(address=address))

    async def _view_of(
        self, connection: BrokerConnection, topics: Collection[str] | None, *, create: bool = False
    ) -> View:
        assert topics is not None
        assert not self._under_way, "one question at a time"
        self._under_way += 1
        self.asked.append((connection.address, set(topics)))
        known = dict(self.there[connection.address])
        await self.gate.wait()
        self._under_way -= 1
        found = {name: known[name] for name in topics if name in known}
        return View("cluster", 0, {}, found, dict.fromkeys(self.being_made, _BEING_MADE))

    async def _with_cleanup(self, found: View, connection: BrokerConnection) -> View:
        return found

    def make(self, *topics: UpstreamTopic, brokers: Collection[Address] = (FIRST, SECOND)) -> None:
        for broker in brokers:
            self.there[broker].update({each.name: each for each in topics})


def places(*names: str, number: int = 0) -> list[TopicPartition]:
    return [TopicPartition(name, number) for name in names]


@asynccontextmanager
async def scripted(*brokers: Address) -> AsyncIterator[ScriptedCluster]:
    cluster = ScriptedCluster(*(brokers or (FIRST, SECOND)))
    try:
        yield cluster
    finally:
        await cluster.close()


async def until_asked(cluster: ScriptedCluster, count: int) -> None:
    async with asyncio.timeout(30):
        while len(cluster.asked) < count:  # noqa: ASYNC110 - questions rest a moment in between
            await asyncio.sleep(0.001)


async def test_a_topic_that_was_just_made_is_seen_at_once() -> None:
    async with scripted() as cluster:
        told: list[set[str]] = []
        cluster.on_change.append(lambda _, now: told.append(set(now.topics)))
        cluster.make(topic("new", 2))
        wanted = [*places("new", "none"), *places("new", number=1), *places("new", number=2)]
        assert await cluster.missing(wanted) == {*places("none"), *places("new", number=2)}
        assert cluster.view.topics == {"new": topic("new", 2)}
        assert cluster.view.leader("new", 1) == 0
        assert told == [{"new"}]


async def test_a_topic_that_has_grown_is_seen_so() -> None:
    async with scripted() as cluster:
        cluster.view = View("cluster", 0, {0: FIRST}, {"t": topic("t"), "other": topic("other")})
        cluster.make(topic("t", 3))
        assert await cluster.missing(places("t", number=2)) == set()
        assert cluster.view.topics == {"t": topic("t", 3), "other": topic("other")}
        assert await cluster.missing(places("t", number=3)) == set(places("t", number=3))


async def test_one_question_serves_all_who_asked_before_it_began() -> None:
    async with scripted(FIRST) as cluster:
        cluster.gate.clear()
        first = asyncio.create_task(cluster.missing(places("a")))
        await until_asked(cluster, 1)
        late = [asyncio.create_task(cluster.missing(places("a", f"b{n}"))) for n in range(50)]
        await asyncio.sleep(0)
        cluster.make(topic("a"))  # behind the first question, and before the others' ends
        cluster.gate.set()
        assert await first == set(places("a"))
        assert await asyncio.gather(*late) == [set(places(f"b{n}")) for n in range(50)]
        named = {"a", *(f"b{n}" for n in range(50))}
        assert cluster.asked == [(FIRST, {"a"}), (FIRST, named)]


async def test_that_there_is_no_topic_is_not_said_again_without_asking() -> None:
    async with scripted() as cluster:
        assert await cluster.missing(places("t")) == set(places("t"))
        cluster.make(topic("t"))
        assert await cluster.missing(places("t")) == set()


async def test_questions_of_a_client_in_a_loop_rest_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_QUESTION_PAUSE_SECONDS", 3600)
    monkeypatch.setattr(module, "_QUESTION_SECONDS", 0.05)
    async with scripted() as cluster:
        assert await cluster.missing(places("t")) == set(places("t"))
        for _ in range(3):
            assert await cluster.missing(places("t")) == set(), "not asked yet: not certain"
        assert len(cluster.asked) == 2, "one question, to two brokers"


async def test_a_broker_that_lags_behind_is_not_believed() -> None:
    async with scripted() as cluster:
        cluster.make(topic("t"), brokers=[SECOND])
        assert await cluster.missing(places("t", "none")) == set(places("none"))
        assert "t" in cluster.view.topics


async def test_what_kafka_does_not_tell_is_not_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted() as cluster:
        cluster.away = True
        assert await cluster.missing(places("t")) == set()
        cluster.away = False
        cluster.being_made.add("t")
        assert await cluster.missing(places("t", "none")) == set(places("none"))
        monkeypatch.setattr(module, "_QUESTION_SECONDS", 0.05)
        cluster.gate.clear()
        assert await cluster.missing(places("none")) == set()


async def test_a_name_that_no_topic_can_have_is_not_asked_for() -> None:
    async with scripted() as cluster:
        names = ["", "a b", "x" * 250, ".."]
        assert await cluster.missing(places(*names)) == set(places(*names))
        assert not cluster.asked


async def test_many_topics_are_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_QUESTION_TOPICS_MAX", 3)
    async with scripted() as cluster:
        wanted = places(*(f"t{n}" for n in range(8)))
        assert await cluster.missing(wanted) == set(wanted)
        assert [len(names) for _, names in cluster.asked] == [3, 3, 3, 3, 2, 2]


async def test_more_topics_than_a_question_may_have_are_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_QUESTION_SIZE_MAX", 3)
    async with scripted(FIRST) as cluster:
        few = asyncio.create_task(cluster.missing(places("a", "b")))
        many = asyncio.create_task(cluster.missing(places("c", "d")))
        assert await few == set(places("a", "b"))
        assert await many == set(), "not asked: not certain"
        assert cluster.asked == [(FIRST, {"a", "b"})]


async def test_a_question_and_a_look_do_not_overtake_one_another() -> None:
    """An answer of before must not hide a topic that a later question has shown."""
    async with scripted() as cluster:
        cluster.gate.clear()
        cluster.make(topic("t"))
        question = asyncio.create_task(cluster.missing(places("t")))
        await until_asked(cluster, 1)
        async with asyncio.timeout(30):
            looking = asyncio.create_task(cluster._viewing.acquire())
            await asyncio.sleep(0.01)
            assert not looking.done(), "a look waits for the question"
            cluster.gate.set()
            await question
            await looking
        cluster._viewing.release()
