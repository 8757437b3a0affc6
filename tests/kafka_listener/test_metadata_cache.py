"""Metadata in encoded form: made once, never stale, bounded, and in steps."""

import asyncio
import random
import uuid
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from pidlease.kafka.codec.metadata import (
    NO_LISTENER,
    NODE_ID,
    BrokerAddress,
    topic_layout,
    write_head,
    write_tail,
)
from pidlease.kafka.codec.primitives import write_array
from pidlease.storage.topics.topic_store import Topic
from proxy.kafka.metadata_cache import MetadataCache, TopicIds
from tests.kafka_listener.messages import METADATA

_write_head = partial(
    write_head,
    cluster_id="id",
    brokers=[BrokerAddress(NODE_ID, "127.0.0.1", 9092)],
    controller=NODE_ID,
)


@dataclass
class View:
    """Topics without an engine."""

    topics: dict[str, Topic] = field(default_factory=dict)
    awaited: dict[str, Topic] = field(default_factory=dict)
    topics_version: int = 0

    def put(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self.topics_version += 1

    def make(self, name: str, partitions: int = 1) -> Topic:
        self.put(Topic.new(name, partitions))
        return self.topics[name]

    def remove(self, name: str) -> None:
        del self.topics[name]
        self.topics_version += 1


def _decoded(version: int, array: bytes) -> dict[str, tuple[str | None, int]]:
    """Name to id and partitions, as kio reads the whole answer."""
    return {
        topic.name: (_hex(getattr(topic, "topic_id", None)), len(topic.partitions))
        for topic in _read(version, array).topics
    }


def _read(version: int, array: bytes) -> Any:
    kind: Any = load_response_schema(METADATA, version)
    frame = _write_head(version, 1) + array + write_tail(version)
    header = 5 if kind.__flexible__ else 4
    body, size = entity_reader(kind)(frame, header)
    assert header + size == len(frame)
    return body


def _hex(topic_id: uuid.UUID | None) -> str | None:
    return None if topic_id is None else topic_id.hex


def _wanted(view: View, *, ids: bool = True) -> dict[str, tuple[str | None, int]]:
    return {name: (each.topic_id if ids else None, each.partitions)
            for name, each in view.topics.items()}  # fmt: skip


async def test_a_topic_is_encoded_once_for_all_versions_that_write_it_alike() -> None:
    view = View()
    cache = MetadataCache(view)
    topic = view.make("t", 3)
    first = cache.topic(topic_layout(10), topic)
    assert all(cache.topic(topic_layout(version), topic) is first for version in (10, 11, 12, 13))
    assert cache.topics_encoded == 1
    assert cache.topic(topic_layout(1), topic) == cache.topic(topic_layout(4), topic)
    assert cache.topics_encoded == 2


async def test_all_topics_are_the_same_bytes_for_everybody_until_one_changes() -> None:
    view = View()
    cache = MetadataCache(view)
    for number in range(1200):
        view.make(f"t-{number}")
    found = await asyncio.gather(*(cache.everything(9) for _ in range(20)))
    assert all(each is found[0] for each in found)
    assert (cache.arrays_encoded, cache.topics_encoded) == (1, 1200)

    view.put(replace(view.topics["t-7"], partitions=5))
    changed = await cache.everything(9)
    assert (cache.arrays_encoded, cache.topics_encoded) == (2, 1201), "one topic, not all of them"
    assert _decoded(9, changed) == _wanted(view, ids=False)


async def test_a_topic_of_the_same_name_is_another_topic() -> None:
    view = View()
    cache = MetadataCache(view)
    old = view.make("t", 2)
    assert _decoded(12, await cache.everything(10)) == {"t": (old.topic_id, 2)}
    view.remove("t")
    new = view.make("t", 2)
    assert _decoded(12, await cache.everything(10)) == {"t": (new.topic_id, 2)}
    assert cache.topic(10, new) != cache.topic(10, old)


async def test_what_changes_while_it_is_made_is_not_kept() -> None:
    view = View()
    cache = MetadataCache(view)
    for number in range(3000):
        view.make(f"t-{number}")
    making = asyncio.create_task(cache.everything(10))
    for _ in range(2):
        await asyncio.sleep(0)
    assert not making.done()
    view.make("new")
    view.remove("t-2999")
    assert "new" not in _decoded(10, await making), "it tells of the state that was asked for"
    assert _decoded(10, await cache.everything(10)) == _wanted(view)


async def test_random_changes_are_always_told(capsys: pytest.CaptureFixture[str]) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    choice = random.Random(seed)
    view = View()
    cache, ids = MetadataCache(view, 40_000), TopicIds(view)
    for _ in range(600):
        name = f"t-{choice.randrange(40)}"
        what = choice.choice(("make", "remove", "nothing"))
        if what == "make":
            view.make(name, choice.randrange(1, 6))
        elif what == "remove" and name in view.topics:
            view.remove(name)
        version = choice.randrange(14)
        array = await cache.everything(topic_layout(version))
        assert _decoded(version, array) == _wanted(view, ids=version >= 10)
        assert cache.size <= 40_000
        for topic in view.topics.values():
            assert ids.find(topic.topic_id) is topic
        assert ids.find("0" * 32) is None


async def test_it_is_bounded_and_what_is_used_least_goes_first() -> None:
    view = View()
    for number in range(100):
        view.make(f"t-{number}", 10)
    cache = MetadataCache(view, 190_000)  # two ways to write all topics, and no third
    for layout in (10, 1, 10, 5):
        await cache.everything(layout)
        assert cache.size <= 190_000
    encoded = cache.topics_encoded
    await cache.everything(10)
    await cache.everything(5)
    assert cache.topics_encoded == encoded, "what was used last is still there"
    await cache.everything(1)
    assert cache.topics_encoded == encoded + 100


async def test_a_cache_that_is_too_small_for_one_way_still_answers() -> None:
    view = View()
    for number in range(50):
        view.make(f"t-{number}", 10)
    cache = MetadataCache(view, 1000)
    for _ in range(3):
        assert _decoded(9, await cache.everything(9)) == _wanted(view, ids=False)
        assert cache.size <= 1000


async def test_topics_that_are_gone_are_let_go() -> None:
    view = View()
    cache = MetadataCache(view)
    sizes = []
    for number in range(1000):
        topic = view.make(f"t-{number}", 100)
        cache.topic(9, topic)
        view.remove(topic.name)
        sizes.append(cache.size)
    assert max(sizes) < 110 * 4000


@pytest.mark.parametrize(("topics", "partitions"), [(1, 10_000), (10_000, 1), (1000, 10)])
async def test_ten_thousand_partitions_are_told_in_steps(topics: int, partitions: int) -> None:
    """Others get their turn in between, as often as there are topics to put together."""
    view = View()
    for number in range(topics):
        view.make(f"t-{number}", partitions)
    cache = MetadataCache(view)
    turns = 0
    done = False

    async def other() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    watching = asyncio.create_task(other())
    await asyncio.sleep(0)
    begin = turns
    await cache.everything(9)
    assert turns - begin >= topics // 500
    done = True
    await watching


async def test_a_topic_that_is_awaited_is_told_without_leaders_until_it_is_known() -> None:
    view = View()
    view.make("known")
    topic = Topic.new("t", 2)
    view.awaited["t"] = topic
    cache, ids = MetadataCache(view), TopicIds(view)
    led, awaited = (0, NODE_ID), (5, -1)
    for version in range(14):
        layout = topic_layout(version)
        told = _leaders(version, await cache.everything(layout))
        assert told == {"known": [led], "t": [awaited, awaited]}
        alone = write_array(1, flexible=layout >= 9) + cache.topic(layout, topic)
        assert _leaders(version, alone) == {"t": [awaited, awaited]}
    assert ids.find(topic.topic_id) is topic
    del view.awaited["t"]
    view.put(topic)
    assert _leaders(12, await cache.everything(10)) == {"known": [led], "t": [led, led]}
    assert ids.find(topic.topic_id) is topic


def _leaders(version: int, array: bytes) -> dict[str, list[tuple[int, int]]]:
    """Name to each partition's code and leader."""
    return {
        topic.name: [(each.error_code.value, int(each.leader_id)) for each in topic.partitions]
        for topic in _read(version, array).topics
    }


async def test_who_waits_for_a_build_that_is_given_up_makes_it_himself() -> None:
    view = View()
    for number in range(2000):
        view.make(f"t-{number}")
    cache = MetadataCache(view)
    first = asyncio.create_task(cache.everything(9))
    second = asyncio.create_task(cache.everything(9))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    assert len(_decoded(9, await second)) == 2000
    with pytest.raises(asyncio.CancelledError):
        await first


@pytest.mark.parametrize("turn", range(7))
async def test_a_topic_that_clears_what_is_being_built_does_no_harm(turn: int) -> None:
    """All that is kept is let go where one way to write it is too much: also meanwhile."""
    view = View()
    for number in range(2000):
        view.make(f"t-{number}")
    cache = MetadataCache(view, 100_000)
    building = asyncio.create_task(cache.everything(9))
    for _ in range(turn):
        await asyncio.sleep(0)
    cache.topic(9, view.topics["t-1"])
    assert len(_decoded(9, await building)) == 2000
    assert cache.size <= 100_000


@pytest.mark.parametrize("version", range(14))
def test_a_leader_without_the_listener(version: int) -> None:
    """As in Kafka: an error of its own from version 6 on; clients wait for a leader before."""
    view = View()
    topic = view.make("t", 3)
    cache = MetadataCache(view, leader_epoch=-1, leaders=lambda *_: [1, NO_LISTENER, -1])
    data = cache.topic(topic_layout(version), topic)
    (found,) = _read(version, write_array(1, flexible=version >= 9) + data).topics
    codes = [int(each.error_code) for each in found.partitions]
    not_found = 72 if version >= 6 else 5
    assert codes == [0, not_found, 5]
    assert [each.leader_id for each in found.partitions] == [1, -1, -1]
