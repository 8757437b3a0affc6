"""Reads records over HTTP: waits for them, and converts batches of the log to JSON.

Kafka clients compress their batches, and a small batch may decompress to any size. So batches are
decompressed up to a limit; the error about a larger one names the offset after it.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from pidlease.core.byte_budget import ByteBudget
from pidlease.engine.engine import UnknownTopicError
from pidlease.engine.partition import Partition
from pidlease.http_api.record_messages import RECORD_OVERHEAD_BYTES, ReadQuery, content_in_json
from pidlease.kafka.records.batch_records import (
    UndecodableError,
    batches_in,
    is_small,
    records_in,
)
from pidlease.kafka.records.identity_header import HEADER_KEY
from pidlease.storage.io_pool import IoPool
from proxy.http.log_reads import LogReads
from proxy.http.record_responses import UnreadableError

_OURS: Final = HEADER_KEY.decode()

_encode: Final[Callable[[object], str]] = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":")
).encode


class Page(NamedTuple):
    """A page of records.

    Attributes:
        records: each as JSON, separated by commas.
        next_offset: the offset after the last one.
        end_offset: the first offset that consumers could not read yet; -1: unknown.
    """

    records: bytes
    next_offset: int
    end_offset: int = -1


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
    for header, batch in batches_in(data):
        try:
            for record in records_in(header, batch):
                at = record.offset
                if at < offset:
                    continue
                if left <= 0:
                    return _page(records, offset)
                text, size = _in_json(at, record)
                records.append(text)
                offset = at + 1
                left -= size
        except UndecodableError as error:
            if records:
                break  # the next read, from here on, gets the error
            raise UnreadableError(offset, header.last_offset + 1, str(error)) from None
        offset = header.last_offset + 1
        if left <= 0:
            break
    return _page(records, offset)


def _page(records: list[str], next_offset: int) -> Page:
    return Page(",".join(records).encode(), next_offset)


def _in_json(offset: int, record: Any) -> tuple[str, int]:  # noqa: ANN401 - aiokafka's, in C
    """Return a record as JSON, and its size."""
    key, value = record.key, record.value
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    headers = []
    for name, content in record.headers:
        size += len(name) + len(content or b"")
        if name != _OURS:
            headers.append(
                f'{{"key":{encode_basestring(name)},"value":{_content_in_json(content)}}}'
            )
    # By hand: the encoder takes twice as long for a small record.
    text = (
        f'{{"offset":{offset},"timestamp_ms":{-1 if record.timestamp is None else record.timestamp}'
        f',"key":{_content_in_json(key)},"value":{_content_in_json(value)}'
        f',"headers":[{",".join(headers)}]}}'
    )
    return text, size


def _content_in_json(content: bytes | None) -> str:
    if content is None:
        return "null"
    found = content_in_json(content)
    return encode_basestring(found) if isinstance(found, str) else _encode(found)


class Reads:
    """Reads pages of records, a bounded number at a time.

    Parameters:
        memory: for reads and their responses.
    """

    def __init__(self, memory: ByteBudget) -> None:
        self._waiting: set[asyncio.Event] = set()
        self._closing = False
        self._reads: Final = LogReads(memory)

    def close(self) -> None:
        """End all waiting reads; they return the records that are there."""
        self._closing = True
        for event in self._waiting:
            event.set()

    async def page(
        self, request: Request, partition: Partition, query: ReadQuery, pool: IoPool, own: int
    ) -> Page:
        """Read a page; wait for records if there is none yet.

        Parameters:
            request: the wait ends when its client disconnects.
            pool: threads for large pages.
            own: bytes of the memory that the request holds already.

        Raises:
            UnknownTopicError: the topic was deleted meanwhile.
            OffsetRangeError: the log does not have the offset.
            UnreadableError: the batch at the offset cannot be read.
            LogStoppedError: the partition is stopped, and has no readable record at the offset.
            LogError: the log cannot be read.
            NoRoomError: there is no memory for what has arrived from Kafka.
        """
        offset = query.offset
        if offset is None:
            # With other writers, the log may begin later than this server knows.
            offset = (await partition.log_range())[0]
        if not query.wait_ms:
            return await self._page(partition, offset, query, pool, own)
        event = asyncio.Event()
        self._waiting.add(event)
        partition.watch(event)
        left = asyncio.create_task(_disconnected(request, event))
        try:
            latest = time.monotonic() + query.wait_ms / 1000
            while True:
                page = await self._page(partition, offset, query, pool, own)
                seconds = latest - time.monotonic()
                if page.records or seconds <= 0 or self._is_over(partition, left):
                    return page
                offset = page.next_offset
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await event.wait()
                event.clear()
        finally:
            left.cancel()
            partition.unwatch(event)
            self._waiting.discard(event)

    async def _page(
        self, partition: Partition, offset: int, query: ReadQuery, pool: IoPool, own: int
    ) -> Page:
        """Read the page that is there now."""
        _check_there(partition)
        end = partition.readable_end
        if not partition.log_is_shared and offset >= end:
            if partition.incomplete:
                raise partition.stopped_error()
            if offset == end:
                return Page(b"", offset, end)
        async with self._reads.part(partition, offset, query.max_bytes, own) as part:
            _check_there(partition)
            partition.counts.read(len(part.data), part.whole.batches, part.whole.records)
            data = bytes(part.data)
            convert = partial(page_of, data, offset, query.max_bytes)
            page = convert() if is_small(data) else await pool.run(convert)
            return page._replace(end_offset=part.end_offset)

    def _is_over(self, partition: Partition, left: asyncio.Task[None]) -> bool:
        # Another server may own it now: the next read is sent on there.
        return self._closing or partition.gone or bool(partition.elsewhere) or left.done()


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
