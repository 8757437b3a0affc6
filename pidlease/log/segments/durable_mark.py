"""The offset up to which a partition is known to be durable: a hint beside the log.

After each fsync of the log the offset is written to a small file, which itself is not fsynced. The
offset is true whenever it can be read, because it is written after the fsync. After a kill it is
exact, after a power cut a little old. Without it, a damaged batch near the end looks like a torn
append, and cutting that would lose acknowledged records.
"""

from pathlib import Path
from typing import Final

import structlog

from pidlease.log.segments.offset_file import decode_offset, encode_offset
from pidlease.storage.files import Files, OpenFile, read_file

#: The file of a partition's mark.
MARK_NAME: Final = "durable"

_log = structlog.get_logger(__name__)


class DurableMark:
    """Reads and writes the mark of one partition.

    Parameters:
        files: the file system.
        folder: the partition's folder.
    """

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._path = folder / MARK_NAME
        self._file: OpenFile | None = None
        self._failed = False
        self._noted = 0

    def read(self) -> int:
        """Return the offset up to which the log was durable; 0: it is unknown."""
        if not self._files.exists(self._path):
            return 0
        return decode_offset(read_file(self._files, self._path)) or 0

    def write(self, offset: int) -> None:
        """Note that the log is durable up to an offset. A failure loses nothing but the hint."""
        if self._failed or offset <= self._noted:
            return
        try:
            if self._file is None:
                self._file = self._files.open(self._path, create=True)
            self._file.write_at([encode_offset(offset)], 0)
            self._noted = offset
        except OSError as error:
            self._failed = True
            _log.warning("durable mark not written", path=str(self._path), error=str(error))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
