"""Checks the snapshots of a data directory, and provides their content for the other checks."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pidlease.core.packed import Packed, unpack
from pidlease.core.rules import rules_of
from pidlease.core.state import ProducerState
from pidlease.storage.snapshots import (
    LeaseRow,
    Manifest,
    Snapshot,
    SnapshotError,
    SnapshotStore,
    TopicPartition,
)
from pidlease.storage.topics.topic_store import Topic
from pidlease.verify.partition_check import CheckContext, Checkpoint
from pidlease.verify.verify_report import Kind

_MANIFEST: Final = "manifest.json"
_PRODUCERS: Final = "producers.parquet"
_LEASES: Final = "leases.parquet"


@dataclass(slots=True)
class _Loaded:
    """An intact snapshot, and its leases by PID."""

    folder: Path
    snapshot: Snapshot
    leases: dict[int, LeaseRow]


@dataclass(slots=True)
class Snapshots:
    """All intact snapshots.

    Attributes:
        newest: the newest valid manifest; the log before its offset vector cannot be torn.
    """

    newest: Manifest | None = None
    _loaded: list[_Loaded] = field(default_factory=list)

    def read(self, context: CheckContext, folder: Path) -> None:
        """Read and check all snapshots in a folder."""
        store = SnapshotStore(context.files, folder, names=context.names)
        for number in store.numbers():
            path = folder / f"snapshot-{number:012d}"
            try:
                manifest = store.manifest(number)
                if self.newest is None:
                    self.newest = manifest
                self._load(context, path, store.load(number), number)
            except (SnapshotError, AttributeError) as error:
                _unusable(context, path, error, newer=bool(self._loaded))

    def _load(self, context: CheckContext, path: Path, snapshot: Snapshot, number: int) -> None:
        report = context.report
        if snapshot.manifest.number != number:
            text = f"says it is number {snapshot.manifest.number}"
            report.wrong(Kind.SNAPSHOT, path / _MANIFEST, text)
        self._loaded.append(_Loaded(path, snapshot, {row.pid: row for row in snapshot.leases}))
        report.totals.snapshots += 1
        report.pids.update(row.pid for row in snapshot.leases)

    def checkpoints(self, topic: Topic, number: int) -> list[Checkpoint]:
        """Return the snapshots' rows of a partition."""
        name = TopicPartition(topic.name, number)
        return [
            Checkpoint(
                each.folder / _PRODUCERS,
                entry.next_offset,
                _unpacked(each.snapshot.producers[name]),
                each.leases,
            )
            for each in self._loaded
            if (entry := each.snapshot.manifest.offset_vector.get(name)) is not None
            and entry.topic_id == topic.topic_id
        ]

    def recovery_offset(self, topic: Topic, number: int) -> int:
        """Return the offset up to which a partition's log is known to be durable."""
        name = TopicPartition(topic.name, number)
        return self.newest.next_offset(name, topic.topic_id) if self.newest else 0

    def check_topics(self, context: CheckContext, names: Collection[TopicPartition]) -> None:
        """Note partitions that are only in a snapshot: their topic was deleted since."""
        for each in self._loaded:
            for name in each.snapshot.manifest.offset_vector:
                if name not in names:
                    text = f"speaks of {name}, which is not there (any more)"
                    context.report.note(each.folder / _MANIFEST, text)


def _unpacked(producers: dict[int, Packed]) -> dict[int, ProducerState]:
    return {
        pid: unpack(rules, packed)
        for pid, packed in producers.items()
        if (rules := rules_of(pid)) is not None
    }


def _unusable(context: CheckContext, path: Path, error: Exception, *, newer: bool) -> None:
    """Report a snapshot that cannot be used; one without a manifest may be half removed."""
    report = context.report
    if newer and not report.clean and not context.files.exists(path / _MANIFEST):
        report.note(path, "left by an interrupted removal; a later snapshot removes it")
        return
    if isinstance(error.__cause__, PermissionError):
        raise error.__cause__
    text, at = str(error), path
    for name in (_MANIFEST, _PRODUCERS, _LEASES):
        if text.startswith(str(path / name)):
            text, at = text.removeprefix(str(path / name)).lstrip(": "), path / name
    report.wrong(Kind.SNAPSHOT, at, text)
