"""`spark.read`: a log as it is when the job is planned."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pidlease.spark.reader.log_directory import Span
from pidlease.spark.reader.read_parts import Part
from pidlease.spark.source.offset_choice import check_complete, lost, resolved
from pidlease.spark.source.partition_filters import Wanted
from pidlease.spark.source.settings import read_settings
from pidlease.spark.source.source_logs import Log, chosen, open_log, read
from pidlease.spark.source.source_offsets import Place

_log = logging.getLogger(__name__)


class LogReader(DataSourceReader):
    """Reads a log once.

    Parameters:
        options: see `settings`.
        schema: what `columns.schema_of` says.

    Raises:
        OptionError: an option makes no sense.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:  # noqa: ARG002
        self._settings: Final = read_settings(options, streaming=False)
        self._wanted: Final = Wanted()
        if self._settings.max_per_trigger is not None:
            _log.warning("maxOffsetsPerTrigger goes with spark.readStream; it is left out here")

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's
        """See `DataSourceReader`."""
        return list(self._wanted.push(filters))

    def partitions(self) -> list[InputPartition]:
        """See `DataSourceReader`: a task for each segment, or for each partition of a cluster.

        Raises:
            ReadError: the log cannot be read.
        """
        log = open_log(self._settings, durable=False)
        try:
            return [InputPartition(part) for part in self._parts(log)]
        finally:
            log.close()

    def _parts(self, log: Log) -> Iterator[Part]:
        places = chosen(self._settings.choice, log.topics())
        starting, ending = self._settings.starting, self._settings.ending
        check_complete("startingOffsets", starting, places)
        check_complete("endingOffsets", ending, places)
        places = [place for place in places if self._wanted.takes(place)]
        for place, span in log.spans(places).items():
            start, end = self._between(place, span)
            start, end = max(start, self._wanted.start), min(end, self._wanted.end)
            if start < end:
                yield from log.split(log.part(place, start, end))

    def _between(self, place: Place, span: Span) -> tuple[int, int]:
        """From where to where a partition is read."""
        start = resolved(self._settings.starting, place, span)
        end = resolved(self._settings.ending, place, span)
        for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
            if not span.start <= offset <= span.end:
                lost(f"{name}: {place[0]}-{place[1]} has no offset {offset}; it goes from"
                     f" {span.start} to {span.end}", self._settings)  # fmt: skip
        return max(start, span.start), min(end, span.end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `DataSourceReader`."""
        part: Part | None = partition.value
        return iter(()) if part is None else read(part, self._settings)
