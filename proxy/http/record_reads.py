"""Reads that wait for records, and are answered with them."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
from starlette.requests import Request

from pidlease.engine.engine import UnknownTopicError
from pidlease.engine.partition import Partition
from pidlease.engine.topic_counts import count_read
from pidlease.http_api.record_messages import ReadQuery
from pidlease.kafka.records.record_batch import HEADER_BYTES, read_header
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, OffsetRangeError, reason_for_clients
from pidlease.storage.io_pool import IoPool
from proxy.http.record_pages import Page, page_of

#: Reads that are under way at once: what they take beside their answers comes that often.
_AT_ONCE: Final = 2
#: What is told on the event loop: a millisecond at most.
_INLINE_BYTES: Final = 32 << 10
_INLINE_RECORDS: Final = 100

_log = structlog.get_logger(__name__)


class Reads:
    """Reads of all partitions."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Event] = set()
        self._closing = False
        self._reading: Final = asyncio.Semaphore(_AT_ONCE)

    def close(self) -> None:
        """Let all reads end with what there is."""
        self._closing = True
        for event in self._waiting:
            event.set()

    async def page(
        self, request: Request, partition: Partition, query: ReadQuery, pool: IoPool
    ) -> Page:
        """Read a page; where there is nothing yet, wait for it.

        Parameters:
            request: where it came from; who goes away is not waited for.
            partition: the partition.
            query: what is asked for.
            pool: the threads for what takes long.

        Raises:
            UnknownTopicError: the topic was deleted meanwhile.
            OffsetRangeError: the log does not have the offset.
            UnreadableError: what stands there cannot be told.
            LogStoppedError: the partition is stopped, and what is asked for cannot be read.
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
            tell = partial(page_of, data, offset, query.max_bytes)
            return tell() if _is_small(data) else await pool.run(tell)

    async def _wait(
        self, request: Request, partition: Partition, offset: int, seconds: float
    ) -> None:
        """Return when there is something behind an offset, or the time is up."""
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
    """Return when the client has gone away, and wake up who waits for it."""
    try:
        while (await request.receive())["type"] == "http.request":
            pass  # the rest of a body that nobody asked for
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
