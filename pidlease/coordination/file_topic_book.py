"""What topics take in a file, for a server without ZooKeeper (see `topic_book`).

One line for each topic of which something is set, and one for all of them, with a CRC (see
`checked_lines`); the file is written aside with each change.
"""

import threading
from pathlib import Path
from typing import Final

from pidlease.coordination.topic_book import TopicBookError, TopicSettings
from pidlease.storage.checked_lines import decode_line, encode_line
from pidlease.storage.files import Files, make_durable_folder, read_file, write_aside

#: In the place of a topic's id.
_SHARED: Final = ""


class FileTopicBook:
    """See the module's text, and `topic_book.TopicBook`.

    Parameters:
        files: the file system.
        path: the file; it is made with the first change.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files: Final = files
        self._path: Final = path
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
            content = b"".join(
                encode_line({"id": each, "topic": name, "settings": set_})
                for each, (name, set_) in known.items()
                if set_
            )
            try:
                make_durable_folder(self._files, self._path.parent)
                write_aside(self._files, self._path, [content])
            except OSError as error:
                raise TopicBookError(f"{self._path}: {error}") from error

    def _read(self) -> dict[str, tuple[str, dict[str, str]]]:
        try:
            if not self._files.exists(self._path):
                return {}
            content = read_file(self._files, self._path)
        except OSError as error:
            raise TopicBookError(f"{self._path}: {error}") from error
        found = {}
        for number, line in enumerate(content.splitlines(), 1):
            fields = decode_line(line)
            if fields is None:
                raise TopicBookError(
                    f"{self._path}: line {number} is damaged; take the file from a backup"
                )
            found[fields["id"]] = (fields["topic"], fields["settings"])
        return found
