"""One Fetch request on the embedded log: its partitions, and the records read for each.

A request may name very many partitions, so the loops over them yield to other requests.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from pidlease.core.buffer import Buffer
from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.kafka.codec.fetch import FetchRequest, PartitionRecords
from pidlease.kafka.codec.time_slices import TimeSlices
from pidlease.kafka.error_codes import HELD_BACK
from pidlease.kafka.records.record_batch import WholeBatches, whole_batches
from pidlease.storage.errors import DamagedLogError, LogError, OffsetRangeError

#: What takes about as long as one of `TimeSlices`' steps: a part of a read, as a whole and for its
#: bytes and its batches.
_READ_STEPS: Final = 10
_STEP_BYTES: Final = 16 << 10
_STEP_BATCHES: Final = 4


@dataclass(slots=True)
class PartitionFetch:
    """One partition of a request, and the records or error for it.

    Attributes:
        data: whole batches.
        whole: the counts of the batches in it; None: there are none.
    """

    index: int
    offset: int
    max_bytes: int
    partition: Partition | None
    data: Buffer = b""
    whole: WholeBatches | None = None
    code: ErrorCode = ErrorCode.none

    def clear(self) -> None:
        """Drop the records."""
        self.data, self.whole = b"", None


def partition_records(row: PartitionFetch) -> PartitionRecords:
    """Return the partition's part of the response, with its present offsets."""
    end, start = -1, -1
    if row.partition is not None:
        end, start = row.partition.known_end, row.partition.log.start_offset
    return PartitionRecords(row.index, row.code, end, start, row.data)


class Poll:
    """One request, from its decoding until its response is encoded.

    Topics may be created and deleted whenever other tasks run: a partition that was deleted
    meanwhile gets the error for an unknown one.

    Parameters:
        deadline: the latest time of the response, by time.monotonic.
    """

    def __init__(self, request: FetchRequest, deadline: float) -> None:
        self.deadline: Final = deadline
        self.min_bytes: Final = max(request.bytes_min, 0)
        self.max_bytes: Final = max(request.bytes_max, 0)
        self.topics: Final[dict[str, list[PartitionFetch]]] = {}
        self.rows: Final[list[PartitionFetch]] = []
        #: Whether a partition has an error that must be reported at once.
        self.failed = False
        #: The future of `Slot.followed`; None: the poll does not wait yet.
        self.followed: asyncio.Future[None] | None = None
        self._turns = TimeSlices()

    @property
    def is_followed(self) -> bool:
        """Whether a request of another API waits for this response."""
        return self.followed is not None and self.followed.done()

    async def find(self, request: FetchRequest, engine: Engine) -> None:
        """Look up the requested partitions."""
        for topic, positions in request.topics:
            rows = self.topics.setdefault(topic, [])
            for number, offset, bytes_max in positions:
                found = engine.partition(topic, number)
                row = PartitionFetch(number, offset, bytes_max, found)
                rows.append(row)
                self.rows.append(row)
                if self._turns.due():
                    await asyncio.sleep(0)

    async def watch(self, event: asyncio.Event) -> None:
        """Set the event whenever one of the partitions has new records."""
        for row in self.rows:
            if row.partition is not None:
                row.partition.watch(event)
            if self._turns.due():
                await asyncio.sleep(0)

    def unwatch(self, event: asyncio.Event) -> None:
        """Stop setting the event. Without a yield: the task may have been cancelled."""
        for row in self.rows:
            if row.partition is not None:
                row.partition.unwatch(event)

    # ------------------------------------------------------------------ reading

    async def ready(self) -> list[PartitionFetch]:
        """Return the partitions that have records; note the errors of the others."""
        found = []
        for row in self.rows:
            if self._has_records(row):
                found.append(row)
            if self._turns.due():
                await asyncio.sleep(0)
        return found

    def _has_records(self, row: PartitionFetch) -> bool:
        row.clear()
        row.code = ErrorCode.none
        partition = row.partition
        if partition is None or partition.gone:
            self._fail(row, ErrorCode.unknown_topic_or_partition)
            return False
        end = partition.readable_end
        if row.offset >= end and partition.incomplete:
            # Neither "end of the log" nor "out of range": acknowledged records may follow, and
            # after the latter a consumer would reset its position.
            self._fail(row, ErrorCode.kafka_storage_error)
        elif row.offset > end:
            self._fail(row, ErrorCode.offset_out_of_range)
        return row.offset < end

    async def read(self, ready: list[PartitionFetch], limit: int) -> int:
        """Read at most `limit` bytes, but the first batch whole; return the number of bytes.

        Parts of batches count, but are not returned.

        Parameters:
            ready: the partitions that have records.
        """
        left = limit
        for row in ready:
            if left <= 0 and left != limit:
                break
            if row.partition is not None:
                size, batches = await self._read(
                    row, row.partition, max(min(row.max_bytes, left), 1)
                )
                left -= size
                steps = _READ_STEPS + size // _STEP_BYTES + batches // _STEP_BATCHES
                if self._turns.due(steps):
                    await asyncio.sleep(0)
        return limit - left

    async def _read(
        self, row: PartitionFetch, partition: Partition, bytes_max: int
    ) -> tuple[int, int]:
        """Read a partition's records; return how many bytes and batches were read."""
        size = batches = 0
        try:
            data, whole = await partition.log.read(row.offset, bytes_max)
            size, batches = len(data), whole.batches
            if whole.end_offset > partition.readable_end:
                # The log has records that count only when they are applied to the producers.
                whole = whole_batches(data, partition.readable_end)
            row.data, row.whole = memoryview(data)[: whole.size], whole
        except OffsetRangeError:
            stopped = bool(partition.incomplete)  # then no consumer may reset its position
            code = ErrorCode.kafka_storage_error if stopped else ErrorCode.offset_out_of_range
            self._fail(row, code)
        except DamagedLogError:
            self._fail(row, ErrorCode.corrupt_message)
        except (LogError, OSError):
            self._fail(row, ErrorCode.kafka_storage_error)
        if partition.gone:  # the topic was deleted during the read
            row.clear()
            self._fail(row, ErrorCode.unknown_topic_or_partition)
        return size, batches

    def count(self, count_error: Callable[[int], None]) -> None:
        """Count the returned records, and call `count_error` with each error code."""
        for row in self.rows:
            if row.code is not ErrorCode.none:
                count_error(row.code.value)
            if row.whole is not None and row.partition is not None:
                row.partition.counts.read(len(row.data), row.whole.batches, row.whole.records)

    def _fail(self, row: PartitionFetch, code: ErrorCode) -> None:
        row.code = code
        self.failed = self.failed or code.value not in HELD_BACK
