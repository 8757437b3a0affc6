"""Reads parts of logs for responses, which convert them: a bounded number at a time.

A partition of Kafka may have no leader for minutes. So a read of Kafka that takes long leaves the
bound; what arrives then counts as memory of reads. A disk bounds how long a read of the embedded
log takes.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog

from pidlease.core.byte_budget import ByteBudget
from pidlease.engine.partition import Partition
from pidlease.kafka.records.old_formats import OldFormatError
from pidlease.log.ports import CommittedPart
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, OffsetRangeError, reason_for_clients
from proxy.http.record_responses import NoRoomError, UnreadableError

#: Parts that are converted at once: each needs memory beside its response, which no budget counts.
_AT_ONCE: Final = 2
#: The memory for each part of Kafka that is read, or waits to be converted, and did not take long.
_PART_BYTES: Final = 4 << 20
_LONG_SECONDS: Final = 1.0

_log = structlog.get_logger(__name__)


class LogReads:
    """Reads parts of logs.

    Parameters:
        memory: for reads and their responses.
    """

    def __init__(self, memory: ByteBudget) -> None:
        self._memory: Final = memory
        self._converting: Final = asyncio.Semaphore(_AT_ONCE)
        self._fetching: Final = asyncio.Semaphore(max(memory.limit // _PART_BYTES, 2))

    @asynccontextmanager
    async def part(
        self, partition: Partition, offset: int, bytes_max: int, own: int
    ) -> AsyncIterator[CommittedPart]:
        """Read a part of a log, to be converted while the context lasts.

        Parameters:
            own: bytes of the memory that the reader holds already.

        Raises:
            OffsetRangeError: the log does not have the offset, and does not end there.
            LogStoppedError: the partition is stopped, and has no readable record at the offset.
            LogError: the log cannot be read.
            UnreadableError: the batch at the offset cannot be read.
            NoRoomError: there is no memory for what has arrived.
        """
        if not partition.log_is_shared:
            async with self._converting:
                yield await _read(partition, offset, bytes_max)
            return
        async with self._from_kafka(_read(partition, offset, bytes_max)) as part:
            size = len(part.data)
            if not self._memory.reserve(size, own=own):
                raise NoRoomError("requests in flight hold all memory; try again")
            try:
                async with self._converting:
                    yield part
            finally:
                self._memory.release(size)

    @asynccontextmanager
    async def _from_kafka(
        self, read: Coroutine[Any, Any, CommittedPart]
    ) -> AsyncIterator[CommittedPart]:
        """Read in turn, unless it takes long: then others do not wait for it."""
        try:
            await self._fetching.acquire()
        except BaseException:
            read.close()
            raise
        is_in_turn, reading = True, asyncio.create_task(read)
        try:
            await asyncio.wait((reading,), timeout=_LONG_SECONDS)
            if not reading.done():
                self._fetching.release()
                is_in_turn = False
            yield await reading
        finally:
            reading.cancel()
            if is_in_turn:
                self._fetching.release()


async def _read(partition: Partition, offset: int, bytes_max: int) -> CommittedPart:
    try:
        return await partition.read(offset, bytes_max)
    except OffsetRangeError:
        if partition.incomplete:
            raise partition.stopped_error() from None
        raise
    except OldFormatError as error:
        raise UnreadableError(error.offset, error.next_offset, str(error)) from None
    except OSError as error:
        LINES.write(_log, "error", "a log cannot be read", kind_of(error),
                    partition=str(partition.name), error=str(error))  # fmt: skip
        raise LogError(reason_for_clients(error)) from error
