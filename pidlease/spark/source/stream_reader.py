"""`spark.readStream`: a log as it grows, micro-batch by micro-batch.

A micro-batch has exactly one task for each partition with new records, and that task has them in
the order of their offsets.
"""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import ReadError
from pidlease.spark.partition_offsets import (
    OffsetRange,
    Offsets,
    OffsetsJson,
    offsets_from_json,
    offsets_to_json,
)
from pidlease.spark.reader.log_parts import Part
from pidlease.spark.source.settings import read_settings
from pidlease.spark.source.source_logs import (
    SourceLog,
    check_complete,
    chosen,
    open_log,
    read,
    report_loss,
    resolved,
)

#: Refresh interval of the log's offsets.
_LOOK_S: Final = 0.1
#: Not failOnDataLoss: offsets would be read a second time, and stand for other records.
_BEGIN_ANEW: Final = "begin with a new checkpoint, and write to a new topic to read all of it again"


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log as it grows.

    Parameters:
        schema: the result of `schema_of`.

    Raises:
        OptionError: an option is invalid.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:  # noqa: ARG002
        self._settings: Final = read_settings(options, streaming=True)
        self._log: SourceLog | None = None
        self._newest: Offsets = {}
        self._seen: dict[TopicPartition, OffsetRange] = {}
        self._looked_s = -math.inf
        #: Deleted partitions that were reported.
        self._gone: set[TopicPartition] = set()
        #: The end of a query with trigger AvailableNow.
        self._target: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the connection, for workers."""
        return {**self.__dict__, "_log": None}

    # ------------------------------------------------------------------ on the driver

    @override
    def initialOffset(self) -> OffsetsJson:
        starting = self._settings.starting
        ranges = self._ranges()
        check_complete("startingOffsets", starting, ranges)
        offsets = {each: resolved(starting, each, available) for each, available in ranges.items()}
        for partition, available in ranges.items():
            offset = offsets[partition]
            if not available.start <= offset <= available.end:
                text = f"startingOffsets: {_missing(partition, offset, available)}"
                report_loss(text, self._settings)
                offsets[partition] = min(max(offset, available.start), available.end)
        return offsets_to_json(offsets)

    @override
    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:
        begin = offsets_from_json(start)
        ranges = self._recent_ranges()
        self._newest = {partition: available.end for partition, available in ranges.items()}
        targets = self._newest if self._target is None else self._target
        starts: Offsets = {}
        for partition, available in ranges.items():
            if partition in targets:  # a partition added later is after the end of the query
                starts[partition] = self._start(begin, partition, available)
        ends = {partition: max(targets[partition], starts[partition]) for partition in starts}
        if isinstance(limit, ReadMaxRows):
            ends = limited(starts, ends, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            raise ReadError(f"a limit of {type(limit).__name__} is not supported")
        for partition in sorted((begin.keys() | (self._target or {}).keys()) - ends.keys()):
            self._report_gone(partition)
            if partition in begin:  # a new topic of that name is not taken for the old one
                ends[partition] = begin[partition]
        return offsets_to_json(ends)

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._settings.max_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @override
    def reportLatestOffset(self) -> OffsetsJson | None:
        return offsets_to_json(self._newest) if self._newest else None

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {partition: available.end for partition, available in self._ranges().items()}

    @override
    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[InputPartition]:
        begin, ends = offsets_from_json(start), offsets_from_json(end)
        moved = [each for each, offset in ends.items() if offset > begin.get(each, -1)]
        if not moved:
            return []
        log = self._opened()
        topics = log.topics()
        existing = [each for each in moved if each.partition < topics.get(each.topic, 0)]
        for partition in sorted(set(moved) - set(existing)):
            self._report_gone(partition)
        parts = []
        for partition, available in log.ranges(existing).items():
            first = self._start(begin, partition, available)
            if ends[partition] > available.end:
                report_loss(f"{_missing(partition, ends[partition], available)}, but the query had"
                            " seen it: the partition was cut or recreated",
                            self._settings, _BEGIN_ANEW)  # fmt: skip
            last = min(ends[partition], available.end)
            if first < last:
                parts.append(InputPartition(log.part(partition, first, last)))
        return parts

    @override
    def commit(self, end: OffsetsJson) -> None:
        pass  # Spark's checkpoint is the only place that needs it

    @override
    def stop(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()

    # ------------------------------------------------------------------ on a worker

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part: Part | None = partition.value
        return iter(()) if part is None else read(part, self._settings)

    # ------------------------------------------------------------------ helpers

    def _report_gone(self, partition: TopicPartition) -> None:
        """Report a deleted partition, once: Spark asks a hundred times a second.

        It may have had unread records, so this is a loss, as it is for Spark's Kafka source.

        Raises:
            ReadError: option failOnDataLoss is set.
        """
        if partition not in self._gone:
            report_loss(f"{partition} is gone: its topic was deleted, maybe with unread records",
                        self._settings)  # fmt: skip
            self._gone.add(partition)

    def _opened(self) -> SourceLog:
        if self._log is None:
            # A checkpoint must not contain offsets that a crash of the server may take away.
            self._log = open_log(self._settings, durable=True)
        return self._log

    def _ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Return the offsets that all partitions to read have now."""
        log = self._opened()
        return log.ranges(chosen(self._settings.choice, log.topics()))

    def _recent_ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Return the last offsets if they are recent: Spark asks a hundred times a second."""
        now = time.monotonic()
        if now - self._looked_s > _LOOK_S:
            self._seen = self._ranges()
            self._looked_s = now
        return self._seen

    def _start(self, begin: Offsets, partition: TopicPartition, available: OffsetRange) -> int:
        """Return where to resume a partition; a new partition is read from its beginning.

        Raises:
            ReadError: the next offset does not exist any more.
        """
        offset = begin.get(partition, 0)
        if offset < available.start:
            report_loss(f"{_missing(partition, offset, available)}: unread records were deleted",
                        self._settings)  # fmt: skip
        elif offset > available.end:
            report_loss(f"{_missing(partition, offset, available)}, and was read up to {offset}: it"
                        " was cut or recreated", self._settings, _BEGIN_ANEW)  # fmt: skip
            return available.end
        return max(offset, available.start)


def _missing(partition: TopicPartition, offset: int, available: OffsetRange) -> str:
    return f"{partition} has no offset {offset}; it goes from {available.start} to {available.end}"


def limited(begin: Offsets, end: Offsets, most: int) -> Offsets:
    """Return ends so that all partitions together have at most so many offsets.

    The share of each is proportional to what it has, as in Spark's Kafka source. Shares are rounded
    down, and the rest goes to the first partitions that have more.

    Parameters:
        begin: the start of each partition.
        end: the end of each partition.
        most: the most offsets of all partitions together.
    """
    sizes = {partition: end[partition] - begin[partition] for partition in end}
    total = sum(sizes.values())
    if total <= most:
        return end
    shares = {partition: size * most // total for partition, size in sizes.items()}
    left = most - sum(shares.values())
    for partition in sorted(shares):
        if left and shares[partition] < sizes[partition]:
            shares[partition] += 1
            left -= 1
    return {partition: begin[partition] + share for partition, share in shares.items()}
