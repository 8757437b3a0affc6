"""The journal of committed offsets: one file of checked lines.

The file is rewritten when it is several times as large as the offsets that it holds.

All methods block, and are called by one thread at a time.
"""

import errno
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from pidlease.storage.checked_lines import check_header, header_of, make_lines_file
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import Files, OpenFile, write_aside
from pidlease.storage.offsets.journal_lines import JournalLine, journal_lines
from pidlease.storage.offsets.journal_records import Mark, Record, encode_line

#: The file's name; it has a folder of its own.
JOURNAL_NAME: Final = "offsets"
#: Bytes written at once by a rewrite.
_CHUNK_BYTES: Final = 1 << 20

_log = structlog.get_logger(__name__)


class OffsetJournal:
    """The journal's file.

    Parameters:
        path: the file, alone in its folder.
        durable: fsync each append.
    """

    def __init__(self, files: Files, path: Path, *, durable: bool) -> None:
        self._files = files
        self._path = path
        self._durable = durable
        #: The length of the valid part; anything after it is cut before the next write.
        self.length = 0
        #: The length of the durable part.
        self._synced = 0
        #: A crash or a failed write may have left bytes after the valid part.
        self._tail = False
        #: An fsync failed. Linux reports that only once: written lines may be lost, and cut lines
        #: may return, even if the next fsync succeeds. Only `replace` resolves it.
        self.doubtful = False
        #: The new file's length, if it is unknown whether its rename is durable; otherwise -1.
        self._replacing = -1

    def open(self) -> Iterator[Record]:
        """Create the file if it is missing, and read it. A torn last write is cut later.

        Yields:
            The records, in order.

        Raises:
            DataFolderError: the file cannot be read, or is damaged before its end.
        """
        try:
            make_lines_file(self._files, self._path)
            file = self._files.open(self._path)
            try:
                yield from self._read(file)
                # Clients will get these offsets: a crash must not take them back.
                self._rewrite(file)
                file.fsync()
            finally:
                file.close()
        except OSError as error:
            raise DataFolderError(f"{self._path}: {error}") from error
        except ValueError as error:
            raise DataFolderError(f"{self._path}: {error}; install the newer version") from error
        self._synced = self.length

    def _read(self, file: OpenFile) -> Iterator[Record]:
        bad: JournalLine | None = None
        begin = file.read_at(len(header_of(self._path)), 0)
        self.length = self._synced = check_header(self._path, begin)
        for each in journal_lines(file, self.length):
            if bad is not None:
                # A power cut may have lost any part of the last write. But a later write would
                # say in `synced` that the bad line had been durable: then it is damage.
                if each.line is not None and each.line.synced > bad.start:
                    raise DataFolderError(
                        f"{self._path}: line {bad.number} is damaged (byte {bad.start}); take the"
                        " file from a backup; or move it away, and remove its name from `files` in"
                        " meta.json: then no group has an offset"
                    )
            elif each.line is None:
                bad = each
            else:
                yield each.line.record
                self.length = each.end
                self._synced = max(self._synced, each.line.synced)
        if bad is not None:
            self._tail = True
            _log.warning("the offsets' journal has a torn end; cutting it", path=str(self._path),
                         line=bad.number, bytes=file.size() - self.length)  # fmt: skip

    def _rewrite(self, file: OpenFile) -> None:
        """Write the lines again that may not be durable.

        After a failed fsync, a further one succeeds without writing them.
        """
        for position in range(self._synced, self.length, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, self.length - position)
            file.write_at([file.read_at(size, position)], position)

    @property
    def unsettled(self) -> bool:
        """Whether `mend` or `replace` must be called soon."""
        return self._tail or self.doubtful

    @property
    def must_be_replaced(self) -> bool:
        """Whether `replace` must be called before the next `append`."""
        return self._durable and self.doubtful

    def append(self, records: Iterable[Record]) -> None:
        """Append records, all of them or none.

        Raises:
            OSError: none was appended. If `unsettled`, call `mend` or `replace`: until then a
                crash may bring the records back.
        """
        if self.must_be_replaced:
            raise OSError(errno.EIO, "an fsync failed: the file must be rewritten", str(self._path))
        if self._replacing >= 0:
            self._settle_name()
        file = self._files.open(self._path)
        try:
            self._cut_tail(file)
            self._write(file, records)
        finally:
            file.close()

    def _write(self, file: OpenFile, records: Iterable[Record]) -> None:
        synced = self.length if self._durable else self._synced
        lines = [
            encode_line(record, 0 if number else synced) for number, record in enumerate(records)
        ]
        self._tail = True
        try:
            file.write_at(lines, self.length)
            if self._durable:
                file.fsync()
        except OSError:
            # All lines may be in the file, and a start would count them; but the write has failed.
            with suppress(OSError):  # the caller gets the first failure; `mend` tries again
                self._cut_tail(file)
            raise
        self._tail = False
        self.length += sum(map(len, lines))
        if self._durable:
            self._synced = self.length

    def mend(self) -> None:
        """Cut the bytes of a failed write, if the write could not cut them itself.

        Raises:
            OSError: the bytes may still be there, and count after a crash.
        """
        if self._tail:
            file = self._files.open(self._path)
            try:
                self._cut_tail(file)
            finally:
                file.close()

    def flush(self) -> None:
        """Make all appended records durable.

        Raises:
            OSError: some may not be durable; after a failed fsync only `replace` helps.
        """
        if self.doubtful:
            raise OSError(errno.EIO, "an fsync failed: the file must be rewritten", str(self._path))
        if self._synced == self.length:
            return
        file = self._files.open(self._path)
        try:
            self._fsync(file)
        finally:
            file.close()

    def close(self) -> None:
        """Make the file durable, and end it with a mark: then damage cannot look like a torn write.

        Raises:
            OSError: some of it may not be durable.
        """
        self.mend()
        self.flush()
        if self.length > len(header_of(self._path)):
            self.append([Mark()])
            self.flush()

    def replace(self, records: Iterable[Record]) -> None:
        """Rewrite the file durably, with these records only.

        Raises:
            OSError: the file still has its former content, and can be appended to.
        """
        if self._replacing >= 0:
            self._settle_name()
        file = self._files.open(self._path)
        try:
            # The two files must differ in size: `_settle_name` distinguishes them by it.
            self._cut_tail(file)
        finally:
            file.close()
        chunks = _Chunks(header_of(self._path), records)
        try:
            write_aside(self._files, self._path, chunks)
        except OSError:
            if chunks.complete:
                self._replacing = chunks.size
            raise
        self.length = self._synced = chunks.size
        self.doubtful = False

    def _cut_tail(self, file: OpenFile) -> None:
        if self._tail:
            file.truncate(self.length)
            # Otherwise a power cut may bring the tail back after a shorter write.
            self._fsync(file)
            self._tail = False

    def _fsync(self, file: OpenFile) -> None:
        """Make the valid part durable, and the cut after it."""
        try:
            file.fsync()
        except OSError:
            self.doubtful = True
            raise
        if not self.doubtful:
            self._synced = self.length

    def _settle_name(self) -> None:
        """Find out which of two files has the name, durably. Both hold the same offsets."""
        self._files.fsync_folder(self._path.parent)
        file = self._files.open_readonly(self._path)
        try:
            size = file.size()
        finally:
            file.close()
        if size == self._replacing != self.length:
            self.length = self._synced = size
            self.doubtful = False
        self._replacing = -1


class _Chunks:
    """The header and the lines of records in chunks, ending with a mark that covers all of them.

    Attributes:
        size: bytes in the chunks so far.
        complete: whether all chunks were taken.
    """

    def __init__(self, header: bytes, records: Iterable[Record]) -> None:
        self._header = header
        self._records = records
        self.size = 0
        self.complete = False

    def __iter__(self) -> Iterator[bytes]:
        chunk = bytearray(self._header)
        for record in self._records:
            chunk += encode_line(record)
            if len(chunk) >= _CHUNK_BYTES:
                self.size += len(chunk)
                yield bytes(chunk)
                chunk.clear()
        chunk += encode_line(Mark(), self.size + len(chunk))
        self.size += len(chunk)
        yield bytes(chunk)
        self.complete = True
