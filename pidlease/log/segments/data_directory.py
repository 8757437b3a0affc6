"""The data directory of an embedded log: one process at a time, one format, one identity.

meta.json        format version and cluster id
lock             held while a process uses the directory
clean-stop       exists only while no process runs, after a clean stop
topics/          the topics' definitions, and the settings of all topics
logs/            a folder for each partition, with a copy of its topic's definition
snapshots/       snapshots of the producers' states
sequence/        the PID blocks, and the bindings of names
groups/          the committed offsets of consumer groups
security/        the users and the ACLs (`proxy/security`)
workers/         the data directories of further workers (`proxy/workers`)
"""

import json
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from typing_extensions import override

from pidlease.core.log_config import LogConfig
from pidlease.log.ports import LogStore
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.log.segments.log_topics import (
    check_no_logs,
    folder_name,
    make_logs,
    restored_topics,
    write_copy,
    wrong_log,
)
from pidlease.log.segments.open_logs import OpenLogs
from pidlease.log.segments.open_segments import OpenSegments
from pidlease.storage.errors import DataFolderError, NotOwnerError, reason_for_clients
from pidlease.storage.files import (
    Files,
    Lock,
    make_durable_file,
    make_durable_folder,
    read_file,
    remove_tree,
    write_aside,
)
from pidlease.storage.io_pool import IoPool
from pidlease.storage.topics.topic_settings import (
    SettingError,
    SettingsChange,
    check_settings,
    check_shared,
    config_of,
    plain,
)
from pidlease.storage.topics.topic_store import DEFAULTS_NAME, Topic, TopicInDoubtError, TopicStore

FORMAT_VERSION: Final = 1
OPEN_LOGS_DEFAULT: Final = 256

_log = structlog.get_logger(__name__)


class NewerFormatError(DataFolderError):
    """The data directory's format is newer than this version."""


_LOST: Final = "the data directory was removed, moved or replaced under the server"
META_NAME: Final = "meta.json"
_ZOOKEEPER_MARK: Final = "sequence/zookeeper"
_KAFKA_MARK: Final = "sequence/kafka"
#: The files that no start may find missing after they were there: it would begin anew.
_KEPT: Final = (
    "sequence/blocks",
    "sequence/names",
    "sequence/topics",
    "sequence/writers",
    _ZOOKEEPER_MARK,
    _KAFKA_MARK,
    "groups/offsets",
)


class Identity(NamedTuple):
    """The content of a data directory's meta.json.

    Attributes:
        version: the version of the directory's format.
        files: the names of the files that a start must find.
    """

    version: int
    cluster_id: str
    files: list[str]


#: A data directory has at least one of these: the lock is made first, or the users.
_OWN_NAMES: Final = frozenset(
    ("lock", "meta.json", "topics", "sequence", "logs", "snapshots", "security", "workers")
)
#: What an empty file system has.
_MOUNT_NAMES: Final = frozenset(("lost+found",))


class DataDirectory(LogStore):
    """A data directory, locked.

    Parameters:
        defaults: the settings of topics without own settings.
        open_logs_max: partitions that may hold files open, up to four each; readers may hold a file
            of an eighth of them.

    Raises:
        DataFolderError: another process uses it, it cannot be written, or its format is newer.
    """

    made_by_others: bool = False
    lost: str = ""

    def __init__(
        self,
        files: Files,
        path: Path,
        defaults: LogConfig,
        pool: IoPool,
        open_logs_max: int = OPEN_LOGS_DEFAULT,
    ) -> None:
        self.path: Final = path
        self._files = files
        self._defaults: Final = defaults
        self._pool = pool
        self._logs: dict[tuple[str, int], EmbeddedPartitionLog] = {}
        #: Topics that may be deleted or not; the next start decides.
        self._in_doubt: set[str] = set()
        #: Deleted topics with logs that could not be removed.
        self._left_over: dict[str, Topic] = {}
        self.open_logs: Final = OpenLogs(open_logs_max)
        #: An eighth of the logs: the limit of open files allows for that (`open_logs_max`).
        self.open_segments: Final = OpenSegments(pool, max(open_logs_max // 8, 1))
        _refuse_foreign_files(files, path)
        self._lock = lock_folder(files, path)
        try:
            self.cluster_id, self._kept = _identity(files, path)
            self._check_kept()
            self._topics = TopicStore(files, path / "topics")
            self._marker = path / "clean-stop"
            #: Whether the last process stopped cleanly; then no log has a torn tail.
            self.clean: Final = files.exists(self._marker)
            if self.clean:
                files.remove(self._marker)
            # Even without a marker: a crash may have come between its removal and this fsync.
            files.fsync_folder(path)
            # One fsync for the folders of all logs: a crash may have come between creating one and
            # its fsync.
            if files.exists(path / "logs"):
                files.fsync_folder(path / "logs")
        except OSError as error:
            self._lock.release()
            raise DataFolderError(f"{path} cannot be used: {error}") from error
        except DataFolderError:
            self._lock.release()
            raise

    def _check_kept(self) -> None:
        """Check that no file is missing that was there at the last start.

        Raises:
            DataFolderError: one is.
        """
        for name in missing_of(self._files, self.path, self._kept):
            raise DataFolderError(
                f"{self.path / name} is missing, and was there: take it from a backup. To begin"
                f" without it, remove its name from `files` in {self.path / META_NAME}"
            )

    def note_kept(self) -> None:
        """Note durably which files the next start must find.

        Raises:
            DataFolderError: it cannot be noted.
        """
        kept = [name for name in _KEPT if self._files.exists(self.path / name)]
        if kept == self._kept:
            return
        try:
            _write_meta(self._files, self.path, self.cluster_id, kept)
        except OSError as error:
            raise DataFolderError(f"{self.path} cannot be written: {error}") from error
        self._kept = kept

    @property
    def snapshots(self) -> Path:
        """The snapshots' folder."""
        return self.path / "snapshots"

    @property
    def sequence(self) -> Path:
        """The file of the PID sequence."""
        return sequence_file(self.path)

    @property
    def names(self) -> Path:
        """The file of the bindings of names."""
        return names_file(self.path)

    @property
    def groups(self) -> Path:
        """The folder of committed offsets."""
        return self.path / "groups"

    @property
    @override
    def defaults(self) -> LogConfig:
        return self._defaults

    @override
    def is_first_service(self) -> bool:
        return False  # no other program writes here, so the logs begin with this server

    @override
    def awaited(self) -> list[Topic]:
        return []

    @override
    def topics(self) -> list[Topic]:
        """Return the topics, after removing the rest of deleted ones, and restoring lost ones.

        Raises:
            DataFolderError: a topic has a setting that this version does not know, or a value.
        """
        topics = {topic.name: topic for topic in self._topics.load()}
        for topic in self._topics.doomed():
            self._left_over[topic.name] = topic
            self._try_remove_logs(topic)
        try:
            known = self._left_over | topics
            for topic in restored_topics(self._files, self.path / "logs", known):
                self._topics.save(topic)
                topics[topic.name] = topic
        except OSError as error:
            raise DataFolderError(f"a topic's definition is not restored: {error}") from error
        for topic in topics.values():
            self._check_settings_of(topic)
        return [plain(topic) for topic in topics.values()]

    def _check_settings_of(self, topic: Topic) -> None:
        # A newer version's setting may forbid what this server would append.
        try:
            check_settings(topic.overrides)
        except SettingError as error:
            raise DataFolderError(
                f"topic {topic.name}: {error}; if a newer version wrote it, install that version"
            ) from error

    @override
    def topic_defaults(self) -> dict[str, str]:
        settings = self._topics.load_defaults()
        try:
            check_shared(settings)
        except SettingError as error:
            path = self.path / "topics" / DEFAULTS_NAME
            raise DataFolderError(f"{path} is invalid here: {error}") from error
        return settings

    @override
    def change_topic_defaults(self, change: SettingsChange) -> dict[str, str]:
        try:
            settings = change(self.topic_defaults())
        except DataFolderError as error:
            raise OSError(str(error)) from error
        self._topics.save_defaults(settings)
        return settings

    @override
    def make_topic(self, topic: Topic, first: int = 0) -> None:
        self._check_no_doubt(topic)
        if topic.name in self._left_over:
            self._remove_logs(self._left_over[topic.name])
        logs, numbers = self.path / "logs", range(first, topic.partitions)
        check_no_logs(self._files, logs, topic, numbers)
        try:
            # The logs come first: a definition without one of its logs is a loss.
            make_logs(self._files, logs, topic, numbers)
            self.save_topic(topic)
        except OSError:
            if not first:
                self._abandon(topic)
            raise

    def _check_no_doubt(self, topic: Topic) -> None:
        if topic.name in self._in_doubt:
            raise OSError(f"{topic.name}: its deletion is in doubt until the next start")

    def _abandon(self, topic: Topic) -> None:
        """Remove what is there of a topic that could not be made."""
        try:
            self._topics.drop(topic)
            self._remove_logs(topic)
        except OSError as error:
            _log.error("a topic could not be made, nor be removed; it may be there after the next"
                       " start", topic=topic.name, error=str(error))  # fmt: skip

    @override
    def save_topic(self, topic: Topic) -> None:
        config = config_of(topic, self._defaults)
        self._check_no_doubt(topic)
        self._topics.save(topic)
        try:
            write_copy(self._files, self.path / "logs" / folder_name(topic.name, 0), topic)
        except OSError as error:
            _log.error("the copy of a topic's definition is older than it; the next start replaces"
                       " it", topic=topic.name, error=str(error))  # fmt: skip
        for (name, _), log in list(self._logs.items()):
            if name == topic.name:
                log.config = config

    @override
    def delete_topic(self, topic: Topic) -> None:
        try:
            self._topics.doom(topic)
        except TopicInDoubtError as error:
            self._in_doubt.add(topic.name)
            for (name, _), log in list(self._logs.items()):
                if name == topic.name:
                    # A crash could delete the topic, with anything that is appended from now on.
                    reason = reason_for_clients(error)
                    log.stop(f"the topic's deletion is in doubt: {reason}", str(error))
            raise
        self._in_doubt.discard(topic.name)
        self._left_over[topic.name] = topic
        self._try_remove_logs(topic)

    def _try_remove_logs(self, topic: Topic) -> None:
        try:
            self._remove_logs(topic)
        except OSError as error:
            _log.error("a deleted topic's logs are still there; the next start tries again",
                       topic=topic.name, error=str(error))  # fmt: skip

    def _remove_logs(self, topic: Topic) -> None:
        logs = self.path / "logs"
        for number in range(topic.partitions):
            log = self._logs.pop((topic.name, number), None)
            folder = logs / folder_name(topic.name, number)
            if log is not None:
                log.delete()
            elif self._files.exists(folder):
                remove_tree(self._files, folder)
        if self._files.exists(logs):
            self._files.fsync_folder(logs)
        self._topics.forget(topic)
        self._left_over.pop(topic.name, None)

    @override
    def open_partition(
        self, topic: Topic, partition: int, recovery_offset: int
    ) -> EmbeddedPartitionLog:
        folder = self.path / "logs" / folder_name(topic.name, partition)
        config = config_of(topic, self._defaults)
        log = EmbeddedPartitionLog(
            self._files, folder, config, self._pool, self.open_logs, self.open_segments
        )
        self._logs[topic.name, partition] = log
        if reason := wrong_log(self._files, folder, topic, partition):
            log.stop_lost(reason, recovery_offset, str(folder))
        else:
            log.open(recovery_offset, clean=self.clean, folder_is_durable=True)
        return log

    @override
    def check_owned(self) -> None:
        if self._lock.is_lost():
            raise NotOwnerError(_LOST)

    @override
    def check_place(self) -> None:
        if self.lost:
            return
        logs = list(self._logs.values())
        if self._lock.is_lost():
            self.lost = _LOST
            for log in logs:
                log.stopped = log.stopped or _LOST
            _log.critical(f"{_LOST}: nothing is appended any more; stop the server, and put the"
                          " directory back", data=str(self.path), partitions=len(logs))  # fmt: skip
            return
        for log in logs:
            log.check_place()

    @override
    def close(self) -> None:
        """Close all logs; if a partition is stopped, the stop is not clean."""
        self.open_segments.close()
        try:
            for log in self._logs.values():
                try:
                    log.close()
                except OSError as error:
                    log.stop(f"it could not be closed: {reason_for_clients(error)}", str(error))
            if all(log.closed for log in self._logs.values()):
                write_aside(self._files, self._marker, [b""])
        finally:
            self._lock.release()

    def release(self) -> None:
        """Release the lock without closing anything, after a start that failed."""
        self._lock.release()


def sequence_file(path: Path) -> Path:
    """Return the file of the PID sequence in a data directory."""
    return path / "sequence" / "blocks"


def names_file(path: Path) -> Path:
    """Return the file of the bindings of names in a data directory."""
    return path / "sequence" / "names"


def claim_folder(files: Files, path: Path) -> None:
    """Make a data directory recognizable, before other files of the server are put into it.

    Raises:
        DataFolderError: another program uses it, or it cannot be written.
    """
    _refuse_foreign_files(files, path)
    try:
        make_durable_file(files, path / "lock")
    except OSError as error:
        raise DataFolderError(f"{path} cannot be written: {error}") from error


def lock_folder(files: Files, path: Path) -> Lock:
    """Lock a data directory; create it if it is missing.

    Raises:
        DataFolderError: another process uses it, or it cannot be written.
    """
    try:
        make_durable_folder(files, path)
        return files.lock(path / "lock", f"process {os.getpid()}")
    except BlockingIOError as error:
        raise DataFolderError(f"{path} is in use: {error}; stop that one first") from error
    except OSError as error:
        raise DataFolderError(f"{path} cannot be written: {error}") from error


def _refuse_foreign_files(files: Files, path: Path) -> None:
    """Raise for a folder that another program uses; nothing is written to it.

    Raises:
        DataFolderError: it has visible files, and none of a data directory.
    """
    try:
        names = set(files.list(path)) if files.is_folder(path) else set()
    except OSError as error:
        raise DataFolderError(f"{path} cannot be read: {error}") from error
    foreign = sorted(name for name in names - _MOUNT_NAMES if not name.startswith("."))
    if foreign and not names & _OWN_NAMES:
        raise DataFolderError(
            f"{path} has files of another program ({', '.join(foreign[:3])}); name an empty"
            " directory, or one that does not exist"
        )


def missing_of(files: Files, path: Path, kept: Iterable[str]) -> list[str]:
    """Return which files of a data directory are missing, of those that were there."""
    missing = [name for name in kept if not files.exists(path / name)]
    if files.exists(path / _KAFKA_MARK):
        return [name for name in missing if name != _ZOOKEEPER_MARK]  # moved to Kafka
    return missing


def _write_meta(files: Files, path: Path, cluster_id: str, kept: list[str]) -> None:
    content = {"format": FORMAT_VERSION, "cluster_id": cluster_id, "files": kept}
    write_aside(files, path / META_NAME, [json.dumps(content).encode()])


def _identity(files: Files, path: Path) -> tuple[str, list[str]]:
    meta = path / META_NAME
    if not files.exists(meta):
        if files.exists(path / "topics") or files.exists(path / "sequence"):
            raise DataFolderError(
                f"{path} has topics but no meta.json; take that file from a backup, or name another"
                " directory"
            )
        _write_meta(files, path, uuid.uuid4().hex[:22], [])
    identity = read_identity(files, path)
    return identity.cluster_id, identity.files


def read_identity(files: Files, path: Path) -> Identity:
    """Read the identity of a data directory.

    Raises:
        NewerFormatError: only a newer version can read the directory.
        DataFolderError: meta.json is damaged.
        OSError: meta.json is missing, or cannot be read.
    """
    meta = path / META_NAME
    try:
        content = json.loads(read_file(files, meta))
        version = int(content["format"])
        # A newer format may not have the other field.
        known = version <= FORMAT_VERSION
        cluster_id = str(content["cluster_id"]) if known else ""
        kept = [str(name) for name in content["files"]] if known else []
    except (ValueError, KeyError, TypeError) as error:
        raise DataFolderError(f"{meta} is damaged ({error}); take it from a backup") from error
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"{path} has format {version}, written by a newer version; this one reads up to"
            f" {FORMAT_VERSION}: install the newer one"
        )
    return Identity(version, cluster_id, kept)
