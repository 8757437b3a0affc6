"""Stores committed offsets of consumer groups durably.

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

#: Limits of one write, in records and offsets.
_RECORDS_MAX: Final = 10_000
_OFFSETS_MAX: Final = 50_000
#: The journal is rewritten when it is longer than this many times its rewritten length,
_GROWTH_MAX: Final = 4
#: plus this many bytes.
_SLACK_BYTES: Final = 1 << 20
#: After a failed write could not be cut: how soon the cut is tried again.
_MEND_SECONDS: Final = 1.0

ENTRIES_MAX: Final = 1_000_000

_log = structlog.get_logger(__name__)


class _Waiting(NamedTuple):
    """A pending record: the offsets in it, the room reserved for it, and the future to complete."""

    record: Record
    offsets: int
    taken: tuple[int, int]
    done: "asyncio.Future[None]"


class OffsetStore:
    """The committed offsets of one data directory.

    Parameters:
        folder: the journal's own folder.
        fsync: when a record counts as stored.
        flush_seconds: the interval of `FsyncPolicy.INTERVAL`.
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
        #: Whether a thread is working on the journal; never two.
        self._busy = False
        self._idle = asyncio.Event()
        #: How many records were given to `write` and completed, and futures that wait for a count.
        self._given = 0
        self._ended = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        #: Changes of the table that wait until no thread reads it.
        self._deferred: list[Callable[[], None]] = []
        #: No rewrite below this length: the last rewrite produced about as much, or failed.
        self._replace_from = 0
        self._flush_seconds = flush_seconds if fsync is FsyncPolicy.INTERVAL else 0.0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flush_due = False
        self._closed = False

    def open(self) -> None:
        """Read the journal. Blocks.

        Raises:
            DataFolderError: the journal cannot be read, or is damaged.
        """
        for record in self._journal.open():
            self.table.apply(record)

    # ------------------------------------------------------------------ on the event loop

    def write(self, record: Record) -> "asyncio.Future[None]":
        """Store a record. Records take effect in the order in which they were given.

        Returns:
            Completes when the record is stored and applied to `table`; fails with
            OffsetsFailedError if it is not stored.

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
        """Wait until all records given to `write` so far are stored or have failed."""
        if self._ended < self._given:
            await self._end_of_given()

    def _end_of_given(self) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._given, future))
        return future

    def keep_topics(self, topic_ids: Mapping[str, str]) -> None:
        """Remove the offsets of all topics but these: name -> id.

        Nothing is written, since each start does the same.
        """
        self._with_table(partial(self.table.keep_topics, dict(topic_ids)))

    def forget_topic(self, topic_id: str) -> None:
        """Remove the offsets of a deleted topic. Nothing is written, as for `keep_topics`."""
        work = partial(self.table.forget_topic, topic_id)
        self._with_table(work)
        if self._ended < self._given:
            # Commits given before may add some again.
            self._end_of_given().add_done_callback(lambda _: self._with_table(work))

    async def close(self) -> None:
        """Store all pending records, accept no more, and make the journal durable."""
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
        """Start the next piece of work in a thread, if none is running."""
        if self._busy:
            return
        if self._flush_due:
            # Flush first: when commits keep coming, the queue is never empty.
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
                LINES.write(_log, "error", "a record of offsets cannot be encoded",
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
        """Change the table: now, or when no thread reads it."""
        if self._busy:
            self._deferred.append(work)
        else:
            work()

    # ------------------------------------------------------------------ in a thread

    def _store(self, records: list[Record]) -> "_Failures":
        """Append records to the journal. Return those that cannot be encoded.

        Raises:
            OSError: no record was stored.
        """
        length = self._journal.length
        allowed = max(_SLACK_BYTES + _GROWTH_MAX * self.table.size_bytes, self._replace_from)
        if length > allowed or self._journal.must_be_replaced:
            try:
                self._replace()
            except OSError as error:
                # The journal is merely longer than needed.
                self._replace_from = length + _SLACK_BYTES
                LINES.write(_log, "warning", "the offsets' journal could not be rewritten",
                            kind_of(error), error=str(error))  # fmt: skip
        try:
            self._journal.append(records)
        except (ValueError, TypeError):
            failures = _not_encodable(records)
            self._journal.append(
                [each for number, each in enumerate(records) if number not in failures]
            )
            return failures
        return {}

    def _replace(self) -> None:
        before = self._journal.length
        self._journal.replace(self.table.records())
        # The actual length: if the table's estimate is too low, do not rewrite at every write.
        self._replace_from = _SLACK_BYTES + 2 * self._journal.length
        _log.info("offsets' journal rewritten", bytes=self._journal.length, before=before)

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


#: By a record's index in its batch: why the record cannot be encoded.
_Failures = dict[int, BaseException]


def _not_encodable(records: list[Record]) -> _Failures:
    """Find the records that cannot be encoded (a bug); the others must not fail with them."""
    failures: _Failures = {}
    for number, record in enumerate(records):
        try:
            encode_line(record)
        except (ValueError, TypeError) as error:
            failures[number] = error
    return failures
