"""The committed offsets in memory: the journal's records, applied in order."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pidlease.storage.offsets.journal_records import (
    Commit,
    CommittedOffset,
    Forget,
    GroupNote,
    Record,
    RemoveGroup,
    TopicOffsets,
)

#: Approximate bytes of a line, group, topic and offset in the journal, without their texts.
_GROUP_BYTES: Final = 120
_TOPIC_BYTES: Final = 100
_OFFSET_BYTES: Final = 40
#: Offsets in one line of a rewritten journal.
_ROWS_MAX: Final = 1000


@dataclass(slots=True)
class TopicPart:
    """A topic's offsets in a group."""

    topic_id: str
    offsets: dict[int, CommittedOffset] = field(default_factory=dict)


@dataclass(slots=True)
class StoredGroup:
    """A group's state and committed offsets; the fields are those of `GroupNote`."""

    protocol_type: str | None = None
    generation: int = 0
    empty_ms: int = -1
    topics: dict[str, TopicPart] = field(default_factory=dict)


class OffsetTable:
    """Groups and their committed offsets, in memory.

    Attributes:
        groups: by group id.
        entries: how many offsets there are.
        size_bytes: the approximate size of a rewritten journal.
        on_group: is called with the id of a group that was added or removed.
    """

    def __init__(self) -> None:
        self.on_group: Callable[[str], None] | None = None
        self.groups: Final[dict[str, StoredGroup]] = {}
        self.entries = 0
        self.size_bytes = 0

    def get(self, group: str, topic: str, topic_id: str, partition: int) -> CommittedOffset | None:
        """Return a group's committed offset of a partition; None: it has none for this topic id."""
        stored = self.groups.get(group)
        part = stored.topics.get(topic) if stored is not None else None
        if part is None or part.topic_id != topic_id:
            return None
        return part.offsets.get(partition)

    def growth(self, record: Record) -> tuple[int, int]:
        """Return how many entries and bytes a record adds; at least 0."""
        if isinstance(record, GroupNote):
            stored = self.groups.get(record.group)
            before = text_bytes(stored.protocol_type or "") if stored is not None else 0
            size = text_bytes(record.protocol_type or "") - before
            return 0, size + (_group_bytes(record.group) if stored is None else 0)
        return self._growth(record) if isinstance(record, Commit) else (0, 0)

    def _growth(self, commit: Commit) -> tuple[int, int]:
        stored = self.groups.get(commit.group)
        size = 0 if stored is not None else _group_bytes(commit.group)
        new = 0
        for topic, topic_id, partitions in commit.topics:
            part = stored.topics.get(topic) if stored is not None else None
            if part is None:
                size += _topic_bytes(commit.group, topic)
            for partition, committed in partitions.items():
                old = self.get(commit.group, topic, topic_id, partition)
                size += text_bytes(committed.metadata)
                if old is None:
                    new += 1
                    size += _OFFSET_BYTES
                else:
                    size -= text_bytes(old.metadata)
        return new, size

    def apply(self, record: Record) -> None:
        """Apply a record."""
        if isinstance(record, Commit):
            group = self._make(record.group)
            for each in record.topics:
                if each.partitions:
                    self._put(record.group, group, each)
        elif isinstance(record, Forget):
            stored = self.groups.get(record.group)
            if stored is not None:
                for topic, numbers in record.topics:
                    self._forget(record.group, stored, topic, numbers)
        elif isinstance(record, GroupNote):
            group = self._make(record.group)
            self.size_bytes += text_bytes(record.protocol_type or "")
            self.size_bytes -= text_bytes(group.protocol_type or "")
            group.protocol_type = record.protocol_type
            group.generation = record.generation
            group.empty_ms = record.empty_ms
        elif isinstance(record, RemoveGroup):
            self._remove(record.group)

    def keep_topics(self, topic_ids: Mapping[str, str]) -> None:
        """Remove the offsets of all topics but these: name -> id."""
        self._forget_topics(lambda topic, part: topic_ids.get(topic) != part.topic_id)

    def forget_topic(self, topic_id: str) -> None:
        """Remove the offsets of a topic."""
        self._forget_topics(lambda _, part: part.topic_id == topic_id)

    def _forget_topics(self, leaves: Callable[[str, TopicPart], bool]) -> None:
        for name, group in self.groups.items():
            gone = [topic for topic, part in group.topics.items() if leaves(topic, part)]
            for topic in gone:
                self._forget(name, group, topic, list(group.topics[topic].offsets))

    def records(self) -> Iterator[Record]:
        """Return the fewest records that hold the table's content."""
        for name, group in self.groups.items():
            yield GroupNote(name, group.protocol_type, group.generation, group.empty_ms)
            for topic, part in group.topics.items():
                for rows in _parts(part.offsets):
                    yield Commit(name, (TopicOffsets(topic, part.topic_id, rows),))

    def _make(self, name: str) -> StoredGroup:
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = StoredGroup()
            self.size_bytes += _group_bytes(name)
            if self.on_group is not None:
                self.on_group(name)
        return group

    def _put(self, name: str, group: StoredGroup, given: TopicOffsets) -> None:
        topic, topic_id, partitions = given
        part = group.topics.get(topic)
        if part is not None and part.topic_id != topic_id:
            # A later topic of the same name: the former topic's offsets mean nothing for it.
            self._forget(name, group, topic, list(part.offsets))
            part = None
        if part is None:
            part = group.topics[topic] = TopicPart(topic_id)
            self.size_bytes += _topic_bytes(name, topic)
        for partition, committed in partitions.items():
            old = part.offsets.get(partition)
            self.size_bytes += text_bytes(committed.metadata)
            if old is None:
                self.entries += 1
                self.size_bytes += _OFFSET_BYTES
            else:
                self.size_bytes -= text_bytes(old.metadata)
            part.offsets[partition] = committed

    def _forget(self, name: str, group: StoredGroup, topic: str, partitions: Iterable[int]) -> None:
        part = group.topics.get(topic)
        if part is None:
            return
        for partition in partitions:
            old = part.offsets.pop(partition, None)
            if old is not None:
                self.entries -= 1
                self.size_bytes -= _OFFSET_BYTES + text_bytes(old.metadata)
        if not part.offsets:
            del group.topics[topic]
            self.size_bytes -= _topic_bytes(name, topic)

    def _remove(self, name: str) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        for topic in list(group.topics):
            self._forget(name, group, topic, list(group.topics[topic].offsets))
        del self.groups[name]
        self.size_bytes -= _group_bytes(name) + text_bytes(group.protocol_type or "")
        if self.on_group is not None:
            self.on_group(name)


def text_bytes(text: str) -> int:
    """Return how many bytes a text takes in the journal, without its quotation marks."""
    if text.isalnum() and text.isascii():
        return len(text)
    return len(json.dumps(text, ensure_ascii=False).encode(errors="replace")) - 2 if text else 0


def _group_bytes(name: str) -> int:
    return _GROUP_BYTES + text_bytes(name)


def _topic_bytes(group: str, topic: str) -> int:
    """Return a topic's size; its line also has the group's name."""
    return _TOPIC_BYTES + text_bytes(group) + text_bytes(topic)


def _parts(offsets: dict[int, CommittedOffset]) -> Iterator[dict[int, CommittedOffset]]:
    """Split a topic's offsets into parts of bounded size."""
    rows = list(offsets.items())
    for start in range(0, len(rows), _ROWS_MAX):
        yield dict(rows[start : start + _ROWS_MAX])
