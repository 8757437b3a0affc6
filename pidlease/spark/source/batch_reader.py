"""`spark.read`: a log as it is when a table is first read.

Spark plans the tasks of a table once, and keeps them for all later queries on it. So the reader
implements no `pushFilters`: Spark would keep the tasks that one query's filter leaves, and each
later query on the table would miss the other rows (seen with PySpark 4.1 and 4.2).
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from typing_extensions import override

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.partition_offsets import OffsetRange
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

_log = logging.getLogger(__name__)


class LogReader(DataSourceReader):
    """Reads a log once.

    Parameters:
        schema: the result of `schema_of`.

    Raises:
        OptionError: an option is invalid.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:  # noqa: ARG002
        self._settings: Final = read_settings(options, streaming=False)
        if self._settings.max_per_trigger is not None:
            _log.warning("maxOffsetsPerTrigger goes with spark.readStream; it is left out here")

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
        for partition, available in log.ranges(partitions).items():
            start, end = self._between(partition, available)
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
