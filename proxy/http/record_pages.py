"""Reads records over HTTP: waits for them, and converts batches of the log to JSON.

Kafka clients compress their batches, and a small batch may decompress to any size. So batches are
decompressed up to a limit; the error about a larger one names the offset after it.
"""

import asyncio
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import structlog
from aiokafka.record.default_records import DefaultRecordBatch
from starlette.requests import Request

from pidlease.core.buffer import Buffer
from pidlease.engine.engine import UnknownTopicError
from pidlease.engine.partition import Partition
from pidlease.engine.topic_counts import count_read
from pidlease.http_api.record_messages import RECORD_OVERHEAD_BYTES, ReadQuery, content_in_json
from pidlease.kafka.records import first_record
from pidlease.kafka.records.identity_header import HEADER_KEY, IdentityError
from pidlease.kafka.records.record_batch import (
    ATTRIBUTES_AT,
    CODEC_BITS,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_PREFIX_BYTES,
    BatchHeader,
    CorruptBatchError,
    check_intact,
    read_header,
)
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, OffsetRangeError, reason_for_clients
from pidlease.storage.io_pool import IoPool
from proxy.http.record_responses import UnreadableError

#: The largest size that a batch may decompress to, in bytes.
UNPACKED_MAX: Final = 16 << 20
#: The size to try first.
_FIRST_TRY: Final = 256 << 10

#: Follows the batches: the parser, in C, reads one number beyond the end of a broken batch.
_PADDING: Final = bytes(32)

#: Reads that run at once: each needs memory beside its response, which no budget counts.
_AT_ONCE: Final = 2
#: The most to convert on the event loop: it takes a millisecond.
_INLINE_BYTES: Final = 32 << 10
_INLINE_RECORDS: Final = 100

_log = structlog.get_logger(__name__)
_OURS: Final = HEADER_KEY.decode()
_ATTRIBUTES: Final = struct.Struct(">h")
_LENGTH: Final = struct.Struct(">i")

_encode: Final[Callable[[object], str]] = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":")
).encode


class Page(NamedTuple):
    """A page of records.

    Attributes:
        records: each as JSON, separated by commas.
        next_offset: the offset after the last one.
    """

    records: bytes
    next_offset: int


def page_of(data: bytes, offset: int, bytes_max: int) -> Page:
    """Convert batches to records, from an offset on. May take long.

    Parameters:
        data: stored batches; the last may be incomplete.
        offset: of the first record to return; it is in the first batch.
        bytes_max: of records, but at least one record is returned.

    Raises:
        UnreadableError: the batch at the offset cannot be read.
    """
    records: list[str] = []
    left = bytes_max
    for header, batch in _batches(data):
        try:
            for record in _records(header, batch):
                at = record.offset
                if at < offset:
                    continue
                if left <= 0:
                    return _page(records, offset)
                text, size = _in_json(at, record)
                records.append(text)
                offset = at + 1
                left -= size
        except _BatchError as error:
            if records:
                break  # the next read, from here on, gets the error
            raise UnreadableError(offset, header.last_offset + 1, str(error)) from None
        offset = header.last_offset + 1
        if left <= 0:
            break
    return _page(records, offset)


def _page(records: list[str], next_offset: int) -> Page:
    return Page(",".join(records).encode(), next_offset)


class _BatchError(Exception):
    """A batch, or the rest of it, cannot be read."""


def _batches(data: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    padded = memoryview(data + _PADDING)
    at = 0
    while at + HEADER_BYTES <= len(data):
        header = read_header(data, at)
        if at + header.size > len(data):
            return
        yield header, padded[at : at + header.size]
        at += header.size


def _records(header: BatchHeader, batch: memoryview) -> Iterator[Any]:
    """Yield all records of a batch.

    Raises:
        _BatchError: the batch is damaged.
    """
    if header.is_control:
        return
    try:
        check_intact(header, batch)
        yield from DefaultRecordBatch(_unpacked(header, batch) if header.is_compressed else batch)
    except _BatchError:
        raise
    except (CorruptBatchError, IdentityError) as error:
        raise _BatchError(str(error)) from None
    except Exception as error:  # noqa: BLE001 - the producer wrote anything
        raise _BatchError(f"there are no {header.records} records ({error!r})") from None


def _unpacked(header: BatchHeader, batch: memoryview) -> memoryview:
    """Return a decompressed batch; its CRC is not updated."""
    records = _whole(header.codec, batch[HEADER_BYTES:])
    plain = bytearray(batch[:HEADER_BYTES])
    plain += records
    plain += _PADDING
    _ATTRIBUTES.pack_into(plain, ATTRIBUTES_AT, header.attributes & ~CODEC_BITS)
    size = HEADER_BYTES + len(records)
    _LENGTH.pack_into(plain, LENGTH_AT, size - LENGTH_PREFIX_BYTES)
    return memoryview(plain)[:size]


def _whole(codec: str, records: memoryview) -> Buffer:
    size = _FIRST_TRY
    while True:
        # Ask for one byte more than allowed: then the records are too large.
        found = first_record.unpack(codec, records, min(size, UNPACKED_MAX) + 1, UNPACKED_MAX)
        if len(found) <= min(size, UNPACKED_MAX):
            return found
        if size >= UNPACKED_MAX:
            raise _BatchError(f"they unpack to more than {UNPACKED_MAX} bytes, or are damaged")
        size *= 8


def _in_json(offset: int, record: Any) -> tuple[str, int]:  # noqa: ANN401 - aiokafka's, in C
    """Return a record as JSON, and its size."""
    key, value = record.key, record.value
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    headers = []
    for name, content in record.headers:
        size += len(name) + len(content or b"")
        if name != _OURS:
            headers.append({"key": name, "value": content_in_json(content)})
    fields = {
        "offset": offset,
        "timestamp_ms": -1 if record.timestamp is None else record.timestamp,
        "key": content_in_json(key),
        "value": content_in_json(value),
        "headers": headers,
    }
    return _encode(fields), size


class Reads:
    """Reads pages of records, a bounded number at a time."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Event] = set()
        self._closing = False
        self._reading: Final = asyncio.Semaphore(_AT_ONCE)

    def close(self) -> None:
        """End all waiting reads; they return the records that are there."""
        self._closing = True
        for event in self._waiting:
            event.set()

    async def page(
        self, request: Request, partition: Partition, query: ReadQuery, pool: IoPool
    ) -> Page:
        """Read a page; wait for records if there is none yet.

        Parameters:
            request: the wait ends when its client disconnects.
            pool: threads for large pages.

        Raises:
            UnknownTopicError: the topic was deleted meanwhile.
            OffsetRangeError: the log does not have the offset.
            UnreadableError: the batch at the offset cannot be read.
            LogStoppedError: the partition is stopped, and has no readable record at the offset.
            LogError: the log cannot be read.
        """
        offset = partition.log.start_offset if query.offset is None else query.offset
        if offset >= partition.readable_end and partition.incomplete:
            raise partition.stopped_error()
        if offset == partition.readable_end and query.wait_ms and not self._closing:
            await self._wait(request, partition, offset, query.wait_ms / 1000)
        _check_there(partition)
        if offset == partition.readable_end:
            return Page(b"", offset)
        async with self._reading:
            try:
                data = await partition.log.read(offset, query.max_bytes)
            except OffsetRangeError:
                if partition.incomplete:
                    raise partition.stopped_error() from None
                raise
            except OSError as error:
                LINES.write(_log, "error", "a log cannot be read", kind_of(error),
                            partition=str(partition.name), error=str(error))  # fmt: skip
                raise LogError(reason_for_clients(error)) from error
            _check_there(partition)
            await count_read(partition.counts, data)
            convert = partial(page_of, data, offset, query.max_bytes)
            return convert() if _is_small(data) else await pool.run(convert)

    async def _wait(
        self, request: Request, partition: Partition, offset: int, seconds: float
    ) -> None:
        """Return when there is a record at the offset, or the time is up."""
        event = asyncio.Event()
        self._waiting.add(event)
        partition.watch(event)
        left = asyncio.create_task(_disconnected(request, event))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while offset == partition.readable_end and not self._is_over(partition, left):
                        await event.wait()
                        event.clear()
        finally:
            left.cancel()
            partition.unwatch(event)
            self._waiting.discard(event)

    def _is_over(self, partition: Partition, left: asyncio.Task[None]) -> bool:
        return self._closing or partition.gone or left.done()


def _check_there(partition: Partition) -> None:
    if partition.gone:
        raise UnknownTopicError(f"there is no topic {partition.name.topic}")


async def _disconnected(request: Request, event: asyncio.Event) -> None:
    """Return when the client has disconnected, and set the event."""
    try:
        while (await request.receive())["type"] == "http.request":
            pass  # the rest of a body that a read does not need
    finally:
        event.set()


def _is_small(data: bytes) -> bool:
    if len(data) > _INLINE_BYTES:
        return False
    at = records = 0
    while at + HEADER_BYTES <= len(data):
        header = read_header(data, at)
        records += header.records
        if header.is_compressed or records > _INLINE_RECORDS:
            return False
        at += header.size
    return True
