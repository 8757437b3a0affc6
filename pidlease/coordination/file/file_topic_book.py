"""What topics take in a file, for a server without ZooKeeper (see `topic_book`).

One line for each topic of which something is set, and one for all of them (see `checked_file`).
"""

import threading
from pathlib import Path
from typing import Final

from pidlease.coordination.topic_book import TopicBookError, TopicSettings
from pidlease.storage.checked_file import CheckedFile
from pidlease.storage.files import Files

#: In the place of a topic's id.
_SHARED: Final = ""


class FileTopicBook:
    """See the module's text, and `topic_book.TopicBook`.

    Parameters:
        files: the file system.
        path: the file; it is made with the first change.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._file: Final = CheckedFile(files, path)
        self._lock = threading.Lock()

    def load(self) -> TopicSettings:
        """See `TopicBook`."""
        with self._lock:
            own = {topic_id: settings for topic_id, (_, settings) in self._read().items()}
        return TopicSettings(own.pop(_SHARED, {}), own)

    def save_shared(self, settings: dict[str, str]) -> None:
        """See `TopicBook`."""
        self.save_own("", _SHARED, settings)

    def save_own(self, topic: str, topic_id: str, settings: dict[str, str]) -> None:
        """See `TopicBook`."""
        with self._lock:
            known = self._read()
            known[topic_id] = (topic, settings)
            try:
                self._file.replace(
                    {"id": each, "topic": name, "settings": set_}
                    for each, (name, set_) in known.items()
                    if set_
                )
            except OSError as error:
                raise TopicBookError(str(error)) from error

    def _read(self) -> dict[str, tuple[str, dict[str, str]]]:
        try:
            return {row["id"]: (row["topic"], row["settings"]) for row in self._file.rows()}
        except OSError as error:
            raise TopicBookError(str(error)) from error
