"""How far a partition is known to be durable: a hint beside the log, never waited for.

After each fsync the offset is noted in a small file that is itself not fsynced. What it says is
true whenever it is there: it was written behind the fsync. After a kill it is exact, after a
power cut a little old. Without it, a damaged batch near the end could not be told from a torn
append, and cutting it would lose what was acknowledged.
"""

import struct
from pathlib import Path
from typing import Final

import structlog
from crc32c import crc32c

from pidlease.storage.files import Files, OpenFile

_OFFSET: Final = struct.Struct(">q")
_MARK: Final = struct.Struct(">qI")

_log = structlog.get_logger(__name__)


class DurableMark:
    """The mark of one partition.

    Parameters:
        files: the file system.
        folder: the partition's folder.
    """

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._path = folder / "durable"
        self._file: OpenFile | None = None
        self._failed = False

    def read(self) -> int:
        """The offset up to which the log was durable; 0 where nothing is known."""
        if not self._files.exists(self._path):
            return 0
        file = self._files.open_readonly(self._path)
        try:
            content = file.read_at(_MARK.size, 0)
        finally:
            file.close()
        if len(content) != _MARK.size:
            return 0
        offset, crc = _MARK.unpack(content)
        return int(offset) if crc32c(_OFFSET.pack(offset)) == crc else 0

    def write(self, offset: int) -> None:
        """Note that the log is durable up to an offset. A failure costs nothing but the hint."""
        if self._failed:
            return
        try:
            if self._file is None:
                self._file = self._files.open(self._path, create=True)
            self._file.write_at([_MARK.pack(offset, crc32c(_OFFSET.pack(offset)))], 0)
        except OSError as error:
            self._failed = True
            _log.warning("durable mark not written", path=str(self._path), error=str(error))

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
