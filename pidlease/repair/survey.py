"""Finds a data directory's damaged partitions, and what a cut of each would lose."""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pidlease.coordination.file.file_names import parse_line
from pidlease.core.producer_names import ProducerNames
from pidlease.log.segments.log_topics import COPY_NAME, of_another, read_copy
from pidlease.repair.damage import Damage, find_damage
from pidlease.repair.losses import Context, Losses, find_losses
from pidlease.storage.checked_lines import check_header, header_of, split_torn
from pidlease.storage.errors import DataFolderError, LogError, is_unreadable
from pidlease.storage.files import Files, read_file
from pidlease.storage.offsets.journal_lines import journal_lines
from pidlease.storage.offsets.offset_journal import JOURNAL_NAME
from pidlease.storage.offsets.offset_table import OffsetTable
from pidlease.storage.snapshots import Snapshot, SnapshotError, SnapshotStore, TopicPartition
from pidlease.storage.topics.topic_store import Topic, TopicStore
from pidlease.verify.read_only_files import ReadOnlyFiles
from pidlease.verify.verify_report import UnusableDirectoryError


class GroupLoss(NamedTuple):
    """A consumer group with a committed offset beyond a cut."""

    group: str
    offset: int


@dataclass(frozen=True, slots=True)
class DamagedPartition:
    """A damaged partition.

    Attributes:
        folder: its segments' folder.
        losses: what a cut there would lose; None: it cannot be cut.
        groups: groups with committed offsets beyond the cut.
        reason: why it cannot be cut; empty: it can.
    """

    topic: Topic
    number: int
    folder: Path
    damage: Damage
    losses: Losses | None
    groups: list[GroupLoss]
    reason: str = ""

    @property
    def name(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic.name, self.number)


class Survey(NamedTuple):
    """The damaged partitions of a data directory.

    Attributes:
        root: the directory.
        clean: whether the last process stopped cleanly.
        names: the producer ids of policy epoch in the losses.
        looked_at: how many partitions were checked.
    """

    root: Path
    clean: bool
    names: ProducerNames
    looked_at: int
    damaged: list[DamagedPartition]


def survey(
    files: Files,
    root: Path,
    now_ms: int,
    wanted: Collection[TopicPartition] = (),
    advance: Callable[[], None] = lambda: None,
) -> Survey:
    """Find damaged partitions, without changing anything. Keep servers out meanwhile.

    Parameters:
        now_ms: the time, in ms since 1970.
        wanted: the partitions to check; empty: all.
        advance: called after each partition.

    Raises:
        UnusableDirectoryError: it is no data directory, is unreadable, or lacks a wanted partition.
    """
    files = ReadOnlyFiles(files)
    if not files.exists(root / "meta.json"):
        raise UnusableDirectoryError(f"{root} is no data directory of pidlease")
    names = ProducerNames()
    try:
        topics = {topic.name: topic for topic in TopicStore(files, root / "topics").load()}
        for name in wanted:
            if name.topic not in topics or not 0 <= name.partition < topics[name.topic].partitions:
                raise UnusableDirectoryError(
                    f"{root} has no partition {name.topic}/{name.partition}"
                )
        snapshots = _snapshots(SnapshotStore(files, root / "snapshots", names=names))
        context = Context(files, names, _bound(files, root), snapshots, now_ms)
        clean = files.exists(root / "clean-stop")
        committed = _committed(files, root)
        damaged: list[DamagedPartition] = []
        looked_at = 0
        for topic in topics.values():
            for number in range(topic.partitions):
                name = TopicPartition(topic.name, number)
                if wanted and name not in wanted:
                    continue
                each = _check(context, root, topic, number, clean=clean)
                if each is not None:
                    each.groups.extend(_groups(committed, each))
                    damaged.append(each)
                looked_at += 1
                advance()
    except (OSError, DataFolderError, LogError) as error:
        raise UnusableDirectoryError(f"{root} cannot be read: {error}") from error
    return Survey(root, clean, names, looked_at, damaged)


def _check(
    context: Context, root: Path, topic: Topic, number: int, *, clean: bool
) -> DamagedPartition | None:
    folder = root / "logs" / f"{topic.name}-{number}"
    name = TopicPartition(topic.name, number)
    newest = context.snapshots[0].manifest if context.snapshots else None
    known = newest.next_offset(name, topic.topic_id) if newest else 0
    copy = read_copy(context.files, folder)
    if copy is not None and (wrong := of_another(copy, topic)):
        foreign = Damage(folder / COPY_NAME, 0, 0, wrong, None, known)
        reason = "the log is another topic's: a cut would not repair that"
        return DamagedPartition(topic, number, folder, foreign, None, [], reason)
    damage = find_damage(context.files, folder, known, clean=clean)
    if damage is None:
        return None
    if damage.view is None:
        reason = "only the file beside the log is damaged: a cut would not repair it"
        return DamagedPartition(topic, number, folder, damage, None, [], reason)
    try:
        losses = find_losses(context, topic, number, damage)
    except LogError as error:
        return DamagedPartition(topic, number, folder, damage, None, [], str(error))
    except OSError as error:
        if not is_unreadable(error):
            raise
        reason = "the disk cannot read it; a copy by a tool that skips bad sectors can be cut"
        return DamagedPartition(topic, number, folder, damage, None, [], reason)
    return DamagedPartition(topic, number, folder, damage, losses, [])


def _snapshots(store: SnapshotStore) -> list[Snapshot]:
    """Load all intact snapshots, newest first."""
    snapshots = []
    for number in store.numbers():
        with suppress(SnapshotError):  # `verify` reports it, and a start skips it
            snapshots.append(store.load(number))
    return snapshots


def _bound(files: Files, root: Path) -> dict[int, str]:
    """Return the names of producers by their PIDs, as far as the file is intact."""
    path = root / "sequence" / "names"
    if not files.exists(path):
        return {}
    content = read_file(files, path)
    lines, _ = split_torn(content[check_header(path, content) :])
    bound: dict[str, int] = {}
    for changes in filter(None, map(parse_line, lines)):
        bound |= {name: binding.pid for name, binding in changes.items() if binding is not None}
    return {pid: name for name, pid in bound.items()}


def _committed(files: Files, root: Path) -> OffsetTable:
    """Return the committed offsets, as far as the journal is intact."""
    table = OffsetTable()
    path = root / "groups" / JOURNAL_NAME
    if not files.exists(path):
        return table
    file = files.open_readonly(path)
    try:
        start = check_header(path, file.read_at(len(header_of(path)), 0))
        for each in journal_lines(file, start):
            if each.line is not None:
                table.apply(each.line.record)
    except ValueError as error:
        raise DataFolderError(f"{path}: {error}; install the newer version") from error
    finally:
        file.close()
    return table


def _groups(committed: OffsetTable, found: DamagedPartition) -> list[GroupLoss]:
    beyond = []
    topic = found.topic
    for group in sorted(committed.groups):
        each = committed.get(group, topic.name, topic.topic_id, found.number)
        if each is not None and each.offset > found.damage.offset:
            beyond.append(GroupLoss(group, each.offset))
    return beyond
