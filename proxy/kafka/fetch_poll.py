"""What one Fetch asks for, and what was found for it; a request may name very many partitions."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.engine.topic_counts import count_read
from pidlease.kafka.codec.fetch import PartitionRecords
from pidlease.kafka.codec.time_slices import TimeSlices
from pidlease.kafka.error_codes import HELD_BACK
from pidlease.storage.errors import DamagedLogError, LogError, OffsetRangeError


@dataclass(slots=True)
class Wanted:
    """One partition of a request, and what was found for it."""

    index: int
    offset: int
    max_bytes: int
    partition: Partition | None
    data: bytes = b""
    code: ErrorCode = ErrorCode.none


def found(wanted: Wanted) -> PartitionRecords:
    """A partition's part of the response, as of now."""
    partition = wanted.partition
    if partition is None:
        return PartitionRecords(wanted.index, wanted.code, -1, -1, wanted.data)
    return PartitionRecords(
        wanted.index,
        wanted.code,
        partition.known_end,
        partition.log.start_offset,
        wanted.data,
    )


class Poll:
    """One request, from when it was read until its answer is made.

    Topics may be made and deleted whenever others have their turn: a partition that is gone by
    then is unknown.

    Parameters:
        request: the request.
        deadline: when it is to be answered at the latest, by time.monotonic.
    """

    def __init__(self, request: Any, deadline: float) -> None:  # noqa: ANN401 - one of kio's
        self.deadline: Final = deadline
        self.min_bytes: Final = max(request.min_bytes, 0)
        self.max_bytes: Final = max(request.max_bytes, 0)
        self.topics: Final[dict[str, list[Wanted]]] = {}
        self.rows: Final[list[Wanted]] = []
        #: Whether there is an error that is not held back.
        self.failed = False
        #: See `Slot.followed`; None: it does not wait yet.
        self.followed: asyncio.Future[None] | None = None
        self._turns = TimeSlices()

    @property
    def is_followed(self) -> bool:
        """Whether a request of another API waits for this response."""
        return self.followed is not None and self.followed.done()

    async def find(self, request: Any, engine: Engine) -> None:  # noqa: ANN401 - one of kio's
        """Find the partitions that are asked for."""
        for topic in request.topics:
            rows = self.topics.setdefault(topic.topic, [])
            for each in topic.partitions:
                number = each.partition
                found = engine.partition(topic.topic, number)
                row = Wanted(number, each.fetch_offset, each.partition_max_bytes, found)
                rows.append(row)
                self.rows.append(row)
                if self._turns.due():
                    await asyncio.sleep(0)

    async def watch(self, event: asyncio.Event) -> None:
        """Have an event set whenever there are more records."""
        for row in self.rows:
            if row.partition is not None:
                row.partition.watch(event)
            if self._turns.due():
                await asyncio.sleep(0)

    def unwatch(self, event: asyncio.Event) -> None:
        """Leave the event alone from now on. At once, for the client may be gone already."""
        for row in self.rows:
            if row.partition is not None:
                row.partition.unwatch(event)

    # ------------------------------------------------------------------ reading

    async def ready(self) -> list[Wanted]:
        """The partitions that have records; what is wrong with others is noted."""
        found = []
        for row in self.rows:
            if self._has_records(row):
                found.append(row)
            if self._turns.due():
                await asyncio.sleep(0)
        return found

    def _has_records(self, row: Wanted) -> bool:
        row.data, row.code = b"", ErrorCode.none
        partition = row.partition
        if partition is None or partition.gone:
            self._fail(row, ErrorCode.unknown_topic_or_partition)
            return False
        end = partition.readable_end
        if row.offset >= end and partition.incomplete:
            # Not an end, nor beyond it: a consumer that gets that reads on elsewhere.
            self._fail(row, ErrorCode.kafka_storage_error)
        elif row.offset > end:
            self._fail(row, ErrorCode.offset_out_of_range)
        return row.offset < end

    async def read(self, ready: list[Wanted], limit: int) -> int:
        """Read records, up to a limit; but the first batch that there is, whole.

        Parameters:
            ready: the partitions that have some.
            limit: in bytes.

        Returns:
            How many bytes were read.
        """
        left = limit
        for row in ready:
            if left <= 0 and left != limit:
                break
            if row.partition is not None:
                await self._read(row, row.partition, max(min(row.max_bytes, left), 1))
                left -= len(row.data)
        return limit - left

    async def _read(self, row: Wanted, partition: Partition, size: int) -> None:
        try:
            row.data = await partition.log.read(row.offset, size)
        except OffsetRangeError:
            stopped = bool(partition.incomplete)  # no consumer is reset meanwhile
            code = ErrorCode.kafka_storage_error if stopped else ErrorCode.offset_out_of_range
            self._fail(row, code)
        except DamagedLogError:
            self._fail(row, ErrorCode.corrupt_message)
        except (LogError, OSError):
            self._fail(row, ErrorCode.kafka_storage_error)
        if partition.gone:  # its topic was deleted while it was read
            row.data = b""
            self._fail(row, ErrorCode.unknown_topic_or_partition)

    async def count(self, count_error: Callable[[int], None]) -> None:
        """Count what is answered.

        Parameters:
            count_error: called with each error code.
        """
        for row in self.rows:
            if row.code is not ErrorCode.none:
                count_error(row.code.value)
            if row.data and row.partition is not None:
                await count_read(row.partition.counts, row.data)

    def _fail(self, row: Wanted, code: ErrorCode) -> None:
        row.code = code
        self.failed = self.failed or code.value not in HELD_BACK
