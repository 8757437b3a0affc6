"""The journal of committed offsets: one file of lines.

It is written anew when it has grown to several times the size of what it holds.

Nothing here knows of the event loop; all of it blocks, and is called by one at a time.
"""

import errno
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import Files, OpenFile, make_durable_file, write_aside
from pidlease.storage.offsets.journal_lines import JournalLine, journal_lines
from pidlease.storage.offsets.journal_records import Mark, Record, encode_line

#: The file, in a folder of its own.
JOURNAL_NAME: Final = "offsets"
#: What is written at once when all of it is written anew.
_CHUNK_BYTES: Final = 1 << 20

_log = structlog.get_logger(__name__)


class OffsetJournal:
    """The file.

    Parameters:
        files: the file system.
        path: the file; its folder is this one's alone.
        durable: whether each append is fsynced.
    """

    def __init__(self, files: Files, path: Path, *, durable: bool) -> None:
        self._files = files
        self._path = path
        self._durable = durable
        #: Up to here the file is good; the rest must be cut before anything is written.
        self.length = 0
        #: Up to here it is on the disk.
        self._synced = 0
        #: What a crash or a failed write left after the good part.
        self._tail = False
        #: An fsync failed, and Linux reports that once: what it should have saved may be lost, or
        #: what was cut may come back, whatever the next one says. Only `replace` ends that.
        self.doubtful = False
        #: Length of the new file, where it is not known whether its name came to stand.
        self._replacing = -1

    def open(self) -> Iterator[Record]:
        """Make the file where it is missing, and read it; what a crash left of a write is cut.

        Yields:
            What stands in it, in order.

        Raises:
            DataFolderError: it cannot be read, or something in its middle is damaged.
        """
        try:
            make_durable_file(self._files, self._path)
            file = self._files.open(self._path)
            try:
                yield from self._read(file)
                file.fsync()  # what was read is what will be answered: it is not to be lost again
            finally:
                file.close()
        except OSError as error:
            raise DataFolderError(f"{self._path}: {error}") from error
        except ValueError as error:
            raise DataFolderError(f"{self._path}: {error}; install the newer version") from error
        self._synced = self.length

    def _read(self, file: OpenFile) -> Iterator[Record]:
        bad: JournalLine | None = None
        for each in journal_lines(file):
            if bad is not None:
                # Any part of a write may be missing that a power cut tore. But a write after
                # it would have known that it was durable.
                if each.line is not None and each.line.synced > bad.start:
                    raise DataFolderError(
                        f"{self._path}: line {bad.number} is damaged (byte {bad.start}); take the"
                        " file from a backup, or move it away: then no group has an offset"
                    )
            elif each.line is None:
                bad = each
            else:
                yield each.line.record
                self.length = each.end
        if bad is not None:
            self._tail = True
            _log.warning("the end of the offsets' journal is not intact: cut", path=str(self._path),
                         line=bad.number, bytes=file.size() - self.length)  # fmt: skip

    @property
    def unsettled(self) -> bool:
        """Whether `mend` or `replace` has something to do that should not wait for long."""
        return self._tail or self.doubtful

    @property
    def must_be_replaced(self) -> bool:
        """Whether nothing can be added before `replace`."""
        return self._durable and self.doubtful

    def append(self, records: Iterable[Record]) -> None:
        """Add records, all of them or none.

        Raises:
            OSError: none of them counts; where `unsettled` says so, not before `mend` or `replace`.
        """
        if self.must_be_replaced:
            raise OSError(errno.EIO, "an fsync failed: it is to be written anew", str(self._path))
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
            # They may stand there whole, and a start would count them: not once that is refused.
            with suppress(OSError):  # the caller gets the first failure; `mend` goes on
                self._cut_tail(file)
            raise
        self._tail = False
        self.length += sum(map(len, lines))
        if self._durable:
            self._synced = self.length

    def mend(self) -> None:
        """Cut what a failed write left, if that has failed, too.

        Raises:
            OSError: it may still be there, and count after a crash.
        """
        if self._tail:
            file = self._files.open(self._path)
            try:
                self._cut_tail(file)
            finally:
                file.close()

    def flush(self) -> None:
        """Return when all that was added is on the disk.

        Raises:
            OSError: it may not be; once it has failed, only `replace` makes up for it.
        """
        if self.doubtful:
            raise OSError(errno.EIO, "an fsync failed: it is to be written anew", str(self._path))
        if self._synced == self.length:
            return
        file = self._files.open(self._path)
        try:
            self._fsync(file)
        finally:
            file.close()

    def close(self) -> None:
        """Make all of it durable, and say so in the file: then damage cannot pass for a torn write.

        Raises:
            OSError: it may not be durable.
        """
        self.mend()
        self.flush()
        if self.length:
            self.append([Mark()])
            self.flush()

    def replace(self, records: Iterable[Record]) -> None:
        """Write the file anew, durably: these records, and nothing else.

        Raises:
            OSError: the file is as it was; more can be added to it.
        """
        if self._replacing >= 0:
            self._settle_name()
        file = self._files.open(self._path)
        try:
            # So that its size differs from the new one's, should it be in doubt which is there.
            self._cut_tail(file)
        finally:
            file.close()
        chunks = _Chunks(records)
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
            # Or a power cut may bring the tail back after a shorter write.
            self._fsync(file)
            self._tail = False

    def _fsync(self, file: OpenFile) -> None:
        """Make all of the good part durable, and that nothing comes after it."""
        try:
            file.fsync()
        except OSError:
            self.doubtful = True
            raise
        if not self.doubtful:
            self._synced = self.length

    def _settle_name(self) -> None:
        """Find out which file has the name, once it is sure to stay. Both say the same."""
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
    """Records as lines, in chunks; the last line is a mark for all before it.

    Attributes:
        size: in bytes, of the chunks so far.
        complete: whether all of them were taken.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = records
        self.size = 0
        self.complete = False

    def __iter__(self) -> Iterator[bytes]:
        chunk = bytearray()
        for record in self._records:
            chunk += encode_line(record)
            if len(chunk) >= _CHUNK_BYTES:
                self.size += len(chunk)
                yield bytes(chunk)
                chunk.clear()
        if self.size or chunk:
            chunk += encode_line(Mark(), self.size + len(chunk))
            self.size += len(chunk)
            yield bytes(chunk)
        self.complete = True
