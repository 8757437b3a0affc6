"""Which topic a partition's log is of: a copy of the topic's definition, in the log's folder.

Kafka keeps the topic's id beside each log, too (`partition.metadata`). The copy is written when the
log is made; that of partition 0 is replaced with each change of the topic. So a start restores a
lost definition, and never takes a log for one of another topic.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from pidlease.core.topic_partition import TopicPartition
from pidlease.log.segments.durable_mark import MARK_NAME
from pidlease.log.segments.log_start import LOG_START_NAME
from pidlease.log.segments.segment import ActiveSegment, SegmentFiles, base_offset_of
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import Files, make_durable_folder, remove_tree
from pidlease.storage.topics.topic_store import Topic, read_definition, write_definition

#: The file with the copy.
COPY_NAME: Final = "topic"

_log = structlog.get_logger(__name__)


class LogExistsError(OSError):
    """There is a log where one of a new partition would be made."""


def folder_name(topic: str, number: int) -> str:
    """Return the name of a partition's folder."""
    return str(TopicPartition(topic, number))


def partition_of(folder: str) -> TopicPartition | None:
    """Return the partition that a folder is named for; None: it is named for none."""
    topic, _, number = folder.rpartition("-")
    if not topic or not number.isdecimal() or folder_name(topic, int(number)) != folder:
        return None
    return TopicPartition(topic, int(number))


def write_copy(files: Files, folder: Path, topic: Topic) -> None:
    """Store a topic's definition in the folder of one of its logs, durably.

    Raises:
        OSError: it is not stored.
    """
    write_definition(files, folder / COPY_NAME, topic)


def read_copy(files: Files, folder: Path) -> Topic | None:
    """Return the definition in a log's folder; None: there is none, or it is damaged."""
    path = folder / COPY_NAME
    if not files.exists(path):
        return None
    try:
        return read_definition(files, path)
    except DataFolderError as error:
        _log.error("the copy of a topic's definition is damaged", reason=str(error))
        return None


def check_no_logs(files: Files, logs: Path, topic: Topic, numbers: Iterable[int]) -> None:
    """Check that new partitions have no logs yet. A log that was never written to is none.

    Raises:
        LogExistsError: there is a log.
        OSError: this is unknown.
    """
    for number in numbers:
        folder = logs / folder_name(topic.name, number)
        if files.exists(folder) and _is_log(files, folder):
            raise LogExistsError(
                f"{folder} has the log of a topic that is not defined: take its definition from"
                " a backup, or move the folder away"
            )


def make_logs(files: Files, logs: Path, topic: Topic, numbers: Iterable[int]) -> None:
    """Make the empty logs of new partitions, durably, in the place of any that are there.

    The copy comes last: a folder that has it, but no segment, has lost a log.

    Parameters:
        logs: the folder of all logs.

    Raises:
        OSError: not all are made.
    """
    make_durable_folder(files, logs)
    for number in numbers:
        folder = logs / folder_name(topic.name, number)
        if files.exists(folder):
            remove_tree(files, folder)
        files.make_folder(folder)
        with closing(ActiveSegment(SegmentFiles(files, folder, 0))) as segment:
            segment.create()
        write_copy(files, folder, topic)
    files.fsync_folder(logs)


def wrong_log(files: Files, folder: Path, topic: Topic, number: int) -> str:
    """Return why a folder does not have the log of a defined partition; empty: it does.

    A copy that is missing or outdated is written again.

    Raises:
        OSError: this is unknown, or the copy is not written.
    """
    copy = read_copy(files, folder)
    if copy is None:
        if not _bases(files.list(folder)):
            return (
                "the log is gone: take its folder from a backup, or let `pidlease repair` begin an"
                " empty one"
            )
        _log.error("a log did not say which topic it is of; it counts as that of its name",
                   log=folder.name, path=str(folder / COPY_NAME))  # fmt: skip
    elif wrong := of_another(copy, topic):
        return wrong
    if copy is None or (number == 0 and copy != topic):
        write_copy(files, folder, topic)
    return ""


def of_another(copy: Topic, topic: Topic) -> str:
    """Return that the copy in a log's folder is not of its topic; empty: it is."""
    if copy.topic_id == topic.topic_id:
        return ""
    return (
        f"the log is of a topic with id {copy.topic_id}, and the definition of {topic.name} has"
        f" {topic.topic_id}: take the log or the definition from a backup, or move the definition"
        " away, and the next start restores that of the log"
    )


def restored_topics(files: Files, logs: Path, defined: Mapping[str, Topic]) -> list[Topic]:
    """Find logs without a definition, and return the definitions by the copies beside them.

    A topic may be missing, or have fewer partitions than logs. Each is reported in the server's
    log. If none of its logs without a definition was ever written to, their creation may have been
    interrupted, so missing ones are made; or all are removed, if no copy says what they are.

    Parameters:
        logs: the folder of all logs.
        defined: the definitions that are stored, by name; also those of deleted topics.

    Raises:
        OSError: a log cannot be read, or made.
    """
    found: dict[str, list[int]] = {}
    for place in filter(None, map(partition_of, files.list(logs))):
        if place.topic not in defined or place.partition >= defined[place.topic].partitions:
            found.setdefault(place.topic, []).append(place.partition)
    topics = []
    for name, numbers in found.items():
        topic = _restored(files, logs, name, sorted(numbers), defined.get(name))
        if topic is not None:
            topics.append(topic)
    return topics


def _restored(
    files: Files, logs: Path, name: str, numbers: list[int], known: Topic | None
) -> Topic | None:
    folders = {number: logs / folder_name(name, number) for number in numbers}
    written = any(is_written(files, folder) for folder in folders.values())
    read = {number: read_copy(files, folder) for number, folder in folders.items()}
    base = known or next(filter(None, read.values()), None)
    copies = {
        number: copy
        for number, copy in read.items()
        if copy is not None and base is not None and copy.topic_id == base.topic_id
    }
    if base is None or not copies:
        if written:
            _log.error("a log belongs to no topic that is defined, and cannot be read; take the"
                       " topic's definition from a backup, or move the log away", topic=name,
                       logs=[str(folder) for folder in folders.values()][:10])  # fmt: skip
        else:  # of a creation that was interrupted before the copy
            for folder in folders.values():
                remove_tree(files, folder)
        return None
    total = max(numbers[-1] + 1, *(copy.partitions for copy in copies.values()))
    topic = replace(base, partitions=total)
    if not written:
        first = known.partitions if known is not None else 0
        make_logs(files, logs, topic, (n for n in range(first, total) if n not in copies))
        _log.warning("partitions without a record were in no definition, after a creation that was"
                     " interrupted, or a loss; they are defined now", topic=name,
                     partitions=total)  # fmt: skip
    else:
        _log.error("a topic's definition was lost, or older than its logs; it was restored from the"
                   " copy beside them: check its settings", topic=name, topic_id=topic.topic_id,
                   partitions=total, before=known.partitions if known else 0)  # fmt: skip
    return topic


def _is_log(files: Files, folder: Path) -> bool:
    """Whether a folder has, or had, a log that may not be used for another topic."""
    names = files.list(folder)
    return (COPY_NAME in names and not _bases(names)) or is_written(files, folder)


def is_written(files: Files, folder: Path) -> bool:
    """Whether the log in a folder ever had a record."""
    names = files.list(folder)
    if MARK_NAME in names or LOG_START_NAME in names:
        return True
    return any(base or SegmentFiles(files, folder, base).log_size() for base in _bases(names))


def _bases(names: Iterable[str]) -> list[int]:
    """Return the base offsets of the segments among the names of files."""
    return [base for name in names if (base := base_offset_of(name)) is not None]
