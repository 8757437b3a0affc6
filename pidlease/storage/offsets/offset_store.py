"""Committed offsets of consumer groups, durable.

Reads are served from memory, which is updated only after the journal. So a restart never returns
an older offset than was read before.

    write -> queue -> journal (one write, one fsync for all that wait) -> table -> complete
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from pidlease.core.log_config import FsyncPolicy
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.files import Files
from pidlease.storage.io_pool import IoPool
from pidlease.storage.offsets.journal_records import (
    Commit,
    OffsetsFailedError,
    Record,
    encode_line,
)
from pidlease.storage.offsets.offset_journal import JOURNAL_NAME, OffsetJournal
from pidlease.storage.offsets.offset_room import OffsetRoom
from pidlease.storage.offsets.offset_table import OffsetTable

#: Records and offsets that one write takes; the rest waits for the next one.
_RECORDS_MAX: Final = 10_000
_OFFSETS_MAX: Final = 50_000
#: The journal may have so many times the length that it would have if it were written anew,
_GROWTH_MAX: Final = 4
#: and so many bytes more.
_SLACK_BYTES: Final = 1 << 20
#: How soon what a failed write left is cut again, where that has failed, too.
_MEND_SECONDS: Final = 1.0

ENTRIES_MAX: Final = 1_000_000

_log = structlog.get_logger(__name__)


class _Waiting(NamedTuple):
    """A pending record: how many offsets it adds, the room it takes, and the future that waits."""

    record: Record
    offsets: int
    taken: tuple[int, int]
    done: "asyncio.Future[None]"


class OffsetStore:
    """The offsets of one data directory.

    Parameters:
        files: the file system.
        folder: of the journal; nothing else is in it.
        pool: the threads for blocking work.
        fsync: when a record counts as stored.
        flush_seconds: how often `interval` fsyncs.
        entries_max: offsets of all groups together.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        pool: IoPool,
        fsync: FsyncPolicy = FsyncPolicy.BATCH,
        flush_seconds: float = 1.0,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        self.table: Final = OffsetTable()
        durable = fsync is FsyncPolicy.BATCH
        self._journal = OffsetJournal(files, folder / JOURNAL_NAME, durable=durable)
        self._pool = pool
        self.room: Final = OffsetRoom(self.table, entries_max)
        self._queue: deque[_Waiting] = deque()
        #: Whether a thread is at work on the journal; never two.
        self._busy = False
        self._idle = asyncio.Event()
        #: The numbers of records that were given and completed, and the futures that wait for them.
        self._given = 0
        self._ended = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        #: What is to be done with the table when no thread reads it.
        self._deferred: list[Callable[[], None]] = []
        #: The journal is not written anew before it has this length: so long it was the last
        #: time, or could not be written.
        self._replace_from = 0
        self._flush_seconds = flush_seconds if fsync is FsyncPolicy.INTERVAL else 0.0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flush_due = False
        self._closed = False

    def open(self) -> None:
        """Read what is there. Blocks.

        Raises:
            DataFolderError: the journal cannot be read, or is damaged.
        """
        for record in self._journal.open():
            self.table.apply(record)

    # ------------------------------------------------------------------ on the event loop

    def write(self, record: Record) -> "asyncio.Future[None]":
        """Store a record. Records count in the order in which they were given.

        Returns:
            Done when it is stored and `table` says it; with OffsetsFailedError where it is not.

        Raises:
            OffsetsFullError: there would be too many offsets.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closed:
            done.set_exception(OffsetsFailedError("the server is stopping"))
            return done
        taken = self.room.take(record)
        offsets = 0
        if isinstance(record, Commit):
            offsets = sum(len(topic.partitions) for topic in record.topics)
        self._given += 1
        self._queue.append(_Waiting(record, offsets, taken, done))
        self._next()
        return done

    def is_busy(self, group: str) -> bool:
        """Return whether records of a group are pending."""
        return self.room.is_busy(group)

    async def settled(self) -> None:
        """Wait until all that was given to `write` so far is stored, or has failed."""
        if self._ended < self._given:
            await self._end_of_given()

    def _end_of_given(self) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._given, future))
        return future

    def keep_topics(self, topic_ids: Mapping[str, str]) -> None:
        """Let go of the offsets of all topics but these: name -> id.

        Nothing is written: a start does the same.
        """
        self._with_table(partial(self.table.keep_topics, dict(topic_ids)))

    def forget_topic(self, topic_id: str) -> None:
        """Let go of the offsets of a topic that was deleted. Nothing is written, as above."""
        work = partial(self.table.forget_topic, topic_id)
        self._with_table(work)
        if self._ended < self._given:
            # Commits that were given before may bring some of them again.
            self._end_of_given().add_done_callback(lambda _: self._with_table(work))

    async def close(self) -> None:
        """Store what was given, take nothing more, and make all of it durable."""
        self._closed = True
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self._flush_due = False
        while self._busy:
            self._idle.clear()
            await self._idle.wait()
        try:
            await self._pool.run(self._close)
        except OSError as error:
            _log.error("the offsets' journal could not be closed", error=str(error))

    # ------------------------------------------------------------------ one write at a time

    def _next(self) -> None:
        """Put a thread to work, if none is and there is something to do."""
        if self._busy:
            return
        if self._flush_due:
            # First: where commits follow one another, there is always another one.
            self._flush_due = False
            self._busy = True
            self._pool.submit(self._flush, self._flushed)
        elif self._queue:
            batch = self._take()
            self._busy = True
            records = [each.record for each in batch]
            self._pool.submit(partial(self._store, records), partial(self._stored, batch))
        else:
            self._idle.set()

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        offsets = 0
        while self._queue and len(batch) < _RECORDS_MAX and offsets < _OFFSETS_MAX:
            batch.append(self._queue.popleft())
            offsets += batch[-1].offsets
        return batch

    def _stored(self, batch: list[_Waiting], outcome: "BaseException | _Failures") -> None:
        if isinstance(outcome, dict):
            failures = outcome
            for error in failures.values():
                LINES.write(_log, "error", "a record of offsets cannot be written",
                            kind_of(error), error=repr(error))  # fmt: skip
        else:
            LINES.write(_log, "error", "offsets not stored", kind_of(outcome),
                        records=len(batch), error=repr(outcome))  # fmt: skip
            failures = dict.fromkeys(range(len(batch)), outcome)
        for number, each in enumerate(batch):
            self._settle(each, failures.get(number))
        self._ended += len(batch)
        while self._waiters and self._waiters[0][0] <= self._ended:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
        if self._flush_seconds or self._journal.unsettled:
            self._flush_later()
        self._end()

    def _flushed(self, failure: Exception | None) -> None:
        if failure is not None:
            LINES.write(_log, "error", "the offsets' journal could not be made durable",
                        kind_of(failure), error=repr(failure))  # fmt: skip
            self._flush_later()
        self._end()

    def _flush_later(self) -> None:
        def due() -> None:
            self._flush_timer = None
            self._flush_due = True
            self._next()

        if self._flush_timer is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(self._flush_seconds or _MEND_SECONDS, due)

    def _end(self) -> None:
        self._busy = False
        for work in self._deferred:
            work()
        self._deferred.clear()
        self._next()

    def _settle(self, waiting: _Waiting, failure: BaseException | None) -> None:
        record, _, taken, done = waiting
        self.room.give_back(record, taken)
        if failure is None:
            self.table.apply(record)
        if done.done():
            return  # the caller has gone
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(OffsetsFailedError(str(failure)))

    def _with_table(self, work: Callable[[], None]) -> None:
        """Change the table, now or when no thread reads it."""
        if self._busy:
            self._deferred.append(work)
        else:
            work()

    # ------------------------------------------------------------------ in a thread

    def _store(self, records: list[Record]) -> "_Failures":
        """Store records; which of them failed for themselves.

        Raises:
            OSError: all of them failed.
        """
        length = self._journal.length
        allowed = max(_SLACK_BYTES + _GROWTH_MAX * self.table.size_bytes, self._replace_from)
        if length > allowed or self._journal.must_be_replaced:
            try:
                self._replace()
            except OSError as error:
                # It is only longer than it need be.
                self._replace_from = length + _SLACK_BYTES
                LINES.write(_log, "warning", "the offsets' journal could not be written anew",
                            kind_of(error), error=str(error))  # fmt: skip
        try:
            self._journal.append(records)
        except (ValueError, TypeError):
            failures = _not_to_be_written(records)
            self._journal.append(
                [each for number, each in enumerate(records) if number not in failures]
            )
            return failures
        return {}

    def _replace(self) -> None:
        before = self._journal.length
        self._journal.replace(self.table.records())
        # What it really takes: should the table's estimate be too low, not at every write.
        self._replace_from = _SLACK_BYTES + 2 * self._journal.length
        _log.info("offsets' journal written anew", bytes=self._journal.length, before=before)

    def _flush(self) -> None:
        if self._journal.doubtful:
            self._replace()
            return
        self._journal.mend()
        if self._flush_seconds:
            self._journal.flush()

    def _close(self) -> None:
        try:
            self._journal.flush()
        except OSError:
            self._replace()
        self._journal.close()


#: Records of a batch, by their places in it, that cannot be written, and why.
_Failures = dict[int, BaseException]


def _not_to_be_written(records: list[Record]) -> _Failures:
    """A bug of this server: it fails the record that caused it, and not the others."""
    failures: _Failures = {}
    for number, record in enumerate(records):
        try:
            encode_line(record)
        except (ValueError, TypeError) as error:
            failures[number] = error
    return failures
