"""The snapshots of a data directory: whether each can be used, and what it says."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pidlease.core.packed import Packed, unpack
from pidlease.core.rules import rules_of
from pidlease.core.state import ProducerState
from pidlease.storage.snapshots import (
    LeaseRow,
    PartitionOffset,
    Snapshot,
    SnapshotError,
    SnapshotStore,
    TopicPartition,
)
from pidlease.storage.topics.topic_store import Topic
from pidlease.verify.partition_check import Checkpoint, Looking
from pidlease.verify.verify_report import Kind

_MANIFEST: Final = "manifest.json"
_PRODUCERS: Final = "producers.parquet"
_LEASES: Final = "leases.parquet"


@dataclass(slots=True)
class _Loaded:
    """A snapshot that is intact, and its leases by PID."""

    folder: Path
    snapshot: Snapshot
    leases: dict[int, LeaseRow]


@dataclass(slots=True)
class Snapshots:
    """All snapshots that can be used.

    Attributes:
        durable: places in the newest offset vector; what lies before them cannot be torn.
    """

    durable: dict[TopicPartition, PartitionOffset] = field(default_factory=dict)
    _loaded: list[_Loaded] = field(default_factory=list)

    def read(self, looking: Looking, folder: Path) -> None:
        """Read all that are in a folder, each file of each with its checksum."""
        store = SnapshotStore(looking.files, folder, names=looking.names)
        for number in store.numbers():
            path = folder / f"snapshot-{number:012d}"
            try:
                manifest = store.manifest(number)
                if not self.durable:
                    self.durable = manifest.offset_vector
                self._load(looking, path, store.load(number), number)
            except (SnapshotError, AttributeError) as error:
                _unusable(looking, path, error, newer=bool(self._loaded))

    def _load(self, looking: Looking, path: Path, snapshot: Snapshot, number: int) -> None:
        report = looking.report
        if snapshot.manifest.number != number:
            text = f"says it is number {snapshot.manifest.number}"
            report.wrong(Kind.SNAPSHOT, path / _MANIFEST, text)
        self._loaded.append(_Loaded(path, snapshot, {row.pid: row for row in snapshot.leases}))
        report.totals.snapshots += 1
        report.pids.update(row.pid for row in snapshot.leases)

    def checkpoints(self, topic: Topic, number: int) -> list[Checkpoint]:
        """What they say of a partition of a topic."""
        name = TopicPartition(topic.name, number)
        return [
            Checkpoint(
                each.folder / _PRODUCERS,
                place.next_offset,
                _unpacked(each.snapshot.producers[name]),
                each.leases,
            )
            for each in self._loaded
            if (place := each.snapshot.manifest.offset_vector.get(name)) is not None
            and place.topic_id == topic.topic_id
        ]

    def recovery_offset(self, topic: Topic, number: int) -> int:
        """Up to where a partition's log is known to be durable."""
        place = self.durable.get(TopicPartition(topic.name, number))
        return place.next_offset if place and place.topic_id == topic.topic_id else 0

    def check_topics(self, looking: Looking, names: Collection[TopicPartition]) -> None:
        """Report the partitions that only a snapshot knows: their topic was deleted since."""
        for each in self._loaded:
            for name in each.snapshot.manifest.offset_vector:
                if name not in names:
                    text = f"speaks of {name}, which is not there (any more)"
                    looking.report.note(each.folder / _MANIFEST, text)


def _unpacked(producers: dict[int, Packed]) -> dict[int, ProducerState]:
    return {
        pid: unpack(rules, packed)
        for pid, packed in producers.items()
        if (rules := rules_of(pid)) is not None
    }


def _unusable(looking: Looking, path: Path, error: Exception, *, newer: bool) -> None:
    """Report snapshots without a manifest: an old one was being removed, others are damaged."""
    report = looking.report
    if newer and not report.clean and not looking.files.exists(path / _MANIFEST):
        report.note(path, "left by an interrupted removal; a later snapshot removes it")
        return
    if isinstance(error.__cause__, PermissionError):
        raise error.__cause__
    text, at = str(error), path
    for name in (_MANIFEST, _PRODUCERS, _LEASES):
        if text.startswith(str(path / name)):
            text, at = text.removeprefix(str(path / name)).lstrip(": "), path / name
    report.wrong(Kind.SNAPSHOT, at, text)
