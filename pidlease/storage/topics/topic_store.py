"""The topics of an embedded log: a small file for each, and one with the settings of all topics."""

import json
import re
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import Files, make_durable_folder, read_file, sweep_asides, write_aside

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")
_NAME_MAX: Final = 249
_SUFFIX: Final = ".json"
#: The settings of all topics. No topic's file has this name: those have suffixes.
DEFAULTS_NAME: Final = "defaults"
#: The version of UUIDs made from a name (RFC 9562, section 5.5).
_BY_NAME: Final = 5
#: The definition of a deleted topic while its logs are being removed. Not longer than `_SUFFIX`:
#: otherwise topics with the longest names could not be deleted.
DOOMED_SUFFIX: Final = ".gone"


class TopicInDoubtError(OSError):
    """A deletion could neither be made durable nor undone."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's definition.

    Attributes:
        name: a legal Kafka topic name.
        topic_id: a random UUID, as hex; a later topic of the same name has another.
        overrides: settings that differ from the server's, by Kafka's names.
        made_again_ms: when it was created after a deleted topic of the same name, in ms since
            1970; -1: there was none. PIDs leased before that may have written to the deleted one.
        compacted: whether Kafka compacts it (`cleanup.policy`).
    """

    name: str
    topic_id: str
    partitions: int
    overrides: dict[str, str]
    made_again_ms: int = -1
    compacted: bool = False

    @classmethod
    def new(cls, name: str, partitions: int, overrides: dict[str, str] | None = None) -> "Topic":
        """Make a topic with a fresh id."""
        return cls(name, uuid.uuid4().hex, partitions, overrides or {})

    @property
    def has_own_id(self) -> bool:
        """Whether its id is random: see `is_own_id`."""
        return is_own_id(self.topic_id)


def is_own_id(topic_id: str) -> bool:
    """Return whether a topic's id is random.

    Kafka before 2.8 has no ids, so they are made from the names. A later topic of the same name
    then has the same id.
    """
    return uuid.UUID(topic_id).version != _BY_NAME


def illegal_name(name: str) -> str:
    """Return what is wrong with a topic name; empty: nothing.

    The rule is Kafka's (org.apache.kafka Topic.validate).
    """
    if not name:
        return "a topic name may not be empty"
    if name in (".", ".."):
        return "a topic name may not be '.' or '..'"
    if len(name) > _NAME_MAX:
        return f"a topic name may have {_NAME_MAX} characters at most"
    if not _LEGAL.fullmatch(name):
        return "a topic name may hold ASCII letters and digits, '.', '_' and '-' only"
    return ""


class TopicStore:
    """The topics' definitions on disk."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        make_durable_folder(files, folder)
        sweep_asides(files, folder)
        files.fsync_folder(folder)  # a crash may have come between a rename and its fsync

    def load(self) -> list[Topic]:
        """Read all topics.

        Raises:
            DataFolderError: a definition is damaged.
        """
        return [
            read_definition(self._files, self._folder / name)
            for name in self._files.list(self._folder)
            if name.endswith(_SUFFIX)
        ]

    def save(self, topic: Topic) -> None:
        """Store a topic's definition durably, instead of the former one if there is one.

        Raises:
            OSError: it is not stored.
        """
        write_definition(self._files, self._folder / (topic.name + _SUFFIX), topic)

    def drop(self, topic: Topic) -> None:
        """Remove a definition, durably, if it is there.

        Raises:
            OSError: it may still be there.
        """
        path = self._folder / (topic.name + _SUFFIX)
        if self._files.exists(path):
            self._files.remove(path)
        self._files.fsync_folder(self._folder)

    def load_defaults(self) -> dict[str, str]:
        """Read the settings of all topics, by name; empty: none was ever set.

        Raises:
            DataFolderError: the file is damaged.
        """
        path = self._folder / DEFAULTS_NAME
        if not self._files.exists(path):
            return {}
        settings = _read(self._files, path, "defaults")
        if not all(isinstance(each, str) for pair in settings.items() for each in pair):
            raise DataFolderError(f"{path} is damaged (not all is text); take it from a backup")
        return settings

    def save_defaults(self, settings: dict[str, str]) -> None:
        """Replace the settings of all topics, durably.

        Raises:
            OSError: they are not stored.
        """
        _write(self._files, self._folder / DEFAULTS_NAME, "defaults", settings)

    def doom(self, topic: Topic) -> None:
        """Delete a definition durably. `doomed` lists the topic until `forget` is called.

        Raises:
            OSError: the topic still exists.
            TopicInDoubtError: the topic may exist or not after a crash.
        """
        path, doomed = self._folder / (topic.name + _SUFFIX), self._doomed(topic)
        self._files.rename(path, doomed)
        try:
            self._files.fsync_folder(self._folder)
        except OSError as error:
            self._undo_doom(path, doomed, error)
            raise

    def _undo_doom(self, path: Path, doomed: Path, error: OSError) -> None:
        try:
            self._files.rename(doomed, path)
            self._files.fsync_folder(self._folder)
        except OSError as second:
            raise TopicInDoubtError(f"{path}: {error}; then {second}") from second

    def doomed(self) -> list[Topic]:
        """Read the deleted topics with logs that may not be removed yet.

        Raises:
            DataFolderError: a definition is damaged.
        """
        names = self._files.list(self._folder)
        return [
            read_definition(self._files, self._folder / name)
            for name in names
            if name.endswith(DOOMED_SUFFIX)
        ]

    def forget(self, topic: Topic) -> None:
        """Remove a doomed topic from the list, after its logs are gone.

        Raises:
            OSError: it is still listed.
        """
        if self._files.exists(self._doomed(topic)):
            self._files.remove(self._doomed(topic))
        self._files.fsync_folder(self._folder)

    def _doomed(self, topic: Topic) -> Path:
        return self._folder / (topic.name + DOOMED_SUFFIX)


def write_definition(files: Files, path: Path, topic: Topic) -> None:
    """Store a topic's definition in a file, durably.

    Raises:
        OSError: it is not stored.
    """
    _write(files, path, "topic", asdict(topic))


def read_definition(files: Files, path: Path) -> Topic:
    """Read a topic's definition from a file.

    Raises:
        DataFolderError: it is damaged.
    """
    try:
        return Topic(**_read(files, path, "topic"))
    except TypeError as error:
        raise DataFolderError(f"{path} is damaged ({error}); take it from a backup") from error


def _write(files: Files, path: Path, key: str, content: dict[str, Any]) -> None:
    text = json.dumps(content, sort_keys=True)
    outer = json.dumps({"crc": crc32c(text.encode()), key: text})
    write_aside(files, path, [outer.encode()])


def _read(files: Files, path: Path, key: str) -> dict[str, Any]:
    try:
        outer = json.loads(read_file(files, path))
        text = outer[key]
        if crc32c(text.encode()) != outer["crc"]:
            raise DataFolderError(f"{path} is damaged (checksum); take it from a backup")
        return dict(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataFolderError(f"{path} is damaged ({error}); take it from a backup") from error
