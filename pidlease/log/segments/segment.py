"""One segment of a partition: NNNNNNNNNNNNNNNNNNNN.log, and its two sparse indexes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from pidlease.core.buffer import Buffer
from pidlease.kafka.records.record_batch import BatchHeader
from pidlease.log.segments import sparse_index
from pidlease.log.segments.scan import BrokenBatchError, Rewrite, is_torn, scan, scan_headers
from pidlease.log.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY, Indexer
from pidlease.storage.errors import DamagedLogError, is_unreadable
from pidlease.storage.files import Files, OpenFile

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_SUFFIX: Final = ".timeindex"
SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_SUFFIX)

_log = structlog.get_logger(__name__)


def segment_stem(base_offset: int) -> str:
    """Return the stem of a segment's file names: its base offset in twenty digits."""
    return f"{base_offset:020d}"


def base_offset_of(name: str) -> int | None:
    """Return the base offset in the name of a .log file; None for any other name."""
    stem, dot, suffix = name.partition(".")
    if dot + suffix != LOG_SUFFIX or len(stem) != 20 or not stem.isdecimal():
        return None
    return int(stem)


class Placed(NamedTuple):
    """A batch to append, with its offset in the log."""

    data: Buffer
    header: BatchHeader
    base_offset: int


class SegmentFiles:
    """Names a segment's files, reads from them and removes them; holds no file open.

    Parameters:
        files: the file system.
        folder: the partition's folder.
        base_offset: the offset of the segment's first record.
    """

    def __init__(self, files: Files, folder: Path, base_offset: int) -> None:
        self.files = files
        self.folder = folder
        self.base_offset: Final = base_offset
        self._stem = segment_stem(base_offset)

    def path(self, suffix: str) -> Path:
        """Return the path of one of its files."""
        return self.folder / (self._stem + suffix)

    @contextmanager
    def reading(self, suffix: str, keep: "Keep | None" = None) -> Iterator[OpenFile]:
        """Open one of its files for reading.

        Parameters:
            keep: takes the file after the reading, and returns whether it did.
        """
        file, kept = self.files.open_readonly(self.path(suffix)), False
        try:
            yield file
            kept = keep is not None and keep(self, file)
        finally:
            if not kept:
                file.close()

    def log_size(self) -> int:
        """Return the size of the .log, in bytes."""
        with self.reading(LOG_SUFFIX) as file:
            return file.size()

    def remove(self) -> None:
        """Remove its .log, after making earlier removals durable.

        So the oldest segment is gone first even after a power cut; otherwise the log could have a
        gap.

        Raises:
            OSError: the .log still exists.
        """
        self.files.fsync_folder(self.folder)
        self.files.remove(self.path(LOG_SUFFIX))

    def remove_indexes(self) -> None:
        """Remove the indexes of a removed .log; the next start removes any that are left."""
        for suffix in (INDEX_SUFFIX, TIME_SUFFIX):
            with suppress(OSError):
                self.files.remove(self.path(suffix))

    def rewrite(self, offset: int) -> None:
        """Make its batches from an offset on durable, even after an fsync that failed.

        Raises:
            OSError: they may not be durable.
        """
        log = self.files.open(self.path(LOG_SUFFIX))
        try:
            rewrite, end = Rewrite(log), log.size()
            with suppress(BrokenBatchError):  # the replay finds it, too, and stops the partition
                for batch in scan(log, 0, end):
                    if batch.header.last_offset >= offset:
                        rewrite.add(batch)
            rewrite.finish()
            log.fsync()
        finally:
            log.close()

    def position_of(self, offset: int, log: OpenFile, end: int) -> int:
        """Return the position of the batch that contains an offset, or else of the next batch.

        Parameters:
            offset: the offset to find.
            log: the segment's open .log.
            end: the position up to which the .log may be read.

        Raises:
            BrokenBatchError: a header before the batch is invalid.
        """
        for position, header in scan_headers(log, self._floor(offset, log, end), end):
            if header.last_offset >= offset:
                return position
        return end

    def _floor(self, offset: int, log: OpenFile, end: int) -> int:
        """Return a position at or before an offset: by the index if it fits the log, else 0."""
        try:
            with self.reading(INDEX_SUFFIX) as index:
                entry = sparse_index.floor_entry(index, OFFSET_ENTRY, offset - self.base_offset)
        except FileNotFoundError:
            entry = None
        if entry is None:
            return 0
        relative, position = entry
        if 0 <= position < end:
            with suppress(BrokenBatchError):
                _, header = next(scan_headers(log, position, end))
                if header.last_offset == self.base_offset + relative:
                    return position
        _log.warning("index does not fit its log; reading from the segment's start",
                     path=str(self.path(INDEX_SUFFIX)), entry=entry)  # fmt: skip
        return 0

    @contextmanager
    def telling_damage(self) -> Iterator[None]:
        """Add the file to the error of a batch that is not intact.

        Raises:
            DamagedLogError: a batch is not intact.
        """
        try:
            yield
        except BrokenBatchError as error:
            path = self.path(LOG_SUFFIX)
            raise DamagedLogError(path, error.position, str(error)) from None

    def max_timestamp(self) -> int:
        """Return the largest timestamp of a sealed segment, in ms; -1: no record has one.

        Raises:
            DamagedLogError: a batch is not intact, so the timestamp is unknown.
        """
        try:
            with self.reading(TIME_SUFFIX) as index:
                last = sparse_index.last_entry(index, TIME_ENTRY)
        except FileNotFoundError:
            last = None
        with self.reading(LOG_SUFFIX) as log, self.telling_damage():
            # The index may have lost its end, so read the batches after its last entry, too.
            end, begin = log.size(), 0
            if last is not None and self.is_true_time(last):
                begin = self.position_of(self.base_offset + last[1], log, end)
            return self.max_timestamp_between(log, begin, end)

    def modified_ms(self) -> int:
        """Return when its .log was last written to, in ms since 1970."""
        with self.reading(LOG_SUFFIX) as log:
            return log.modified_ms()

    @staticmethod
    def max_timestamp_between(log: OpenFile, begin: int, end: int) -> int:
        """Return the largest timestamp of the batches between two positions; -1: there is none."""
        headers = scan_headers(log, begin, end)
        return max((header.max_timestamp for _, header in headers), default=-1)

    def is_true_time(self, entry: tuple[int, int]) -> bool:
        """Whether a .timeindex entry has the timestamp of the batch that it names."""
        timestamp, relative = entry
        with self.reading(LOG_SUFFIX) as log, suppress(BrokenBatchError):
            end = log.size()
            position = self.position_of(self.base_offset + relative, log, end)
            if position < end:
                _, header = next(scan_headers(log, position, end))
                return header.max_timestamp == timestamp
        return False


#: Keeps an open .log; False: the caller closes it.
Keep = Callable[[SegmentFiles, OpenFile], bool]


class ActiveSegment:
    """Appends to the last segment of a partition.

    Not thread-safe: one append at a time. `size` and `next_offset` change only after an append
    has succeeded.
    """

    def __init__(self, names: SegmentFiles) -> None:
        self.names = names
        self.size = 0
        self.next_offset = names.base_offset
        self.indexer = Indexer(names.base_offset)
        self._log: OpenFile | None = None
        self._indexes: dict[str, tuple[OpenFile, int]] = {}
        #: The indexes that may differ from what is on the disk.
        self._unflushed_indexes: set[str] = set()
        self._index_failed = False

    def create(self) -> None:
        """Create its .log, durably."""
        self._start_indexes(0, 0)
        self._log = self.names.files.open(self.names.path(LOG_SUFFIX), create=True)
        self._log.truncate(0)
        self.names.files.fsync_folder(self.names.folder)

    @property
    def log(self) -> OpenFile:
        """The open .log."""
        if self._log is None:
            self._log = self.names.files.open(self.names.path(LOG_SUFFIX))
        return self._log

    def write(self, batches: Sequence[Placed], *, fsync: bool) -> None:
        """Append batches. None of them is in the log before this returns.

        Raises:
            OSError: the append failed, but the file may be longer now; `cut` restores it.
        """
        self.log.write_at([batch.data for batch in batches], self.size)
        if fsync:
            self.log.fsync()
        size, next_offset = self.size, self.next_offset
        try:
            for batch in batches:
                self._index(batch.header, batch.base_offset, size)
                size += batch.header.size
                next_offset = batch.base_offset + batch.header.records
        except Exception:
            self._index_failed = True  # it may have entries of this append
            raise
        self.size, self.next_offset = size, next_offset

    def cut(self) -> None:
        """Remove all bytes of a failed append.

        Raises:
            OSError: some bytes may be left.
        """
        self.log.truncate(self.size)
        self.log.fsync()

    def seal(self) -> None:
        """Make the segment durable, with complete indexes or empty ones."""
        self.log.fsync()
        self._write_index(TIME_SUFFIX, self.indexer.time_entry())
        if self._index_failed:
            self._start_indexes(0, 0)  # an empty index is better than one that looks complete
        self.fsync_indexes()

    def fsync_indexes(self) -> None:
        """Make the open indexes durable, where they have changed."""
        for suffix, (file, _) in self._indexes.items():
            if suffix in self._unflushed_indexes:
                file.fsync()
                self._unflushed_indexes.discard(suffix)

    def close(self) -> None:
        """Close the files."""
        for file, _ in self._indexes.values():
            file.close()
        self._indexes.clear()
        if self._log is not None:
            self._log.close()
            self._log = None

    def recover(self, recovery_offset: int, *, clean: bool, durable: int = 0) -> int:
        """Find the end of the last segment after a stop, and cut off a torn tail.

        Parameters:
            recovery_offset: the offset up to which the log is known to be durable.
            clean: whether the log was closed properly, so that there can be no torn tail.
            durable: the offset up to which an fsync of the log has succeeded; 0: it is unknown.

        Returns:
            How many bytes were cut.

        Raises:
            DamagedLogError: acknowledged bytes are no longer intact.
        """
        size = self.log.size()
        try:
            trusted = self._trusted(recovery_offset, size)
        except (BrokenBatchError, OSError) as error:
            if not isinstance(error, BrokenBatchError) and not is_unreadable(error):
                raise
            trusted = 0, 0  # the scan of the whole segment finds it, and says where
            self.size, self.next_offset = 0, self.names.base_offset
        self._start_indexes(*trusted)
        if not clean:
            # Their entries may be in the page cache only.
            self._unflushed_indexes |= {
                suffix for suffix, (_, length) in self._indexes.items() if length
            }
        rewrite = Rewrite(self.log)
        try:
            for batch in scan(self.log, self.size, size, self.next_offset):
                if not clean and batch.header.last_offset >= recovery_offset:
                    rewrite.add(batch)
                self._index(batch.header, batch.header.base_offset, self.size)
                self.size += batch.header.size
                self.next_offset = batch.header.last_offset + 1
        except BrokenBatchError as error:
            durable = clean or self.next_offset < recovery_offset
            if durable or not is_torn(self.log, self.size, size, self.next_offset):
                path = self.names.path(LOG_SUFFIX)
                raise DamagedLogError(path, error.position, str(error)) from None
            self.cut()
        if not clean and self.next_offset != durable:
            # The log's end may be in the page cache only. It counts now, so it must be on the disk.
            rewrite.finish()
            self.log.fsync()
        return size - self.size

    def _trusted(self, recovery_offset: int, size: int) -> tuple[int, int]:
        """Return how many entries of the two indexes are valid; begin after the last valid one."""
        base = self.names.base_offset
        self.size, self.next_offset = 0, base
        offsets = sparse_index.entries(self._index_file(INDEX_SUFFIX)[0], OFFSET_ENTRY)
        times = sparse_index.entries(self._index_file(TIME_SUFFIX)[0], TIME_ENTRY)
        kept = 0
        while kept < len(offsets) and base + offsets[kept][0] < recovery_offset:
            kept += 1
        if not kept or not self._fits(offsets[kept - 1], size):
            return 0, 0
        relative, position = offsets[kept - 1]
        times = [time for time in times if time[1] <= relative]
        if times and not self.names.is_true_time(times[-1]):
            return 0, 0
        begin = self.names.position_of(base + times[-1][1], self.log, size) if times else 0
        largest = self.names.max_timestamp_between(self.log, begin, position)
        if largest > (times[-1][0] if times else -1):
            return 0, 0  # .timeindex has lost its end, but not .index: rebuild both
        self.size = position
        self.next_offset = next(scan_headers(self.log, position, size))[1].base_offset
        if times:
            self.indexer.resume(times[-1][0], base + times[-1][1])
        return kept, len(times)

    def _fits(self, entry: tuple[int, int], size: int) -> bool:
        relative, position = entry
        if not 0 <= position < size:
            return False
        with suppress(BrokenBatchError):
            _, header = next(scan_headers(self.log, position, size))
            return header.last_offset == self.names.base_offset + relative
        return False

    def _start_indexes(self, offsets: int, times: int) -> None:
        for suffix, length in (
            (INDEX_SUFFIX, offsets * OFFSET_ENTRY.size),
            (TIME_SUFFIX, times * TIME_ENTRY.size),
        ):
            file, _ = self._index_file(suffix)
            # Even without a change it would cost a write: a start with many partitions waits.
            if file.size() != length:
                self._unflushed_indexes.add(suffix)
                file.truncate(length)
            self._indexes[suffix] = (file, length)

    def _index(self, header: BatchHeader, base_offset: int, position: int) -> None:
        entries = self.indexer.add(header, base_offset, position)
        if entries is not None:
            self._write_index(INDEX_SUFFIX, entries.offsets)
            self._write_index(TIME_SUFFIX, entries.times)

    def _write_index(self, suffix: str, data: bytes) -> None:
        """Append entries. An index is a cache: a logged failure costs speed, not records."""
        if not data or self._index_failed:
            return
        try:
            file, length = self._index_file(suffix)
            self._unflushed_indexes.add(suffix)
            file.write_at([data], length)
            self._indexes[suffix] = (file, length + len(data))
        except OSError as error:
            self._index_failed = True
            _log.warning("index not written; the next start builds it again",
                         path=str(self.names.path(suffix)), error=str(error))  # fmt: skip

    def _index_file(self, suffix: str) -> tuple[OpenFile, int]:
        if suffix not in self._indexes:
            file = self.names.files.open(self.names.path(suffix), create=True)
            self._indexes[suffix] = (file, file.size())
        return self._indexes[suffix]
