"""An immutable view of a partition's log, from which readers read without a lock.

An append or a removal makes a new view. So a reader sees the records that were acknowledged when it
began, while the next append runs.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Final, NamedTuple

from pidlease.core.buffer import Buffer
from pidlease.core.timed_offset import TimedOffset
from pidlease.kafka.records.record_batch import (
    HEADER_BYTES,
    MAGIC,
    WholeBatches,
    read_header,
    whole_batches,
)
from pidlease.kafka.records.timestamp_search import first_at_or_after
from pidlease.log.ports import LogPart
from pidlease.log.segments import sparse_index
from pidlease.log.segments.open_segments import OpenSegments
from pidlease.log.segments.scan import BrokenBatchError, ScannedBatch, scan, scan_headers
from pidlease.log.segments.segment import LOG_SUFFIX, TIME_SUFFIX, Keep, SegmentFiles
from pidlease.log.segments.sparse_index import TIME_ENTRY
from pidlease.storage.errors import DamagedLogError, LogError, OffsetRangeError

#: The largest read on the event loop; copying it takes tens of microseconds.
_CACHED_BYTES_MAX: Final = 1 << 20
#: The most batches in it; finding their ends takes some hundred microseconds.
_CACHED_BATCHES_MAX: Final = 2000
_NOTHING: Final = LogPart(b"", WholeBatches(0, 0, 0, -1))


class LogView(NamedTuple):
    """Shows a partition's log at one moment. All methods but `read_cached` block.

    Attributes:
        segments: the segments, oldest first.
        end_offset: the first offset that is not acknowledged.
        last_size: the acknowledged bytes of the last segment.
        deleted_to: the offset before which a client deleted all records.
    """

    segments: tuple[SegmentFiles, ...]
    end_offset: int
    last_size: int
    deleted_to: int = 0

    @property
    def kept_offset(self) -> int:
        """The first offset that is still on the disk."""
        return self.segments[0].base_offset

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return min(max(self.kept_offset, self.deleted_to), self.end_offset)

    def read(
        self, offset: int, max_bytes: int, positions: "ReadPositions", keep: Keep | None = None
    ) -> LogPart:
        """Read from the batch that contains an offset on; the last batch may be cut by the limit.

        Returns at least one complete batch, whatever its size; nothing at the end of the log.

        Parameters:
            positions: where readers may continue.
            keep: takes the open segment.

        Raises:
            OffsetRangeError: the log does not have the offset.
            DamagedLogError: the bytes there are not intact.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetRangeError(offset, self.start_offset, self.end_offset)
        if offset == self.end_offset:
            return _NOTHING
        segment = self.segments[self._place(offset)]
        try:
            with segment.telling_damage(), segment.reading(LOG_SUFFIX, keep) as log:
                end = self.last_size if segment is self.segments[-1] else log.size()
                position = positions.find(segment.base_offset, offset, end)
                data = (
                    b"" if position < 0 else log.read_at(min(max_bytes, end - position), position)
                )
                if not _begins_at(data, offset):
                    position = segment.position_of(offset, log, end)
                    if position >= end:
                        raise BrokenBatchError(position, "no batch has this offset")
                    data = log.read_at(min(max_bytes, end - position), position)
                size = read_header(
                    data if len(data) >= HEADER_BYTES else log.read_at(HEADER_BYTES, position)
                ).size
                if size > end - position:
                    # The bytes after the end are not acknowledged.
                    raise BrokenBatchError(position, "the batch is longer than the log")
                if len(data) < size:
                    data = log.read_at(size, position)
                    if len(data) < size:
                        raise BrokenBatchError(position, "the file is shorter than the log")
                whole = whole_batches(data)
                positions.move(segment.base_offset, offset, position, whole)
                return LogPart(data, whole)
        except FileNotFoundError:
            # Retention has removed the segment meanwhile.
            raise OffsetRangeError(offset, offset + 1, self.end_offset) from None

    def read_cached(
        self, offset: int, max_bytes: int, positions: "ReadPositions", opened: OpenSegments
    ) -> LogPart | None:
        """Do what `read` does for a reader that continues, without a wait; None: `read` must.

        Parameters:
            positions: where readers may continue.
            opened: the open segments.
        """
        if max_bytes > _CACHED_BYTES_MAX or not self.start_offset <= offset < self.end_offset:
            return None
        segment = self.segments[self._place(offset)]
        log = opened.get(segment)
        if log is None:
            return None
        end = self.last_size if segment is self.segments[-1] else log.size()
        position = positions.find(segment.base_offset, offset, end)
        if position < 0:
            return None
        size = min(max(max_bytes, HEADER_BYTES), end - position)
        data = log.read_cached(size, position)
        if data is None or not _begins_at(data, offset):
            return None
        first = read_header(data).size
        if size // first >= _CACHED_BATCHES_MAX:
            return None  # as the first one is, so are most of the others
        if first > size:
            if first > min(_CACHED_BYTES_MAX, end - position):
                return None
            data = log.read_cached(first, position)
            if data is None:
                return None
        whole = whole_batches(data, batches_max=_CACHED_BATCHES_MAX)
        if whole.batches == _CACHED_BATCHES_MAX:
            return None  # there may be many more, and a thread has time to count them
        positions.move(segment.base_offset, offset, position, whole)
        return LogPart(data, whole)

    def find_time(self, timestamp: int) -> TimedOffset | None:
        """Return the first record with this timestamp (ms) or a later one."""
        for segment in self.segments[:-1]:
            with suppress(FileNotFoundError):  # retention has removed it meanwhile
                if segment.max_timestamp() < timestamp:
                    continue
                found = _find_time_in(segment, segment.log_size(), timestamp, self.start_offset)
                if found is not None:
                    return found
        if not self.last_size:
            return None  # its file may be missing, if all segments are
        return _find_time_in(self.segments[-1], self.last_size, timestamp, self.start_offset)

    def scan(self, offset: int) -> Iterator[ScannedBatch]:
        """Yield all batches from `offset` on; check their CRCs, and that no offset is missing.

        Raises:
            DamagedLogError: a batch is not intact, or one is missing.
            LogError: the log does not end at the end offset.
        """
        expected: int | None = None
        for segment in self.segments[self._place(offset) :]:
            for batch in self._scan_segment(segment, offset, expected):
                expected = batch.header.last_offset + 1
                yield batch
        if expected is not None and expected != self.end_offset:
            raise LogError(f"the log ends at {expected}, not at {self.end_offset}")

    def up_to(self, offset: int) -> "LogView":
        """Return this view with an earlier end: an offset, or the first damage before it."""
        index = self._place(min(offset, self.end_offset))
        segment = self.segments[index]
        end, size = segment.base_offset, 0
        with suppress(DamagedLogError, OSError):
            for batch in self._scan_segment(segment, end, None):
                if batch.header.last_offset >= offset:
                    break
                end, size = batch.header.last_offset + 1, batch.position + batch.header.size
        return self._replace(segments=self.segments[: index + 1], end_offset=end, last_size=size)

    def _place(self, offset: int) -> int:
        """Return the index of the segment that contains an offset; 0 for earlier offsets."""
        return max(bisect_right(self.segments, offset, key=attrgetter("base_offset")) - 1, 0)

    def _scan_segment(
        self, segment: SegmentFiles, offset: int, expected: int | None
    ) -> Iterator[ScannedBatch]:
        if expected not in (None, segment.base_offset):
            path = segment.path(LOG_SUFFIX)
            raise DamagedLogError(path, 0, f"offset {expected} should stand here")
        with segment.reading(LOG_SUFFIX) as log, segment.telling_damage():
            end = self.last_size if segment is self.segments[-1] else log.size()
            if offset <= segment.base_offset:
                yield from scan(log, 0, end, segment.base_offset)
            else:
                position = segment.position_of(offset, log, end)
                yield from scan(log, position, end)


def _begins_at(data: Buffer, offset: int) -> bool:
    """Return whether bytes of a log begin with the header of the batch at an offset."""
    if len(data) < HEADER_BYTES:
        return False
    header = read_header(data)
    return header.base_offset == offset and header.magic == MAGIC and header.size >= HEADER_BYTES


class ReadPositions:
    """Remembers where in its segment each reader's next batch begins, so that none is searched.

    Acknowledged bytes of a segment never change, so a position stays right. Threads share it: each
    call changes the dict in single operations, and a lost update costs one search.

    Parameters:
        limit: how many positions to remember; the oldest are forgotten.
    """

    def __init__(self, limit: int = 16) -> None:
        self._limit: Final = limit
        #: By a segment's base offset, and the offset of the batch: the position, and how many
        #: readers continue there.
        self._positions: dict[tuple[int, int], tuple[int, int]] = {}

    def find(self, base_offset: int, offset: int, end: int) -> int:
        """Return the position of the batch at an offset, before `end`; -1: unknown."""
        known = 0 if offset == base_offset else -1
        position, _ = self._positions.get((base_offset, offset), (known, 0))
        return position if position < end else -1

    def move(self, base_offset: int, offset: int, position: int, whole: WholeBatches) -> None:
        """Note that a reader gets data, and will continue after the whole batches in it.

        Parameters:
            base_offset: of the segment.
            offset: of the reader until now.
            position: of the data in the segment.
        """
        before, readers = self._positions.pop((base_offset, offset), (0, 0))
        if readers > 1:
            self._positions[base_offset, offset] = before, readers - 1
        if whole.size:
            _, readers = self._positions.pop((base_offset, whole.end_offset), (0, 0))
            self._positions[base_offset, whole.end_offset] = position + whole.size, readers + 1
            if len(self._positions) > self._limit:
                with suppress(StopIteration, RuntimeError, KeyError):  # other threads were faster
                    del self._positions[next(iter(self._positions))]


def _find_time_in(
    segment: SegmentFiles, end: int, timestamp: int, start_offset: int
) -> TimedOffset | None:
    offset = segment.base_offset
    floor = None
    with suppress(FileNotFoundError), segment.reading(TIME_SUFFIX) as times:
        floor = sparse_index.floor_entry(times, TIME_ENTRY, timestamp - 1)
    if floor is not None and segment.is_true_time(floor):
        offset += floor[1]
    offset = max(offset, start_offset)
    with segment.reading(LOG_SUFFIX) as log, segment.telling_damage():
        for position, header in scan_headers(log, segment.position_of(offset, log, end), end):
            if header.max_timestamp >= timestamp:
                data = log.read_at(header.size, position)
                found = first_at_or_after(data, header, timestamp, start_offset)
                if found is not None:
                    return found
    return None
