"""Verifies a whole data directory: topics, logs, snapshots, sequence, names, offsets."""

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from operator import eq
from pathlib import Path
from typing import Final, NamedTuple

from pidlease.log.segments.data_directory import NewerFormatError, missing_of, read_identity
from pidlease.log.segments.log_topics import COPY_NAME, is_written, of_another, partition_of
from pidlease.log.segments.segment import LOG_SUFFIX
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import Files
from pidlease.storage.snapshots import TopicPartition
from pidlease.storage.topics.topic_settings import check_settings, check_shared, policy_in_force
from pidlease.storage.topics.topic_store import (
    DEFAULTS_NAME,
    DOOMED_SUFFIX,
    Topic,
    TopicStore,
    illegal_name,
    read_definition,
)
from pidlease.verify.names_check import check_names
from pidlease.verify.offsets_check import check_offsets
from pidlease.verify.partition_check import CheckContext, PartitionCheck
from pidlease.verify.read_only_files import ReadOnlyFiles
from pidlease.verify.sequence_check import check_sequence
from pidlease.verify.snapshots_check import Snapshots
from pidlease.verify.verify_report import Kind, Report, UnusableDirectoryError

_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_TOPIC_SUFFIX: Final = ".json"

Progress = Callable[[int], None]


class _Planned(NamedTuple):
    """A partition to check, and whether deduplication is on."""

    topic: Topic
    number: int
    folder: Path
    judged: bool


def verify(files: Files, path: Path, began: Progress, advance: Progress) -> Report:
    """Check a whole data directory, without changing it; `keep_servers_out` first.

    The memory needed grows with the number of producers, not with the log.

    Parameters:
        began: called with the total bytes of the logs.
        advance: called repeatedly with the number of further bytes read.

    Raises:
        UnusableDirectoryError: it is no data directory, of a newer format, or unreadable.
    """
    report = Report(path)
    context = CheckContext(ReadOnlyFiles(files), report, advance)
    try:
        _check_identity(context, path)
        report.clean = files.exists(path / "clean-stop")
        topics = list(_topics(context, path / "topics"))
        shared = _defaults(context, path / "topics")
        snapshots = Snapshots()
        snapshots.read(context, path / "snapshots")
        planned = list(_plan(context, path / "logs", topics, shared))
        snapshots.check_topics(context, {TopicPartition(t.name, n) for t, n, *_ in planned})
        began(sum(_log_bytes(files, each.folder) for each in planned))
        for each in planned:
            _check_partition(context, each, snapshots)
        _check_file(context, path / "sequence" / "blocks", check_sequence)
        _check_file(context, path / "sequence" / "names", check_names)
        _check_file(context, path / "groups", check_offsets)
        _note_directories_within(context, path)
    except PermissionError as error:
        raise UnusableDirectoryError(f"{path} may not be read by this user: {error}") from error
    report.totals.producers = len(report.pids)
    return report


def _check_identity(context: CheckContext, path: Path) -> None:
    """Check that it is a data directory of a known format."""
    files, meta = context.files, path / "meta.json"
    if not files.is_folder(path):
        raise UnusableDirectoryError(f"{path} does not exist, or is no directory")
    if not files.exists(meta):
        if not files.is_folder(path / "logs"):
            raise UnusableDirectoryError(f"{path} is no data directory: {meta.name} is not there")
        context.report.wrong(Kind.MISSING, meta, "the directory's identity is not there")
        return
    try:
        version, cluster_id, kept = read_identity(files, path)
    except PermissionError:
        raise
    except NewerFormatError as error:
        raise UnusableDirectoryError(str(error)) from None
    except DataFolderError as error:
        context.report.wrong(Kind.DAMAGED, meta, str(error).removeprefix(f"{meta} "), position=0)
        return
    except OSError as error:
        text = f"is damaged ({error}); take it from a backup"
        context.report.wrong(Kind.DAMAGED, meta, text, position=0)
        return
    for name in missing_of(files, path, kept):
        context.report.wrong(Kind.MISSING, path / name, "is missing, and was there")
    if version < 1 or not _CLUSTER_ID.fullmatch(cluster_id):
        text = f"is damaged (format {version}, cluster id {cluster_id!r})"
        context.report.wrong(Kind.DAMAGED, meta, text, position=0)


def _note_directories_within(context: CheckContext, path: Path) -> None:
    """Note data directories inside this one: `cp` puts a second backup into the first."""
    for name in context.files.list(path):
        if context.files.exists(path / name / "meta.json"):
            context.report.note(path / name, "is another data directory, and was not checked")


def _topics(context: CheckContext, folder: Path) -> Iterator[Topic]:
    """Yield the topics with intact definitions."""
    for name in context.files.list(folder):
        path = folder / name
        if name == DEFAULTS_NAME:
            continue
        if name.endswith(DOOMED_SUFFIX):
            context.report.note(path, "was deleted; the next start removes what is left of it")
            continue
        if not name.endswith(_TOPIC_SUFFIX):
            context.report.wrong(Kind.STRAY, path, "is no topic's definition")
            continue
        only_this = ReadOnlyFiles(context.files, partial(eq, name))
        try:
            topic = TopicStore(only_this, folder).load()[0]
            message = illegal_name(topic.name) or _contradiction(topic, name)
        except PermissionError:
            raise
        except (DataFolderError, OSError, AttributeError) as error:
            text = str(error).removeprefix(f"{path} ")
            context.report.wrong(Kind.DAMAGED, path, text, position=0)
            continue
        if message:
            context.report.wrong(Kind.DAMAGED, path, message, position=0)
        else:
            yield topic


def _defaults(context: CheckContext, folder: Path) -> dict[str, str]:
    """Return the settings of all topics; none if they are damaged."""
    path = folder / DEFAULTS_NAME
    try:
        settings = TopicStore(context.files, folder).load_defaults()
        check_shared(settings)
    except PermissionError:
        raise
    except (DataFolderError, OSError, ValueError) as error:
        text = str(error).removeprefix(f"{path} ")
        context.report.wrong(Kind.DAMAGED, path, text, position=0)
        return {}
    return settings


def _contradiction(topic: Topic, file_name: str) -> str:
    """Return what is impossible in a topic's definition; empty: nothing."""
    if topic.name + _TOPIC_SUFFIX != file_name:
        return f"defines another topic: {topic.name}"
    if topic.partitions < 1:
        return f"a topic of {topic.partitions} partitions"
    try:
        check_settings(topic.overrides)
    except ValueError as error:
        return str(error)
    return ""


def _plan(
    context: CheckContext, logs: Path, topics: list[Topic], shared: dict[str, str]
) -> Iterator[_Planned]:
    """Yield the partitions that should exist; report folders of others."""
    names = set(context.files.list(logs))
    doomed = {
        name.removesuffix(DOOMED_SUFFIX)
        for name in context.files.list(logs.parent / "topics")
        if name.endswith(DOOMED_SUFFIX)
    }
    for topic in topics:
        judged = policy_in_force(topic.overrides, shared).deduplication
        for number in range(topic.partitions):
            name = f"{topic.name}-{number}"
            names.discard(name)
            yield _Planned(topic, number, logs / name, judged)
    for name in sorted(names):
        if name.rpartition("-")[0] not in doomed:
            if partition_of(name) and not is_written(context.files, logs / name):
                context.report.note(logs / name, "is of no topic, and has no record; a creation was"
                                    " interrupted, which the next start completes")  # fmt: skip
                continue
            restores = partition_of(name) and context.files.exists(logs / name / COPY_NAME)
            more = "; the next start restores its definition" if restores else ""
            text = f"belongs to no topic that is defined{more}"
            context.report.wrong(Kind.STRAY, logs / name, text)


def _log_bytes(files: Files, folder: Path) -> int:
    total = 0
    for name in files.list(folder):
        if name.endswith(LOG_SUFFIX):
            file = files.open_readonly(folder / name)
            total += file.size()
            file.close()
    return total


def _check_partition(context: CheckContext, planned: _Planned, snapshots: Snapshots) -> None:
    topic, number, folder, judged = planned
    checkpoints = snapshots.checkpoints(topic, number)
    recovery_offset = snapshots.recovery_offset(topic, number)

    def check(context: CheckContext, folder: Path) -> None:
        _check_copy(context, folder, topic)
        PartitionCheck(context, folder, checkpoints, recovery_offset).run()

    with nullcontext() if judged else context.report.not_judged(folder):
        _check_file(context, folder, check)


def _check_copy(context: CheckContext, folder: Path, topic: Topic) -> None:
    """Check the copy of the topic's definition beside a log."""
    path = folder / COPY_NAME
    if not context.files.exists(path):
        if context.files.exists(folder):
            context.report.note(path, "is missing; the next start writes it again")
        return
    try:
        wrong = of_another(read_definition(context.files, path), topic)
    except DataFolderError as error:
        text = str(error).removeprefix(f"{path} ")
        context.report.wrong(Kind.DAMAGED, path, text, position=0)
        return
    if wrong:
        context.report.wrong(Kind.STRAY, folder, wrong)


def _check_file(
    context: CheckContext, path: Path, check: Callable[[CheckContext, Path], None]
) -> None:
    """Run a check; report an unreadable file, except if this user has no permission."""
    try:
        check(context, path)
    except PermissionError:
        raise
    except OSError as error:
        at = Path(error.filename) if error.filename else path
        at = at if at.is_relative_to(context.report.root) else path
        context.report.wrong(Kind.UNREADABLE, at, f"cannot be read: {error.strerror or error}")
