"""Verifies a whole data directory: topics, logs, snapshots, sequence, names, offsets."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from operator import eq
from pathlib import Path
from typing import Final, NamedTuple

from pidlease.log.segments.data_directory import FORMAT_VERSION
from pidlease.log.segments.segment import LOG_SUFFIX
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import Files, read_file
from pidlease.storage.snapshots import TopicPartition
from pidlease.storage.topics.topic_settings import check_settings, check_shared, policy_in_force
from pidlease.storage.topics.topic_store import (
    DEFAULTS_NAME,
    DOOMED_SUFFIX,
    Topic,
    TopicStore,
    illegal_name,
)
from pidlease.verify.names_check import check_names
from pidlease.verify.offsets_check import check_offsets
from pidlease.verify.partition_check import Looking, PartitionCheck
from pidlease.verify.read_only_files import ReadOnlyFiles
from pidlease.verify.sequence_check import check_sequence
from pidlease.verify.snapshots_check import Snapshots
from pidlease.verify.verify_report import CannotLookError, Kind, Report

_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_TOPIC_SUFFIX: Final = ".json"

Progress = Callable[[int], None]


class _Planned(NamedTuple):
    """A partition that is to be looked at, and whether it is kept free of duplicates."""

    topic: Topic
    number: int
    folder: Path
    judged: bool


def verify(files: Files, path: Path, began: Progress, advance: Progress) -> Report:
    """Look at all of a data directory. Nothing in it is changed; see `access.keep_servers_out`.

    The memory it takes grows with producers, not with the log.

    Parameters:
        files: the file system.
        path: the data directory.
        began: called with how many bytes of log there are.
        advance: called repeatedly with how many more were read.

    Raises:
        CannotLookError: it is no data directory, of a newer format, or may not be read.
    """
    report = Report(path)
    looking = Looking(ReadOnlyFiles(files), report, advance)
    try:
        _check_identity(looking, path)
        report.clean = files.exists(path / "clean-stop")
        topics = list(_topics(looking, path / "topics"))
        shared = _defaults(looking, path / "topics")
        snapshots = Snapshots()
        snapshots.read(looking, path / "snapshots")
        planned = list(_plan(looking, path / "logs", topics, shared))
        snapshots.check_topics(looking, {TopicPartition(t.name, n) for t, n, *_ in planned})
        began(sum(_log_bytes(files, each.folder) for each in planned))
        for each in planned:
            _check_partition(looking, each, snapshots)
        _check_file(looking, path / "sequence" / "blocks", check_sequence)
        _check_file(looking, path / "sequence" / "names", check_names)
        _check_file(looking, path / "groups", check_offsets)
    except PermissionError as error:
        raise CannotLookError(f"{path} may not be read by this user: {error}") from error
    report.totals.producers = len(report.pids)
    return report


def _check_identity(looking: Looking, path: Path) -> None:
    """Whether it is a data directory of a format that is understood."""
    files, meta = looking.files, path / "meta.json"
    if not files.is_folder(path):
        raise CannotLookError(f"{path} is not there, or no directory")
    if not files.exists(meta):
        if not files.is_folder(path / "logs"):
            raise CannotLookError(f"{path} is no data directory: {meta.name} is not there")
        looking.report.wrong(Kind.MISSING, meta, "the directory's identity is not there")
        return
    try:
        content = json.loads(read_file(files, meta))
        version, cluster_id = int(content["format"]), str(content["cluster_id"])
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"is damaged ({error}); take it from a backup"
        looking.report.wrong(Kind.DAMAGED, meta, text, position=0)
        return
    if version > FORMAT_VERSION:
        raise CannotLookError(
            f"{path} has format {version}, written by a newer version; this one reads up to"
            f" {FORMAT_VERSION}: install the newer one"
        )
    if version < 1 or not _CLUSTER_ID.fullmatch(cluster_id):
        text = f"is damaged (format {version}, cluster id {cluster_id!r})"
        looking.report.wrong(Kind.DAMAGED, meta, text, position=0)


def _topics(looking: Looking, folder: Path) -> Iterator[Topic]:
    """Return the topics with intact definitions."""
    for name in looking.files.list(folder):
        path = folder / name
        if name == DEFAULTS_NAME:
            continue
        if name.endswith(DOOMED_SUFFIX):
            looking.report.note(path, "was deleted; the next start removes what is left of it")
            continue
        if not name.endswith(_TOPIC_SUFFIX):
            looking.report.wrong(Kind.STRAY, path, "is no topic's definition")
            continue
        only_this = ReadOnlyFiles(looking.files, partial(eq, name))
        try:
            topic = TopicStore(only_this, folder).load()[0]
            message = illegal_name(topic.name) or _contradiction(topic, name)
        except PermissionError:
            raise
        except (DataFolderError, OSError, AttributeError) as error:
            text = str(error).removeprefix(f"{path} ")
            looking.report.wrong(Kind.DAMAGED, path, text, position=0)
            continue
        if message:
            looking.report.wrong(Kind.DAMAGED, path, message, position=0)
        else:
            yield topic


def _defaults(looking: Looking, folder: Path) -> dict[str, str]:
    """What is set for all topics; nothing where that is damaged."""
    path = folder / DEFAULTS_NAME
    try:
        found = TopicStore(looking.files, folder).load_defaults()
        check_shared(found)
    except PermissionError:
        raise
    except (DataFolderError, OSError, ValueError) as error:
        text = str(error).removeprefix(f"{path} ")
        looking.report.wrong(Kind.DAMAGED, path, text, position=0)
        return {}
    return found


def _contradiction(topic: Topic, file_name: str) -> str:
    """What a definition says that cannot be; empty where nothing is."""
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
    looking: Looking, logs: Path, topics: list[Topic], shared: dict[str, str]
) -> Iterator[_Planned]:
    """Yield the partitions that should be there; report those that should not."""
    names = set(looking.files.list(logs))
    doomed = {
        name.removesuffix(DOOMED_SUFFIX)
        for name in looking.files.list(logs.parent / "topics")
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
            looking.report.wrong(Kind.STRAY, logs / name, "belongs to no topic that is defined")


def _log_bytes(files: Files, folder: Path) -> int:
    total = 0
    for name in files.list(folder):
        if name.endswith(LOG_SUFFIX):
            file = files.open_readonly(folder / name)
            total += file.size()
            file.close()
    return total


def _check_partition(looking: Looking, planned: _Planned, snapshots: Snapshots) -> None:
    topic, number, folder, judged = planned
    checkpoints = snapshots.checkpoints(topic, number)
    recovery_offset = snapshots.recovery_offset(topic, number)

    def check(looking: Looking, folder: Path) -> None:
        PartitionCheck(looking, folder, checkpoints, recovery_offset).run()

    with nullcontext() if judged else looking.report.not_judged(folder):
        _check_file(looking, folder, check)


def _check_file(looking: Looking, path: Path, check: Callable[[Looking, Path], None]) -> None:
    """Do a check; what cannot be read is a finding, unless this user may not."""
    try:
        check(looking, path)
    except PermissionError:
        raise
    except OSError as error:
        at = Path(error.filename) if error.filename else path
        at = at if at.is_relative_to(looking.report.root) else path
        looking.report.wrong(Kind.UNREADABLE, at, f"cannot be read: {error.strerror or error}")
