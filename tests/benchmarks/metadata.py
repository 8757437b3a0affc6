"""How long Metadata holds up the event loop, for a cluster of 10,000 partitions.

No engine: the cache with topics in a dictionary. What is measured is the longest single step, from
one turn of the event loop to the next, for the answer that names all topics; in processor time, so
that it does not count what else the machine does.
"""

import asyncio
import gc
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from pidlease.kafka.codec.metadata import BrokerAddress, topic_layout, write_head, write_tail
from pidlease.storage.topics.topic_store import Topic
from proxy.kafka.metadata_cache import MetadataCache

#: How the partitions are spread: topics, and partitions of each.
SHAPES: Final = ((1, 10_000), (1000, 10), (10_000, 1))
#: What current clients ask by.
_VERSION: Final = 12
_ROUNDS: Final = 30
_write_head: Final = partial(
    write_head,
    cluster_id="bench-cluster",
    brokers=[BrokerAddress(1, "127.0.0.1", 9092)],
    controller=1,
)


@dataclass
class ClusterView:
    """Topics without an engine (see `metadata_cache.TopicsView`)."""

    topics: dict[str, Topic] = field(default_factory=dict)
    awaited: dict[str, Topic] = field(default_factory=dict)
    topics_version: int = 0

    def change_one(self) -> None:
        """Let one topic be another object, as a change of its settings does."""
        name = next(iter(self.topics))
        self.topics[name] = replace(self.topics[name])
        self.topics_version += 1


class _Steps:
    """Drives a coroutine by hand, and times each of its steps."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    def run(self, work: Coroutine[Any, Any, bytes]) -> bytes:
        """Run it to its end; it waits for nothing but its turn."""
        while True:
            begin = time.thread_time()
            try:
                work.send(None)
            except StopIteration as end:
                self._note(time.thread_time() - begin)
                data: bytes = end.value
                return data
            self._note(time.thread_time() - begin)

    def _note(self, seconds: float) -> None:
        self.longest_s = max(self.longest_s, seconds)


async def _answer(cache: MetadataCache) -> bytes:
    topics = await cache.everything(topic_layout(_VERSION))
    _write_head(_VERSION, 1)
    write_tail(_VERSION)
    return topics


def _measure_shape(topics: int, partitions: int) -> dict[str, float]:
    named = [Topic.new(f"topic-{number:05}", partitions) for number in range(topics)]
    view = ClusterView({topic.name: topic for topic in named})
    cache = MetadataCache(view)
    cold, hit, miss = _Steps(), _Steps(), _Steps()
    cold.run(_answer(cache))
    for _ in range(_ROUNDS):
        view.change_one()
        miss.run(_answer(cache))
        hit.run(_answer(cache))
    return {
        "cold_longest_step_ms": cold.longest_s * 1000,
        "miss_longest_step_ms": miss.longest_s * 1000,
        "hit_longest_step_ms": hit.longest_s * 1000,
    }


def measure() -> dict[str, dict[str, float]]:
    """The longest step of an answer that names all topics, for each shape of a cluster.

    Returns:
        For each shape, as `topics x partitions`: the longest step in ms when all is made anew
        (cold), after one topic changed (miss), and when nothing changed (hit).
    """

    async def inside() -> dict[str, dict[str, float]]:
        gc.collect()
        return {f"{topics:,} x {each:,}": _measure_shape(topics, each) for topics, each in SHAPES}

    return asyncio.run(inside())


if __name__ == "__main__":
    for shape, figures in measure().items():
        told = ", ".join(f"{name} {figure:.3f}" for name, figure in figures.items())
        print(f"{shape}: {told}")
