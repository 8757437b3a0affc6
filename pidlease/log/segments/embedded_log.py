"""The embedded log as the engine sees it: a partition's segments, served on the event loop."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.core.timed_offset import TimedOffset
from pidlease.kafka.records.writer_batch import LoggedBatch, logged
from pidlease.log.ports import AppendDone, NewBatch
from pidlease.log.segments.segmented_log import SegmentedLog

#: What is written on the event loop at most; a page cache takes it in some tens of microseconds.
_INLINE_BYTES_MAX: Final = 128 << 10
#: A write that took longer than this says that the disk is busy,
_INLINE_SECONDS_MAX: Final = 0.02
#: and that for so long nothing should be written on the event loop.
_CALM_SECONDS: Final = 1.0


class EmbeddedPartitionLog(SegmentedLog):
    """See `ports.PartitionLog`. What blocks is done in the pool's threads, or is short."""

    def append(self, batches: Sequence[NewBatch], done: AppendDone) -> None:
        """See `PartitionLog`.

        A small write into the page cache is done at once where no fsync belongs to it: going to
        a thread and back costs many times the write. Where such a write was slow, or something
        else is going on with the partition, the next ones go to a thread (docs/adr/0003).
        """
        config = self.config  # once: a thread may change it at any moment
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
        """Append at once; False: it has to be done in a thread."""
        if not self._lock.acquire(blocking=False):
            return False
        started = time.monotonic()
        result: list[int] | Exception
        try:
            if not self._holds_files or self._has_tail:
                return False  # it would open files, others may have to close theirs, or fsync
            result = self._append_locked(batches, config, undo=False)
        except OSError:
            return False  # the thread tries again, and undoes what was left: that takes an fsync
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for it
            result = error
        finally:
            self._lock.release()
        finished = time.monotonic()
        if finished - started > _INLINE_SECONDS_MAX:
            self._pool.calm_from = finished + _CALM_SECONDS
        # Not from within: answers would come before those of the append before.
        self._pool.deliver(done, result)
        return True

    # ------------------------------------------------------------------ keeping

    async def flush(self) -> None:
        """See `PartitionLog`."""
        # In this order: an append under way, which may not know of a stricter policy yet, says
        # what it left before it lets go of the lock.
        busy = self._lock.locked()
        if busy or self._unflushed or self._flushing is not None or self._in_doubt:
            await self._pool.run(self.flush_blocking)

    async def delete_records(self, before: int) -> None:
        """See `PartitionLog`."""
        await self._pool.run(partial(self.delete_records_blocking, before))

    async def retain(self, limit_offset: int, now_ms: int) -> int:
        """See `PartitionLog`."""
        return await self._pool.run(partial(self.retain_blocking, limit_offset, now_ms))

    # ------------------------------------------------------------------ reading

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """See `PartitionLog`."""
        return await self._pool.run(partial(self.view.read, offset, max_bytes))

    async def find_time(self, timestamp: int) -> TimedOffset | None:
        """See `PartitionLog`."""
        return await self._pool.run(partial(self.view.find_time, timestamp))

    def read_batches(self, offset: int) -> Iterator[LoggedBatch]:
        """See `PartitionLog`."""
        return (logged(header, data) for _, header, data in self.view.scan(offset))
