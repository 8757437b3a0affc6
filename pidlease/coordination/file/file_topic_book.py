"""The topics' settings in a file, for a server without ZooKeeper.

One line for each topic with settings, and one for the settings of all topics.
"""

import threading
from pathlib import Path
from typing import Final

from typing_extensions import override

from pidlease.coordination.topic_book import (
    ALL_TOPICS,
    TopicBook,
    TopicBookError,
    TopicSettings,
)
from pidlease.storage.checked_lines import CheckedFile
from pidlease.storage.files import Files
from pidlease.storage.topics.topic_settings import SettingsChange


class FileTopicBook(TopicBook):
    """The topics' settings in a file.

    Parameters:
        path: the file; the first change creates it.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._file: Final = CheckedFile(files, path)
        self._lock = threading.Lock()

    @override
    def version(self) -> object:
        return None  # only this server changes the file

    @override
    def load(self) -> TopicSettings:
        with self._lock:
            own = {topic_id: settings for topic_id, (_, settings) in self._read().items()}
        return TopicSettings(own.pop(ALL_TOPICS, {}), own)

    @override
    def change(self, topic: str, topic_id: str, change: SettingsChange) -> dict[str, str]:
        with self._lock:
            known = self._read()
            _, before = known.get(topic_id, ("", {}))
            settings = change(dict(before))
            known[topic_id] = (topic, settings)
            try:
                self._file.replace(
                    {"id": each, "topic": name, "settings": set_}
                    for each, (name, set_) in known.items()
                    if set_
                )
            except OSError as error:
                raise TopicBookError(str(error)) from error
        return settings

    def _read(self) -> dict[str, tuple[str, dict[str, str]]]:
        try:
            return {row["id"]: (row["topic"], row["settings"]) for row in self._file.rows()}
        except OSError as error:
            raise TopicBookError(str(error)) from error
