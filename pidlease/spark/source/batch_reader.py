"""`spark.read`: a log as it is when the job is planned."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from typing_extensions import override

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.partition_offsets import OffsetRange
from pidlease.spark.pyspark_versions import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pidlease.spark.reader.log_parts import OFFSET_MAX, Part
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

_log = logging.getLogger(__name__)
_PARTITION: Final = ("topic", "partition")
_OFFSET: Final = "offset"


class LogReader(DataSourceReader):
    """Reads a log once.

    Parameters:
        schema: the result of `schema_of`.

    Raises:
        OptionError: an option is invalid.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:  # noqa: ARG002
        self._settings: Final = read_settings(options, streaming=False)
        self._filters: Final = PushedFilters()
        if self._settings.max_per_trigger is not None:
            _log.warning("maxOffsetsPerTrigger goes with spark.readStream; it is left out here")

    @override
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return list(self._filters.push(filters))

    @override
    def partitions(self) -> list[InputPartition]:
        # One task for each segment of a directory, or for each partition of a cluster.
        log = open_log(self._settings, durable=False)
        try:
            return [InputPartition(part) for part in self._parts(log)]
        finally:
            log.close()

    def _parts(self, log: SourceLog) -> Iterator[Part]:
        partitions = chosen(self._settings.choice, log.topics())
        starting, ending = self._settings.starting, self._settings.ending
        check_complete("startingOffsets", starting, partitions)
        check_complete("endingOffsets", ending, partitions)
        partitions = [each for each in partitions if self._filters.match(each)]
        for partition, available in log.ranges(partitions).items():
            start, end = self._between(partition, available)
            start, end = max(start, self._filters.start), min(end, self._filters.end)
            if start < end:
                yield from log.split(log.part(partition, start, end))

    def _between(self, partition: TopicPartition, available: OffsetRange) -> OffsetRange:
        """Return the offsets to read of those that a partition has."""
        start = resolved(self._settings.starting, partition, available)
        end = resolved(self._settings.ending, partition, available)
        for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
            if not available.start <= offset <= available.end:
                report_loss(f"{name}: {partition} has no offset {offset}; it goes from"
                            f" {available.start} to {available.end}", self._settings)  # fmt: skip
        return OffsetRange(max(start, available.start), min(end, available.end))

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part: Part | None = partition.value
        return iter(()) if part is None else read(part, self._settings)


class PushedFilters:
    """Spark's filters, as far as they exclude parts of a log.

    Attributes:
        start: the first offset that may match.
        end: the first offset after the last one that may match.
    """

    def __init__(self) -> None:
        self.start = 0
        self.end = OFFSET_MAX
        self._partitions: list[Filter] = []

    def push(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Take filters into account.

        Yields:
            The filters that Spark must apply itself. Those by offset are among them: sends that
            begin before an offset are read, too.
        """
        for each in filters:
            column = _column(each)
            if column in _PARTITION:
                self._partitions.append(each)
                continue
            if column == _OFFSET:
                self._narrow(each)
            yield each

    def match(self, partition: TopicPartition) -> bool:
        """Return whether a partition may have matching rows."""
        values = dict(zip(_PARTITION, partition, strict=True))
        return all(_holds(each, values[_column(each)]) for each in self._partitions)

    def _narrow(self, condition: Any) -> None:  # noqa: ANN401 - one of several classes
        values = [value for value in _values(condition) if value is not None]
        if isinstance(condition, EqualTo | In | GreaterThanOrEqual):
            self.start = max(self.start, min(values, default=OFFSET_MAX))
        elif isinstance(condition, GreaterThan):
            self.start = max(self.start, values[0] + 1)
        if isinstance(condition, EqualTo | In | LessThanOrEqual):
            self.end = min(self.end, max(values, default=-1) + 1)
        elif isinstance(condition, LessThan):
            self.end = min(self.end, values[0])


def _column(condition: Any) -> str:  # noqa: ANN401 - one of several classes
    """Return the column of a filter; empty if the filter is not supported."""
    known = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual | In
    if not isinstance(condition, known) or len(condition.attribute) != 1:
        return ""
    if not isinstance(condition, In) and condition.value is None:
        return ""
    return condition.attribute[0]


def _values(condition: Any) -> tuple[Any, ...]:  # noqa: ANN401 - one of several classes
    return tuple(condition.value) if isinstance(condition, In) else (condition.value,)


def _holds(condition: Any, value: Any) -> bool:  # noqa: ANN401 - one of several classes
    """Return whether a value passes a filter."""
    if isinstance(condition, EqualTo | In):
        return value in _values(condition)
    if isinstance(condition, GreaterThan):
        return bool(value > condition.value)
    if isinstance(condition, GreaterThanOrEqual):
        return bool(value >= condition.value)
    if isinstance(condition, LessThan):
        return bool(value < condition.value)
    return bool(value <= condition.value)
