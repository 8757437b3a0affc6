"""The embedded log of one partition: a folder of segments in Kafka's own format."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import structlog

from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.core.timed_offset import TimedOffset
from pidlease.kafka.records.record_batch import place
from pidlease.kafka.records.writer_batch import LoggedBatch, logged
from pidlease.log.ports import AppendDone, LogPart, NewBatch
from pidlease.log.segments.durable_mark import DurableMark
from pidlease.log.segments.log_start import LOG_START_NAME, read_log_start, write_log_start
from pidlease.log.segments.log_topics import COPY_NAME
from pidlease.log.segments.log_view import LogView, ReadPositions
from pidlease.log.segments.open_logs import OpenLogs
from pidlease.log.segments.open_segments import OpenSegments
from pidlease.log.segments.retention import is_past, removable
from pidlease.log.segments.segment import (
    LOG_SUFFIX,
    SUFFIXES,
    ActiveSegment,
    Placed,
    SegmentFiles,
    base_offset_of,
)
from pidlease.storage.errors import (
    AppendFailedError,
    DamagedLogError,
    LogStoppedError,
    OffsetRangeError,
    reason_for_clients,
)
from pidlease.storage.files import (
    Files,
    is_aside,
    make_durable_folder,
    remove_tree,
    sweep_asides,
)
from pidlease.storage.io_pool import IoPool

#: The largest offset in an index file: 31 bits, relative to the segment's base offset.
_RELATIVE_OFFSET_MAX: Final = 2**31 - 1
#: The largest append on the event loop; writing it to the page cache takes tens of microseconds.
_INLINE_BYTES_MAX: Final = 128 << 10
#: A write on the event loop that takes longer shows that the disk is busy.
_INLINE_SECONDS_MAX: Final = 0.02
#: How long nothing is written on the event loop after such a write.
_CALM_SECONDS: Final = 1.0

_log = structlog.get_logger(__name__)


class EmbeddedPartitionLog:
    """Appends to one partition's segments, reads and flushes them, and removes old ones.

    The methods named `*_blocking`, and those under "blocking", run in threads. The others run on
    the event loop; they are short, or wait for a thread of the pool. A lock lets one append, flush
    or removal run at a time. Reads run concurrently, and see the records that were acknowledged
    when they began.

    Parameters:
        files: the file system.
        folder: the partition's folder.
        config: the topic's settings.
        pool: the threads for blocking work.
        open_logs: limits how many logs hold files open.
        open_segments: the segments that are open for readers; None: each read opens its segment.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        config: LogConfig,
        pool: IoPool,
        open_logs: OpenLogs | None = None,
        open_segments: OpenSegments | None = None,
    ) -> None:
        self._files = files
        self._folder = folder
        self._pool = pool
        self._open_logs = open_logs if open_logs is not None else OpenLogs(1)
        self._open_segments = open_segments
        self._holds_files = False
        self._deleted_to = 0
        #: Above the end offset only if acknowledged records cannot be read.
        self._promised_end = 0
        #: Whether it was appended to since `OpenLogs` last reset this.
        self.recent = False
        self._lock = threading.Lock()
        self._flushed = threading.Condition(self._lock)
        #: The segment that a flush fsyncs while appends continue; None: no flush runs.
        self._flushing: ActiveSegment | None = None
        self._sealed: tuple[SegmentFiles, ...] = ()
        self._active = ActiveSegment(SegmentFiles(files, folder, 0))
        self._mark = DurableMark(files, folder)
        self.view = LogView((self._active.names,), 0, 0)
        self._positions = ReadPositions()
        #: The first offset that may be read.
        self.start_offset = 0
        self._unflushed = False
        self._has_tail = False
        #: Whether an fsync failed: acknowledged records may be missing after a crash.
        self._in_doubt = False
        self.config = config
        self.stopped = ""
        self.closed = False
        self.cut_bytes = 0

    # ------------------------------------------------------------------ life cycle, blocking

    def open(self, recovery_offset: int, *, clean: bool, folder_is_durable: bool = False) -> None:
        """Find the segments and the end of the log, and cut off a torn tail.

        Damage does not raise: it stops the partition at the last intact batch.

        Parameters:
            recovery_offset: the offset up to which the log is durable and was intact.
            clean: whether the log was closed properly.
            folder_is_durable: whether the folder exists, even after a power cut.
        """
        try:
            if not folder_is_durable:
                make_durable_folder(self._files, self._folder)
            self._open(recovery_offset, clean=clean)
            self._active.fsync_indexes()
        finally:
            self._close_files()

    def _open(self, recovery_offset: int, *, clean: bool) -> None:
        names, bases = self._tidy()
        segments = [SegmentFiles(self._files, self._folder, base) for base in bases]
        if segments:
            self._sealed = tuple(segments[:-1])
            self._active = ActiveSegment(segments[-1])
        durable = self._mark.read()
        if segments and not clean and (durable <= bases[-1] or LOG_START_NAME in names):
            # A crash may have happened between creating a file and the fsync of its name. Not if
            # records of the last segment are durable: they were appended after that fsync.
            self._files.fsync_folder(self._folder)
        recovery_offset = max(recovery_offset, durable)
        start_known = False
        try:
            # First, so that deleted records do not reappear because something else is damaged.
            self._deleted_to = read_log_start(self._files, self._folder)
            start_known = True
            if segments:
                self._recover(recovery_offset, durable, clean=clean)
            self._check_complete(recovery_offset, lost=COPY_NAME in names and not segments)
            self._check_start()
            if not segments:
                self._active.create()
            elif not clean and self._active.next_offset > durable:
                self._mark.write(self._active.next_offset)  # so the next start rewrites nothing
        except DamagedLogError as error:
            end = self._active.next_offset
            self._promised_end = max(recovery_offset, self._deleted_to, end + 1)
            if not start_known:
                self._deleted_to = end  # any record may have been deleted, so none is readable
            self.stop(reason_for_clients(error), str(error))
        if self.cut_bytes:
            _log.warning("torn tail cut", log=self._folder.name, bytes=self.cut_bytes,
                         end_offset=self._active.next_offset)  # fmt: skip
        self._publish()

    def _recover(self, recovery_offset: int, durable: int, *, clean: bool) -> None:
        if not clean and recovery_offset:
            self._rewrite_sealed(recovery_offset)
        self.cut_bytes = self._active.recover(recovery_offset, clean=clean, durable=durable)

    def _rewrite_sealed(self, offset: int) -> None:
        """Make sealed segments durable from an offset on.

        They are, but for one case: a flush met the failure of an fsync that a roll asked for at the
        same time. The kernel reports it to one of them only, so the roll began a new segment.
        """
        for segment, following in pairwise((*self._sealed, self._active.names)):
            if offset < following.base_offset:
                segment.rewrite(offset)

    def _check_complete(self, durable: int, *, lost: bool) -> None:
        """Check that the log goes up to an offset, and is there at all.

        A snapshot counts as well: its offset vector is never ahead of the durable log. If the log
        just began anew, the start would remove all snapshots as ahead of it.
        """
        end = self._active.next_offset
        if lost:
            raise DamagedLogError(self._folder, 0, "all segments are gone")
        if end < durable:
            path = self._active.names.path(LOG_SUFFIX)
            reason = f"it ends at offset {end}, and was durable up to {durable}"
            raise DamagedLogError(path, self._active.size, reason)

    def _check_start(self) -> None:
        end = self._active.next_offset
        if self._deleted_to > end:
            reason = f"the log starts at offset {self._deleted_to}, and ends at {end}"
            raise DamagedLogError(self._folder / LOG_START_NAME, 0, reason)

    def _tidy(self) -> tuple[list[str], list[int]]:
        """Remove the leftovers of an interrupted removal.

        Returns:
            The names of the files that were there, and the base offsets of segments.
        """
        names = self._files.list(self._folder)
        if any(map(is_aside, names)):
            sweep_asides(self._files, self._folder)
            names = self._files.list(self._folder)
        bases = [base for name in names if (base := base_offset_of(name)) is not None]
        stems = {f"{base:020d}" for base in bases}
        for name in names:
            stem, dot, suffix = name.partition(".")
            if dot + suffix in SUFFIXES and stem not in stems:
                self._files.remove(self._folder / name)
        return names, bases

    def close(self) -> None:
        """Make everything durable, and close the files."""
        with self._lock:
            self._wait_for_flush()
            if not self.stopped:
                self._cut_tail()
                self._active.seal()
                self.stopped = "the log is closed"
                self.closed = True
            elif self._unflushed and not self._in_doubt:
                with suppress(LogStoppedError):  # `stop` has logged it
                    self._flush_locked()
            self._close_files()

    def let_go(self) -> bool:
        """Close the files until they are needed again; False: the log is busy."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self.closed:
                return True  # its files are removed, and another log may use their names
            if self._flushing is not None:
                return False
            if self._unflushed and not self._in_doubt:
                # The kernel reports a failed write only to open files; so fsync before closing.
                self._flush_locked()
            self._cut_tail()
            self._active.fsync_indexes()
            self._close_files()
            return True
        finally:
            self._lock.release()

    def delete(self) -> None:
        """Accept no more appends, and remove all files. Blocks.

        Raises:
            OSError: some files still exist.
        """
        with self._lock:
            self._wait_for_flush()
            self.stopped = "the topic was deleted"
            self.closed = True
            self._unflushed = self._has_tail = False
            self._close_files()
            self._open_logs.forget(self)
            if self._files.exists(self._folder):
                remove_tree(self._files, self._folder)

    def _close_files(self) -> None:
        self._active.close()
        self._mark.close()
        self._holds_files = False

    # ------------------------------------------------------------------ appending

    @property
    def kept_offset(self) -> int:
        """The first offset that `read_batches` still has."""
        return self.view.kept_offset

    @property
    def end_offset(self) -> int:
        """The first offset that is not acknowledged."""
        return self.view.end_offset

    @property
    def promised_end(self) -> int:
        """The offset after the last record known to have been acknowledged."""
        return max(self._promised_end, self.view.end_offset)

    def append(self, batches: Sequence[NewBatch], done: AppendDone) -> None:
        """Append all batches in order, or none.

        A small write without an fsync goes to the page cache at once, on the event loop: a thread
        costs many times as much as the write. After a slow write, or while another operation runs
        on the partition, a thread does it (docs/adr/0003).
        """
        config = self.config  # read once: a thread may change it at any moment
        if config.fsync is not FsyncPolicy.BATCH and time.monotonic() >= self._pool.calm_from:
            size = sum(len(batch.data) for batch in batches)
            full = self._active.size + size > config.segment_bytes
            if (
                size <= _INLINE_BYTES_MAX
                and not full
                and self._append_inline(batches, config, done)
            ):
                return
        self._pool.submit(partial(self.append_blocking, batches), done)

    def _append_inline(
        self, batches: Sequence[NewBatch], config: LogConfig, done: AppendDone
    ) -> bool:
        """Append at once; False: a thread must do it."""
        if not self._lock.acquire(blocking=False):
            return False
        started = time.monotonic()
        result: list[int] | Exception
        try:
            if not self._holds_files or self._has_tail:
                return False  # it would open files, close those of other logs, or fsync
            result = self._append_locked(batches, config, undo=False)
        except OSError:
            return False  # a thread tries again, and first undoes this write, with an fsync
        except Exception as error:  # noqa: BLE001 - passed to `done`
            result = error
        finally:
            self._lock.release()
        finished = time.monotonic()
        if finished - started > _INLINE_SECONDS_MAX:
            self._pool.calm_from = finished + _CALM_SECONDS
        # Not called from here: its outcomes would overtake those of the preceding append.
        self._pool.deliver(done, result)
        return True

    def append_blocking(self, batches: Sequence[NewBatch]) -> list[int]:
        """Append the batches, and return their base offsets.

        Raises:
            AppendFailedError: none of the batches is in the log.
            LogStoppedError: the partition accepts no appends, or no more from now on.
        """
        with self._lock:
            return self._append_locked(batches, self.config)

    def _append_locked(
        self, batches: Sequence[NewBatch], config: LogConfig, *, undo: bool = True
    ) -> list[int]:
        if self.stopped:
            raise LogStoppedError(self.stopped)
        self.recent = self._holds_files
        if not self._holds_files:
            self._open_logs.note(self)
            try:
                self._active.log  # noqa: B018 - opened
            except OSError as error:  # the process may have no descriptor left
                self._open_logs.forget(self)
                text = f"append failed, nothing was written: {reason_for_clients(error)}"
                raise AppendFailedError(text) from error
            self._holds_files = True
            if self._active.log.size() < self._active.size:
                self.stop("the log was replaced by a shorter one under the server")
                raise LogStoppedError(self.stopped)
        placed, offsets = self._place(batches)
        fsync = config.fsync is FsyncPolicy.BATCH
        try:
            self._cut_tail()
            if self._is_full(placed, config.segment_bytes):
                self._roll()
            self._active.write(placed, fsync=fsync)
        except OSError as error:
            if not undo:
                self._has_tail = True
                raise
            self._undo(error, fsync=fsync)
        except Exception:
            self._has_tail = True  # a bug: the next append removes what was written
            raise
        if fsync:
            self._unflushed = False
            self._note_durable()
        else:
            self._unflushed = True
        self._publish()
        return offsets

    def _cut_tail(self) -> None:
        """Cut the bytes that a failed write may have left, if they were not cut at once."""
        if self._has_tail:
            self._cut()

    def _cut(self) -> None:
        try:
            self._active.cut()
        except OSError as error:
            if self._unflushed or self._flushing is not None:
                self._fsync_failed(error)  # it is the first report of lost acknowledged pages
            raise
        self._has_tail = False

    def _place(self, batches: Sequence[NewBatch]) -> tuple[list[Placed], list[int]]:
        offset = self._active.next_offset
        placed: list[Placed] = []
        offsets: list[int] = []
        for batch in batches:
            data, header = batch.data, batch.header
            place(data, offset)
            placed.append(Placed(data, header, offset))
            offsets.append(offset)
            offset += header.records
        return placed, offsets

    def _is_full(self, placed: list[Placed], segment_bytes: int) -> bool:
        if not self._active.size:
            return False
        grown = self._active.size + sum(batch.header.size for batch in placed)
        last = placed[-1].base_offset + placed[-1].header.records
        relative = last - self._active.names.base_offset
        return grown > segment_bytes or relative > _RELATIVE_OFFSET_MAX

    def _roll(self) -> None:
        """Seal the last segment durably, then begin a new one: only the last can be torn."""
        self._cut_tail()
        old = self._active
        try:
            old.seal()
        except OSError as error:
            if self._unflushed or self._flushing is not None:
                # Acknowledged records may be lost: the kernel drops pages that it could not write.
                self._fsync_failed(error)
            raise
        self._unflushed = False
        self._note_durable()
        new = ActiveSegment(SegmentFiles(self._files, self._folder, old.next_offset))
        try:
            new.create()
        except OSError as error:
            self._drop(new, error)
            raise
        self._active = new
        self._sealed = (*self._sealed, old.names)
        if self._flushing is not old:
            old.close()

    def _note_durable(self) -> None:
        """Note that the log is durable, after an fsync, unless a flush may still report a loss."""
        if self._flushing is None:
            self._mark.write(self._active.next_offset)

    def _drop(self, new: ActiveSegment, error: OSError) -> None:
        """Remove a segment that could not be begun: it would hide the preceding one."""
        new.close()
        path = new.names.path(LOG_SUFFIX)
        try:
            if self._files.exists(path):
                self._files.remove(path)
                self._files.fsync_folder(self._folder)
        except OSError as second:
            first, last = reason_for_clients(error), reason_for_clients(second)
            self.stop(f"a new segment failed ({first}), and could not be removed ({last})",
                      f"{error}; {second}")  # fmt: skip

    def _undo(self, error: OSError, *, fsync: bool) -> None:
        if fsync and not self.stopped and (self._unflushed or self._flushing is not None):
            # The error may concern records acknowledged before, under another fsync policy.
            self._fsync_failed(error)
        if self.stopped:
            raise LogStoppedError(self.stopped) from error
        try:
            self._cut()
        except OSError as second:
            if not self.stopped:
                first, last = reason_for_clients(error), reason_for_clients(second)
                self.stop(f"append failed ({first}), and it could not be undone ({last})",
                          f"{error}; {second}")  # fmt: skip
            raise LogStoppedError(self.stopped) from error
        raise AppendFailedError(f"append failed: {reason_for_clients(error)}") from error

    def stop(self, reason: str, detail: str = "") -> None:
        """Accept no more appends."""
        self.stopped = reason
        _log.error("partition stopped: it accepts no appends until an operator has checked it",
                   log=self._folder.name, reason=reason, detail=detail)  # fmt: skip

    def check_place(self) -> None:
        """Stop, if the file that is appended to is no longer the one in the folder. Blocks."""
        with self._lock:
            path = self._active.names.path(LOG_SUFFIX)
            if self._holds_files and not self.stopped and not self._active.log.is_at(path):
                self.stop("the log was removed, moved or replaced under the server", str(path))

    def stop_lost(self, reason: str, recovery_offset: int, detail: str) -> None:
        """Accept no appends, because the partition's log is not there; nothing is opened.

        Parameters:
            recovery_offset: the log went up to here at least.
        """
        self._promised_end = max(recovery_offset, 1)
        self.stop(reason, detail)

    def stop_short(self, reason: str, offset: int, detail: str = "") -> None:
        """Accept no more appends, and hide all records from an offset on."""
        with self._lock:
            self.stop(reason, detail)
            self._promised_end = max(self._promised_end, self.view.end_offset, offset + 1)
            self.view = self.view.up_to(offset)
            self.start_offset = self.view.start_offset

    def _publish(self) -> None:
        """Replace the view that readers see; a view itself never changes."""
        before = self.view
        segments = before.segments
        if segments[-1] is not self._active.names or len(segments) != len(self._sealed) + 1:
            segments = (*self._sealed, self._active.names)
        self.view = LogView(segments, self._active.next_offset, self._active.size, self._deleted_to)
        if segments is not before.segments or self._deleted_to != before.deleted_to:
            self.start_offset = self.view.start_offset

    # ------------------------------------------------------------------ flush and retention

    async def flush(self, *, timed: bool = False) -> None:
        """Wait until everything acknowledged is durable.

        Parameters:
            timed: not with fsync policy `never`, which leaves that to the operating system.
        """
        if timed and self.config.fsync is FsyncPolicy.NEVER:
            return
        # In this order: a running append may have read a looser fsync policy before it changed,
        # and sets these fields before it releases the lock.
        busy = self._lock.locked()
        if busy or self._unflushed or self._flushing is not None or self._in_doubt:
            await self._pool.run(self.flush_blocking)

    def flush_blocking(self) -> None:
        """Fsync the log. Appends continue meanwhile: an fsync may take long (KAFKA-9693)."""
        with self._lock:
            self._wait_for_flush()
            if self._in_doubt:
                raise LogStoppedError(self.stopped)
            if not self._unflushed:
                return
            segment, end, log = self._active, self._active.next_offset, self._active.log
            self._flushing, self._unflushed = segment, False
        error: OSError | None = None
        try:
            log.fsync()
        except OSError as caught:
            error = caught
        finally:
            with self._lock:
                self._flushing = None
                if segment is not self._active:
                    segment.close()  # a roll left it open
                if error is not None:
                    self._fsync_failed(error)
                elif not self._in_doubt:
                    # If in doubt, another fsync has reported lost pages: the kernel does that once.
                    self._mark.write(end)
                in_doubt = self._in_doubt
                self._flushed.notify_all()
        if in_doubt:
            raise LogStoppedError(self.stopped) from error

    def _wait_for_flush(self) -> None:
        while self._flushing is not None:
            self._flushed.wait()

    def _fsync_failed(self, error: OSError) -> None:
        # The kernel may have dropped the pages: a second fsync that succeeds proves nothing.
        self._in_doubt = True
        reason = reason_for_clients(error)
        self.stop(f"fsync of acknowledged records failed ({reason})", str(error))

    def _flush_locked(self) -> None:
        try:
            self._active.log.fsync()
        except OSError as error:
            self._fsync_failed(error)
            raise LogStoppedError(self.stopped) from error
        self._unflushed = False
        self._mark.write(self._active.next_offset)

    async def delete_records(self, before: int) -> None:
        """Delete all records before an offset, durably."""
        await self._pool.run(partial(self.delete_records_blocking, before))

    def delete_records_blocking(self, before: int) -> None:
        """Delete all records before an offset, durably."""
        with self._lock:
            self._wait_for_flush()  # before the checks: it releases the lock meanwhile
            if self.stopped:
                raise LogStoppedError(self.stopped)
            if not 0 <= before <= self.view.end_offset:
                raise OffsetRangeError(before, self.view.start_offset, self.view.end_offset)
            if before <= self.view.start_offset:
                return
            if self._unflushed:
                # A power cut may not leave a log that ends before it starts.
                self._flush_locked()
            write_log_start(self._files, self._folder, before)
            self._deleted_to = before
            self._publish()

    async def retain(self, limit_offset: int, now_ms: int) -> int:
        """Remove segments that are past the topic's retention; return how many."""
        return await self._pool.run(partial(self.retain_blocking, limit_offset, now_ms))

    def retain_blocking(self, limit_offset: int, now_ms: int) -> int:
        """Remove segments that are past the topic's retention; return how many."""
        with self._lock:
            if self.stopped:
                return 0
            try:
                return self._retain(limit_offset, now_ms)
            finally:
                if not self._holds_files:
                    self._close_files()  # a roll opens some

    def _retain(self, limit_offset: int, now_ms: int) -> int:
        active, largest = self._active, self._active.indexer.max_timestamp
        if active.size and (
            self._deleted_to >= active.next_offset
            or is_past(self.config, active.names, largest, now_ms)
        ):
            self._roll()
        removed = 0
        limits = (limit_offset, self._deleted_to)
        for segment in removable(self._sealed, self._active, self.config, limits, now_ms):
            segment.remove()
            self._sealed = self._sealed[1:]
            self._publish()
            segment.remove_indexes()
            removed += 1
        return removed

    def size_bytes(self) -> int:
        """Return the size of all segments, without indexes, in bytes."""
        return sum(segment.log_size() for segment in self._sealed) + self.view.last_size

    # ------------------------------------------------------------------ reading

    async def read(self, offset: int, max_bytes: int) -> LogPart:
        """Read from the batch that contains an offset on.

        A reader that continues gets at once what is in the page cache (docs/adr/0037).
        """
        view, positions, opened = self.view, self._positions, self._open_segments
        if opened is None:
            return await self._pool.run(partial(view.read, offset, max_bytes, positions))
        with suppress(OSError):  # a thread meets it again, and raises it
            found = view.read_cached(offset, max_bytes, positions, opened)
            if found is not None:
                return found
        return await self._pool.run(partial(view.read, offset, max_bytes, positions, opened.keep))

    async def find_time(self, timestamp: int) -> TimedOffset | None:
        """Return the first record with this timestamp (ms) or a later one."""
        return await self._pool.run(partial(self.view.find_time, timestamp))

    def read_batches(self, offset: int) -> Iterator[LoggedBatch]:
        """Read all acknowledged batches from an offset on."""
        return (logged(header, data) for _, header, data in self.view.scan(offset))
