"""The writers' producer ids in a file, for a server without ZooKeeper.

One line for each id. Ids are added seldom: once for a partition, and again when Kafka has forgotten
its transactional id.
"""

import threading
from pathlib import Path
from typing import Final

from typing_extensions import override

from pidlease.coordination.writer_ids import WriterIds, WriterIdsError, WriterOf
from pidlease.storage.checked_lines import CheckedFile
from pidlease.storage.files import Files


class FileWriterIds(WriterIds):
    """The writers' producer ids in a file.

    Parameters:
        path: the file; the first id creates it.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._file: Final = CheckedFile(files, path)
        self._lock = threading.Lock()

    @override
    def all(self) -> dict[int, WriterOf]:
        with self._lock:
            return self._read()

    @override
    def add(self, pid: int, writer_of: WriterOf) -> None:
        with self._lock:
            known = self._read()
            if pid in known:
                return
            known[pid] = writer_of
            try:
                self._file.replace({"pid": each, **of._asdict()} for each, of in known.items())
            except OSError as error:
                raise WriterIdsError(str(error)) from error

    def _read(self) -> dict[int, WriterOf]:
        try:
            rows = self._file.rows()
        except OSError as error:
            raise WriterIdsError(str(error)) from error
        return {
            int(row["pid"]): WriterOf(*(row[name] for name in WriterOf._fields)) for row in rows
        }
