"""Caches the encoded topics of Metadata responses, for each layout of a topic's bytes.

Every client requests Metadata when it starts, some request all topics every few minutes, and all
clients do so at once after a restart. So a topic is encoded once for each layout, and the array of
all topics once for each version of the topics; every client gets the same bytes.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from pidlease.kafka.codec.metadata import (
    FLEXIBLE_FROM,
    MetadataPartitions,
    write_led_partitions,
    write_topic,
)
from pidlease.kafka.codec.primitives import write_array
from pidlease.storage.topics.topic_store import Topic

#: The bound of the cache; beyond it, the least recently used layout is dropped first.
CACHE_BYTES_MAX: Final = 32 << 20
#: The overhead of an entry.
_ENTRY_BYTES: Final = 200
#: Topics that are encoded before other tasks run.
_TOPICS_AT_ONCE: Final = 500
#: Entries of deleted topics that may stay, beside as many as there are topics.
_STALE_MAX: Final = 100


class TopicsView(Protocol):
    """The engine's topics."""

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Topics by name. A changed topic is another object."""

    @property
    def awaited(self) -> Mapping[str, Topic]:
        """Topics that exist but cannot be read yet: they are listed without leaders."""

    @property
    def topics_version(self) -> int:
        """Increases with every change of topics or partitions, awaited ones included."""


class _AllTopics(NamedTuple):
    """The encoded array of all topics, and the version of the topics in it."""

    topics_version: int
    data: bytes


class _Layout:
    """The cached bytes of one layout."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[Topic, bytes]] = {}
        self.all_topics: _AllTopics | None = None
        self.topics_size = 0

    @property
    def size(self) -> int:
        """In bytes."""
        return self.topics_size + (len(self.all_topics.data) if self.all_topics else 0)


class MetadataCache:
    """Encodes topics for Metadata responses, and keeps their bytes.

    Parameters:
        bytes_max: the bound of the cache.
        leader_epoch: of all partitions; -1: unknown.
        leaders: returns the leaders of a topic's partitions; None: this server leads all.
    """

    def __init__(
        self,
        view: TopicsView,
        bytes_max: int = CACHE_BYTES_MAX,
        leader_epoch: int = 0,
        leaders: Callable[[str, int], Sequence[int] | None] | None = None,
    ) -> None:
        self._view = view
        self._bytes_max = bytes_max
        self._layouts: OrderedDict[int, _Layout] = OrderedDict()
        self._leader_epoch = leader_epoch
        self._leaders = leaders
        self._rows = MetadataPartitions(leader_epoch)
        self._rows_without_leader = MetadataPartitions(leader_epoch, led=False)
        self._building = asyncio.Lock()
        #: How often a topic, and the array of all topics, was encoded.
        self.topics_encoded = 0
        self.arrays_encoded = 0

    @property
    def size(self) -> int:
        """The cached bytes."""
        return sum(layout.size for layout in self._layouts.values())

    def topic(self, number: int, topic: Topic) -> bytes:
        """Return a topic's encoding.

        Parameters:
            number: the layout, from `topic_layout`.
            topic: one of the engine's present topics.
        """
        if topic.name in self._view.awaited:
            return self._awaited(number, topic)
        data = self._topic(self._layout(number), number, topic)
        self._keep_small()
        return data

    async def everything(self, number: int) -> bytes:
        """Return the encoded array of all topics, as of the call or later.

        Parameters:
            number: the layout.
        """
        wanted = self._view.topics_version
        kept = self._layout(number).all_topics
        if kept is not None and kept.topics_version == wanted:
            return kept.data
        async with self._building:
            layout = self._layout(number)
            # Another request may have built it meanwhile, from these or later topics.
            kept = layout.all_topics
            if kept is None or kept.topics_version < wanted:
                kept = await self._build(layout, number)
                layout.all_topics = kept
                self._keep_small()
        return kept.data

    async def _build(self, layout: _Layout, number: int) -> _AllTopics:
        version = self._view.topics_version
        topics, awaited = list(self._view.topics.values()), list(self._view.awaited.values())
        count = len(topics) + len(awaited)
        parts = [write_array(count, flexible=number >= FLEXIBLE_FROM)]
        parts += [self._awaited(number, topic) for topic in awaited]
        for first in range(0, len(topics), _TOPICS_AT_ONCE):
            some = topics[first : first + _TOPICS_AT_ONCE]
            parts += [self._topic(layout, number, topic) for topic in some]
            await asyncio.sleep(0)
        self.arrays_encoded += 1
        return _AllTopics(version, b"".join(parts))

    def _topic(self, layout: _Layout, number: int, topic: Topic) -> bytes:
        name = topic.name
        kept = layout.topics.get(name)
        if kept is not None:
            if kept[0] is topic:
                return kept[1]
            layout.topics_size -= len(kept[1]) + _ENTRY_BYTES
        leaders = self._leaders(name, topic.partitions) if self._leaders is not None else None
        if leaders is None:
            rows = self._rows.of(number, topic.partitions)
        else:
            rows = write_led_partitions(number, leaders, self._leader_epoch)
        data = write_topic(number, name, topic.topic_id, rows, topic.partitions)
        layout.topics[name] = topic, data
        layout.topics_size += len(data) + _ENTRY_BYTES
        self.topics_encoded += 1
        return data

    def _awaited(self, number: int, topic: Topic) -> bytes:
        """Encode a topic that cannot be read yet. It soon will be, so it is not cached."""
        rows = self._rows_without_leader.of(number, topic.partitions)
        return write_topic(number, topic.name, topic.topic_id, rows, topic.partitions)

    def clear(self) -> None:
        """Drop everything, because leaders have changed."""
        self._layouts.clear()

    # ------------------------------------------------------------------ bounds

    def _layout(self, number: int) -> _Layout:
        layout = self._layouts.get(number)
        if layout is None:
            layout = self._layouts[number] = _Layout()
        self._layouts.move_to_end(number)
        return layout

    def _keep_small(self) -> None:
        """Drop deleted topics, and the least recently used layouts if the cache is too large."""
        if not self._layouts:
            return  # another request has dropped all layouts while this one encoded
        newest = next(reversed(self._layouts.values()))
        if len(newest.topics) > 2 * len(self._view.topics) + _STALE_MAX:
            self._sweep(newest)
        while self.size > self._bytes_max and len(self._layouts) > 1:
            self._layouts.popitem(last=False)
        if self.size > self._bytes_max:
            self._layouts.clear()

    def _sweep(self, layout: _Layout) -> None:
        now = self._view.topics
        layout.topics = {name: kept for name, kept in layout.topics.items()
                         if now.get(name) is kept[0]}  # fmt: skip
        layout.topics_size = sum(len(data) + _ENTRY_BYTES for _, data in layout.topics.values())


class TopicIds:
    """Finds topics by their ids."""

    def __init__(self, view: TopicsView) -> None:
        self._view = view
        self._version = -1
        self._names: dict[str, str] = {}

    def find(self, topic_id: str) -> Topic | None:
        """Return the topic with this id, in hex."""
        if self._version != self._view.topics_version:
            self._version = self._view.topics_version
            known = {**self._view.awaited, **self._view.topics}
            self._names = {topic.topic_id: name for name, topic in known.items()}
        name = self._names.get(topic_id, "")
        return self._view.topics.get(name) or self._view.awaited.get(name)
