"""What Metadata says of the topics, kept in encoded form.

Every client asks for it when it starts, some ask for all topics every few minutes, and all of them
at once after a restart. A topic is encoded once for each way to write it, and the answer for all
topics once for each state of the cluster; every client gets the same bytes.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from pidlease.kafka.codec.metadata import FLEXIBLE_FROM, PartitionRows, write_topic
from pidlease.kafka.codec.primitives import write_array
from pidlease.storage.topics.topic_store import Topic

#: What all of it may take together, in bytes; what is used least goes first.
CACHE_BYTES_MAX: Final = 32 << 20
#: What an entry takes beyond its bytes.
_ENTRY_BYTES: Final = 200
#: Topics that are put together before others get their turn.
_TOPICS_AT_ONCE: Final = 500
#: So many entries may be of topics that are gone.
_STALE_MAX: Final = 100


class TopicsView(Protocol):
    """What is asked of the engine."""

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The topics there are, by name. A topic that changes is another object."""

    @property
    def awaited(self) -> Mapping[str, Topic]:
        """Topics that there are and that cannot be read yet: none of their partitions is led."""

    @property
    def topics_version(self) -> int:
        """Goes up with every change of topics or partitions, also of those that are awaited."""


class _Everything(NamedTuple):
    """All topics as one array, and the version of the cluster that it describes."""

    topics_version: int
    data: bytes


class _Layout:
    """What is kept for one way to write a topic."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[Topic, bytes]] = {}
        self.everything: _Everything | None = None
        self.topics_size = 0

    @property
    def size(self) -> int:
        """In bytes."""
        return self.topics_size + (len(self.everything.data) if self.everything else 0)


class MetadataCache:
    """Keeps the rows of Metadata responses in encoded form.

    Parameters:
        view: where the topics are.
        bytes_max: what all that is kept may take.
        leader_epoch: of all partitions; -1: not said.
    """

    def __init__(
        self, view: TopicsView, bytes_max: int = CACHE_BYTES_MAX, leader_epoch: int = 0
    ) -> None:
        self._view = view
        self._bytes_max = bytes_max
        self._layouts: OrderedDict[int, _Layout] = OrderedDict()
        self._rows = PartitionRows(leader_epoch)
        self._rows_without_leader = PartitionRows(leader_epoch, led=False)
        self._building = asyncio.Lock()
        #: How often a topic, and how often the array of all of them, was encoded.
        self.topics_encoded = 0
        self.arrays_encoded = 0

    @property
    def size(self) -> int:
        """What is kept, in bytes."""
        return sum(layout.size for layout in self._layouts.values())

    def topic(self, number: int, topic: Topic) -> bytes:
        """A topic, encoded.

        Parameters:
            number: the layout (see `metadata_wire.topic_layout`).
            topic: as it is now, known or awaited.
        """
        if topic.name in self._view.awaited:
            return self._awaited(number, topic)
        data = self._topic(self._layout(number), number, topic)
        self._keep_small()
        return data

    async def everything(self, number: int) -> bytes:
        """The array of all topics, encoded, as of now or later.

        Parameters:
            number: the layout.
        """
        wanted = self._view.topics_version
        kept = self._layout(number).everything
        if kept is not None and kept.topics_version == wanted:
            return kept.data
        async with self._building:
            layout = self._layout(number)
            # Another request may have made it meanwhile; of a later state is as good.
            kept = layout.everything
            if kept is None or kept.topics_version < wanted:
                kept = await self._build(layout, number)
                layout.everything = kept
                self._keep_small()
        return kept.data

    async def _build(self, layout: _Layout, number: int) -> _Everything:
        version = self._view.topics_version
        topics, awaited = list(self._view.topics.values()), list(self._view.awaited.values())
        count = len(topics) + len(awaited)
        parts = [write_array(count, flexible=number >= FLEXIBLE_FROM)]
        parts += [self._awaited(number, topic) for topic in awaited]
        for first in range(0, len(topics), _TOPICS_AT_ONCE):
            some = topics[first : first + _TOPICS_AT_ONCE]
            parts += [self._topic(layout, number, topic) for topic in some]
            await asyncio.sleep(0)  # others want to be served, too
        self.arrays_encoded += 1
        return _Everything(version, b"".join(parts))

    def _topic(self, layout: _Layout, number: int, topic: Topic) -> bytes:
        name = topic.name
        kept = layout.topics.get(name)
        if kept is not None:
            if kept[0] is topic:
                return kept[1]
            layout.topics_size -= len(kept[1]) + _ENTRY_BYTES
        rows = self._rows.of(number, topic.partitions)
        data = write_topic(number, name, topic.topic_id, rows, topic.partitions)
        layout.topics[name] = topic, data
        layout.topics_size += len(data) + _ENTRY_BYTES
        self.topics_encoded += 1
        return data

    def _awaited(self, number: int, topic: Topic) -> bytes:
        """A topic that cannot be read yet, which soon will be: it is not kept."""
        rows = self._rows_without_leader.of(number, topic.partitions)
        return write_topic(number, topic.name, topic.topic_id, rows, topic.partitions)

    # ------------------------------------------------------------------ bounds

    def _layout(self, number: int) -> _Layout:
        layout = self._layouts.get(number)
        if layout is None:
            layout = self._layouts[number] = _Layout()
        self._layouts.move_to_end(number)
        return layout

    def _keep_small(self) -> None:
        """Let go of topics that are gone, and of what was used least when it is too much."""
        if not self._layouts:
            return  # another request dropped all of it while this entry was being made
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
    """Finds topics by their ids.

    Parameters:
        view: where the topics are.
    """

    def __init__(self, view: TopicsView) -> None:
        self._view = view
        self._version = -1
        self._names: dict[str, str] = {}

    def find(self, topic_id: str) -> Topic | None:
        """The topic that has this id (hex); None where there is none."""
        if self._version != self._view.topics_version:
            self._version = self._view.topics_version
            known = {**self._view.awaited, **self._view.topics}
            self._names = {topic.topic_id: name for name, topic in known.items()}
        name = self._names.get(topic_id, "")
        return self._view.topics.get(name) or self._view.awaited.get(name)
