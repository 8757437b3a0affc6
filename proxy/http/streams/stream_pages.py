"""Reads the values of streams: across the streams that a fork inherits from, page by page."""

import asyncio
import math
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from pidlease.core.byte_budget import ByteBudget
from pidlease.engine.partition import Partition
from pidlease.engine.stream_gate import STREAM_HEADER, Closing
from pidlease.kafka.records.batch_records import (
    UndecodableError,
    batches_in,
    is_small,
    records_in,
)
from pidlease.kafka.records.identity_header import HEADER_NAME
from pidlease.kafka.records.record_batch import whole_batches
from pidlease.storage.errors import LogError, OffsetRangeError
from pidlease.storage.io_pool import IoPool
from proxy.http.log_reads import LogReads
from proxy.http.record_responses import NoRoomError, UnreadableError
from proxy.http.streams.json_values import as_json
from proxy.http.streams.single_values import VALUE_BYTES, Leading, leading_values

#: How many reads are kept, and how large one may be, in bytes.
_RECENT_MAX: Final = 32
_RECENT_BYTES: Final = 32 << 10
#: What ends a page before it is full, if it has values.
_READ_ERRORS: Final = (LogError, NoRoomError, UnreadableError)


class Span(NamedTuple):
    """A part of a stream, in one partition.

    Attributes:
        partition: has it.
        base: the stream's offset of the partition's offset 0.
        end: the stream's offset after the part.
    """

    partition: Partition
    base: int
    end: int


#: The end of a part, if its log has other writers: only a read says how far it goes.
UNKNOWN_END: Final = sys.maxsize

#: The partition of a read, its first offset and the one after its last, the most bytes, and whether
#: the values are JSON.
_ReadKey = tuple[Partition, int, int, int, bool]


class Values(NamedTuple):
    """Some values of a stream.

    Attributes:
        values: them.
        next_offset: the offset after them.
        end: the offset after the last value of the stream when they were read.
    """

    values: list[bytes]
    next_offset: int
    end: int


class Read(NamedTuple):
    """A read.

    Attributes:
        size: in bytes.
        batches: how many were read.
        records: how many are in them.
        found: the values in them, by the offsets of the partition.
        began: when it began, by the loop's clock.
    """

    size: int
    batches: int
    records: int
    found: Values
    began: float = 0.0


class _RunningRead:
    """A read that runs, for all readers that came before it began.

    Attributes:
        began: when it began, by the loop's clock; infinite: it has not begun.
        task: returns it.
    """

    __slots__ = ("began", "task")

    task: "asyncio.Task[Read]"

    def __init__(self) -> None:
        self.began = math.inf


def read_of(data: bytes, offset: int, end: int, bytes_max: int, *, is_json: bool) -> Read:
    """Return the values of records in some bytes of a log, and what was read. May take long.

    Parameters:
        offset: of the first one; it is in the first batch.
        end: the first offset that may not be read.
        bytes_max: of values, but at least one is returned.

    Raises:
        UnreadableError: the batch at the offset cannot be decoded.
    """
    first = leading_values(data, offset, end, bytes_max, is_json=is_json)
    rest = data[first.position :]
    found = _rest_of(first, rest, end, is_json=is_json)
    whole = whole_batches(rest)
    batches, records = first.batches + whole.batches, first.batches + whole.records
    return Read(len(data), batches, records, found)


def _rest_of(first: Leading, data: bytes, end: int, *, is_json: bool) -> Values:
    """Return values that are known, and those of the batches after them."""
    values, offset, bytes_max = first.values, first.offset, first.bytes_left
    close: int | None = None
    for header, batch in batches_in(data):
        is_ours = False
        try:
            for record in records_in(header, batch):
                at, headers = record.offset, record.headers
                if at >= end or bytes_max <= 0:
                    return Values(values, min(offset, end), end)
                marks = {key: value for key, value in headers} if headers else {}  # noqa: C416
                if at == header.base_offset or HEADER_NAME in marks:
                    is_ours = STREAM_HEADER in marks
                if at < offset:
                    continue
                offset, close = at + 1, None
                if marks.get(STREAM_HEADER) == Closing.ALONE.value:
                    close = at
                    continue
                values.append(_value_of(record, is_json=is_json and not is_ours))
                bytes_max -= len(values[-1]) + VALUE_BYTES
        except UndecodableError as error:
            if values:
                break  # the next read, from here on, gets the error
            raise UnreadableError(offset, header.last_offset + 1, str(error)) from None
        offset = max(offset, header.last_offset + 1)
    if close is not None and offset >= end:
        # In Kafka, a close may be read before its append is acknowledged; it is not part of the
        # stream.
        end = close
    return Values(values, min(offset, end), end)


def _value_of(record: Any, *, is_json: bool) -> bytes:  # noqa: ANN401 - aiokafka's, in C
    """Return the value of a record; as JSON, if it must be converted."""
    return (as_json(record.value) if is_json else record.value) or b""


class _Reader(NamedTuple):
    """What reads of one page have in common.

    Attributes:
        pool: threads for large reads.
        own: bytes of the memory that the request holds already.
        now: when the page was asked for, by the loop's clock.
        is_json: whether the values are JSON.
    """

    pool: IoPool
    own: int
    now: float
    is_json: bool


class StreamReads:
    """Reads values, a bounded number of reads at a time.

    An append wakes all readers at the end of a stream, and all want the same values: so one read is
    for all that want it, and small reads are kept for a while. Their values do not change. But in a
    log with other writers there may be more of them by now: the end of a read counts only for
    readers that came before it began.

    Parameters:
        memory: for reads and their responses.
    """

    def __init__(self, memory: ByteBudget) -> None:
        self._recent: OrderedDict[_ReadKey, Read] = OrderedDict()
        self._running: dict[_ReadKey, _RunningRead] = {}
        self._reads: Final = LogReads(memory)

    async def page(
        self,
        spans: Sequence[Span],
        offset: int,
        bytes_max: int,
        pool: IoPool,
        own: int,
        *,
        is_json: bool,
    ) -> Values:
        """Read the values from an offset on that are there now.

        If a later part of them cannot be read, those before it are returned: the next read, from
        there on, gets the error.

        Parameters:
            spans: the parts of the stream, in order.
            bytes_max: of values, but at least one is returned.
            pool: threads for large pages.
            own: bytes of the memory that the request holds already.

        Raises:
            OffsetRangeError: the log does not have the offset, and does not end there.
            UnreadableError: the batch at the offset cannot be read.
            LogStoppedError: the partition is stopped, and has no readable record at the offset.
            LogError: the log cannot be read.
            NoRoomError: there is no memory for what has arrived from Kafka.
        """
        values: list[bytes] = []
        reader = _Reader(pool, own, asyncio.get_running_loop().time(), is_json)
        left, end = bytes_max, spans[-1].end
        for span in _from(spans, offset):
            while offset < span.end and left > 0:
                try:
                    found = await self._read(span, offset, left, reader)
                except _READ_ERRORS as error:
                    if values:
                        return Values(values, offset, end)
                    raise (
                        error.moved(span.base) if isinstance(error, UnreadableError) else error
                    ) from None
                values += found.values
                left -= sum(map(len, found.values)) + VALUE_BYTES * len(found.values)
                stays, offset = found.next_offset <= offset, max(offset, found.next_offset)
                if span is spans[-1]:
                    end = found.end
                if stays or offset >= end:
                    return Values(values, offset, end)
        if offset >= spans[-1].end and spans[-1].partition.incomplete:
            raise spans[-1].partition.stopped_error()
        return Values(values, offset, end)

    async def _read(self, span: Span, offset: int, bytes_max: int, reader: _Reader) -> Values:
        """Read a part of a span; its end is unknown if the read is older than the page."""
        partition, at, end = span.partition, offset - span.base, span.end
        end = UNKNOWN_END if end == UNKNOWN_END else end - span.base
        partition.check_owned()  # what a fork inherits may be another server's
        if at < partition.log.start_offset:  # what is deleted is not served from memory, either
            raise OffsetRangeError(at, partition.log.start_offset, partition.readable_end)
        key = (partition, at, end, bytes_max, reader.is_json)
        read = self._recent.get(key)
        if read is None:
            running = self._running.get(key)
            if running is None or (end == UNKNOWN_END and running.began < reader.now):
                running = self._running[key] = _RunningRead()
                running.task = asyncio.create_task(self._fetch(key, running, reader))
                running.task.add_done_callback(partial(self._ended, key, running))
            # A client that disconnects does not end the read of the others.
            read = await asyncio.shield(running.task)
        partition.counts.read(read.size, read.batches, read.records)
        values, next_offset, found_end = read.found
        if end != UNKNOWN_END:
            found_end = end
        elif read.began < reader.now:
            return Values(values, next_offset + span.base, UNKNOWN_END)
        return Values(values, next_offset + span.base, found_end + span.base)

    async def _fetch(self, key: _ReadKey, running: _RunningRead, reader: _Reader) -> Read:
        partition, at, end, bytes_max, is_json = key
        began = running.began = asyncio.get_running_loop().time()
        async with self._reads.part(partition, at, bytes_max, reader.own) as part:
            data, end = bytes(part.data), min(end, part.end_offset)
            convert = partial(read_of, data, at, end, bytes_max, is_json=is_json)
            read = convert() if is_small(data) else await reader.pool.run(convert)
        read = read._replace(began=began)
        if read.size <= _RECENT_BYTES and read.found.next_offset > at:
            self._recent[key] = read
            if len(self._recent) > _RECENT_MAX:
                self._recent.popitem(last=False)
        return read

    def _ended(self, key: _ReadKey, running: _RunningRead, task: "asyncio.Task[Read]") -> None:
        if self._running.get(key) is running:
            del self._running[key]
        if not task.cancelled():
            task.exception()  # all its readers may have gone


def _from(spans: Sequence[Span], offset: int) -> Iterator[Span]:
    return (span for span in spans if span.end > offset)
