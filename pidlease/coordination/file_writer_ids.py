"""The writers' producer ids in a file, for a server without ZooKeeper (see `writer_ids`).

One line for each, with a CRC (see `checked_lines`); the file is written aside with each that comes,
which is seldom: once for a partition, and again when Kafka has forgotten its transactional id.
"""

import threading
from pathlib import Path
from typing import Final

from pidlease.coordination.writer_ids import WriterIdsError, WriterOf
from pidlease.storage.checked_lines import decode_line, encode_line
from pidlease.storage.files import Files, make_durable_folder, read_file, write_aside


class FileWriterIds:
    """See the module's text, and `writer_ids.WriterIds`.

    Parameters:
        files: the file system.
        path: the file; it is made with the first id.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files: Final = files
        self._path: Final = path
        self._lock = threading.Lock()

    def all(self) -> dict[int, WriterOf]:
        """See `WriterIds`."""
        with self._lock:
            return self._read()

    def add(self, pid: int, writer_of: WriterOf) -> None:
        """See `WriterIds`."""
        with self._lock:
            known = self._read()
            if pid in known:
                return
            known[pid] = writer_of
            content = b"".join(
                encode_line({"pid": each, **of._asdict()}) for each, of in known.items()
            )
            try:
                make_durable_folder(self._files, self._path.parent)
                write_aside(self._files, self._path, [content])
            except OSError as error:
                raise WriterIdsError(f"{self._path}: {error}") from error

    def _read(self) -> dict[int, WriterOf]:
        try:
            if not self._files.exists(self._path):
                return {}
            content = read_file(self._files, self._path)
        except OSError as error:
            raise WriterIdsError(f"{self._path}: {error}") from error
        found = {}
        for number, line in enumerate(content.splitlines(), 1):
            fields = decode_line(line)
            if fields is None:
                raise WriterIdsError(
                    f"{self._path}: line {number} is damaged; take the file from a backup"
                )
            found[int(fields["pid"])] = WriterOf(*(fields[name] for name in WriterOf._fields))
        return found
