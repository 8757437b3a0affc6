"""Reads the values of streams: across the streams that a fork inherits from, page by page."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

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
from pidlease.storage.errors import OffsetRangeError
from pidlease.storage.io_pool import IoPool
from proxy.http.log_reads import LogReads
from proxy.http.record_responses import UnreadableError
from proxy.http.streams.json_values import as_json
from proxy.http.streams.single_values import VALUE_BYTES, Leading, leading_values

#: How many reads are kept, and how large one may be, in bytes.
_RECENT_MAX: Final = 32
_RECENT_BYTES: Final = 32 << 10


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


#: The partition of a read, its first offset and the one after its last, the most bytes, and whether
#: the values are JSON.
_ReadKey = tuple[Partition, int, int, int, bool]


class Values(NamedTuple):
    """Some values of a stream, and the offset after them."""

    values: list[bytes]
    next_offset: int


class Read(NamedTuple):
    """A read: its size in bytes, how many batches and records it has, and the values in them."""

    size: int
    batches: int
    records: int
    found: Values


def read_of(data: bytes, offset: int, end: int, bytes_max: int, *, is_json: bool) -> Read:
    """Return the values of records in some bytes of a log, and what was read. May take long.

    Parameters:
        offset: of the first one; it is in the first batch.
        end: the offset after the last one to return.
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
    for header, batch in batches_in(data):
        is_ours = False
        try:
            for record in records_in(header, batch):
                at, headers = record.offset, record.headers
                if at >= end or bytes_max <= 0:
                    return Values(values, min(offset, end))
                marks = {key: value for key, value in headers} if headers else {}  # noqa: C416
                if at == header.base_offset or HEADER_NAME in marks:
                    is_ours = STREAM_HEADER in marks
                if at < offset:
                    continue
                offset = at + 1
                if marks.get(STREAM_HEADER) == Closing.ALONE.value:
                    continue
                value = record.value
                if is_json and not is_ours:
                    value = as_json(value)
                values.append(value or b"")
                bytes_max -= len(values[-1]) + VALUE_BYTES
        except UndecodableError as error:
            if values:
                break  # the next read, from here on, gets the error
            raise UnreadableError(offset, header.last_offset + 1, str(error)) from None
        offset = max(offset, header.last_offset + 1)
    return Values(values, min(offset, end))


class StreamReads:
    """Reads values, a bounded number of reads at a time.

    An append wakes all readers at the end of a stream, and all want the same values: so one read is
    for all that want it, and small reads are kept for a while. What they return does not change.

    Parameters:
        memory: for reads and their responses.
    """

    def __init__(self, memory: ByteBudget) -> None:
        self._recent: OrderedDict[_ReadKey, Read] = OrderedDict()
        self._running: dict[_ReadKey, asyncio.Task[Read]] = {}
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
        """Read values from an offset on, if there are any.

        Parameters:
            spans: the parts of the stream, in order.
            bytes_max: of values, but at least one is returned.
            pool: threads for large pages.
            own: bytes of the memory that the request holds already.

        Raises:
            OffsetRangeError: the log does not have the offset any more.
            UnreadableError: the batch at the offset cannot be read.
            LogStoppedError: the partition is stopped, and has no readable record at the offset.
            LogError: the log cannot be read.
            NoRoomError: there is no memory for what has arrived from Kafka.
        """
        values: list[bytes] = []
        left = bytes_max
        for span in _from(spans, offset):
            while offset < span.end and left > 0:
                found = await self._read(span, offset, left, pool, own, is_json=is_json)
                if found.next_offset <= offset:
                    return Values(values, offset)
                values += found.values
                left -= sum(map(len, found.values)) + VALUE_BYTES * len(found.values)
                offset = found.next_offset
        if offset >= spans[-1].end and spans[-1].partition.incomplete:
            raise spans[-1].partition.stopped_error()
        return Values(values, offset)

    async def _read(
        self, span: Span, offset: int, bytes_max: int, pool: IoPool, own: int, *, is_json: bool
    ) -> Values:
        partition, at, end = span.partition, offset - span.base, span.end - span.base
        partition.check_owned()  # what a fork inherits may be another server's
        if at < partition.log.start_offset:  # what is deleted is not served from memory, either
            raise OffsetRangeError(at, partition.log.start_offset, end)
        key = (partition, at, end, bytes_max, is_json)
        read = self._recent.get(key)
        if read is None:
            running = self._running.get(key)
            if running is None:
                running = asyncio.create_task(self._fetch(key, pool, own))
                self._running[key] = running
                running.add_done_callback(partial(self._ended, key))
            # A client that disconnects does not end the read of the others.
            read = await asyncio.shield(running)
        partition.counts.read(read.size, read.batches, read.records)
        values, next_offset = read.found
        return Values(values, next_offset + span.base)

    async def _fetch(self, key: _ReadKey, pool: IoPool, own: int) -> Read:
        partition, at, end, bytes_max, is_json = key
        async with self._reads.part(partition, at, bytes_max, own) as part:
            data = bytes(part.data)
            convert = partial(read_of, data, at, end, bytes_max, is_json=is_json)
            read = convert() if is_small(data) else await pool.run(convert)
        if read.size <= _RECENT_BYTES and read.found.next_offset > at:
            self._recent[key] = read
            if len(self._recent) > _RECENT_MAX:
                self._recent.popitem(last=False)
        return read

    def _ended(self, key: _ReadKey, task: "asyncio.Task[Read]") -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # all its readers may have gone


def _from(spans: Sequence[Span], offset: int) -> Iterator[Span]:
    return (span for span in spans if span.end > offset)
