"""`spark.readStream`: a log on and on, micro-batch by micro-batch.

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

from pidlease.spark.reader.errors import ReadError
from pidlease.spark.reader.log_directory import Span
from pidlease.spark.reader.read_parts import Part
from pidlease.spark.source.offset_choice import check_complete, lost, resolved
from pidlease.spark.source.settings import read_settings
from pidlease.spark.source.source_logs import Log, chosen, open_log, read
from pidlease.spark.source.source_offsets import Offsets, Place, Plain, from_plain, plain

#: How often it is looked for more.
_LOOK_S: Final = 0.1


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log on and on.

    Parameters:
        options: see `settings`.
        schema: what `columns.schema_of` says.

    Raises:
        OptionError: an option makes no sense.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:  # noqa: ARG002
        self._settings: Final = read_settings(options, streaming=True)
        self._log: Log | None = None
        self._newest: Offsets = {}
        self._seen: dict[Place, Span] = {}
        self._looked_s = -math.inf
        #: Where a query that ends when all is read ends.
        self._target: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What workers get: no connection."""
        return {**self.__dict__, "_log": None}

    # ------------------------------------------------------------------ on the driver

    def initialOffset(self) -> Plain:  # noqa: N802 - Spark's
        """See `DataSourceStreamReader`: where a query begins that has no checkpoint.

        Raises:
            ReadError: the log cannot be read, or does not have what `startingOffsets` says.
        """
        starting = self._settings.starting
        spans = self._spans()
        check_complete("startingOffsets", starting, spans)
        found = {place: resolved(starting, place, span) for place, span in spans.items()}
        for place, span in spans.items():
            if not span.start <= found[place] <= span.end:
                text = f"startingOffsets: {_missing(place, found[place], span)}"
                lost(text, self._settings)
                found[place] = min(max(found[place], span.start), span.end)
        return plain(found)

    def latestOffset(self, start: Plain, limit: ReadLimit) -> Plain:  # noqa: N802 - Spark's
        """See `DataSourceStreamReader`: up to where the next micro-batch goes.

        Raises:
            ReadError: the log cannot be read, or has lost what was not read yet.
        """
        begin = from_plain(start)
        spans = self._looked()
        self._newest = {place: span.end for place, span in spans.items()}
        ends = self._newest if self._target is None else self._target
        froms: Offsets = {}
        for place, span in spans.items():
            if place in ends:  # others came behind the end of the query
                froms[place] = self._from(begin, place, span)
        wanted = {place: max(ends[place], froms[place]) for place in froms}
        if isinstance(limit, ReadMaxRows):
            wanted = limited(froms, wanted, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            raise ReadError(f"a limit of {type(limit).__name__} is not supported")
        for place in begin.keys() - wanted.keys():
            wanted[place] = begin[place]
        return plain(wanted)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """See `DataSourceStreamReader`."""
        most = self._settings.max_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> Plain | None:  # noqa: N802 - Spark's
        """See `DataSourceStreamReader`: what there was when it was looked last."""
        return plain(self._newest) if self._newest else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """See `SupportsTriggerAvailableNow`."""
        self._target = {place: span.end for place, span in self._spans().items()}

    def partitions(self, start: Plain, end: Plain) -> list[InputPartition]:
        """See `DataSourceStreamReader`: one task for each partition that has something.

        Raises:
            ReadError: the log cannot be read, or does not have that (any more).
        """
        begin, behind = from_plain(start), from_plain(end)
        moved = [place for place, offset in behind.items() if offset > begin.get(place, -1)]
        if not moved:
            return []
        log = self._opened()
        topics = log.topics()
        there = [place for place in moved if place[1] < topics.get(place[0], 0)]
        for topic, partition in sorted(set(moved) - set(there)):
            lost(f"{topic}-{partition} is gone, and was not read to its end", self._settings)
        spans = log.spans(there)
        parts = []
        for place, span in spans.items():
            first = self._from(begin, place, span)
            if behind[place] > span.end:
                lost(f"{_missing(place, behind[place], span)}, and the query had gone on up to"
                     " there: it was cut, or made anew", self._settings)  # fmt: skip
            last = min(behind[place], span.end)
            if first < last:
                parts.append(InputPartition(log.part(place, first, last)))
        return parts

    def commit(self, end: Plain) -> None:
        """See `DataSourceStreamReader`: the checkpoint knows it, nobody else has to."""

    def stop(self) -> None:
        """See `DataSourceStreamReader`."""
        log, self._log = self._log, None
        if log is not None:
            log.close()

    # ------------------------------------------------------------------ on a worker

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `DataSourceStreamReader`."""
        part: Part | None = partition.value
        return iter(()) if part is None else read(part, self._settings)

    # ------------------------------------------------------------------ helpers

    def _opened(self) -> Log:
        if self._log is None:
            # What a crash may take away again must not be behind a checkpoint.
            self._log = open_log(self._settings, durable=True)
        return self._log

    def _spans(self) -> dict[Place, Span]:
        """All partitions that are read, as they are now."""
        log = self._opened()
        return log.spans(chosen(self._settings.choice, log.topics()))

    def _looked(self) -> dict[Place, Span]:
        """The same, looked for anew only after a while: Spark asks a hundred times a second."""
        now = time.monotonic()
        if now - self._looked_s > _LOOK_S:
            self._seen = self._spans()
            self._looked_s = now
        return self._seen

    def _from(self, begin: Offsets, place: Place, span: Span) -> int:
        """Where a partition goes on; one that was found on the way is read from its beginning.

        Raises:
            ReadError: what comes next is not there any more.
        """
        offset = begin.get(place, 0)
        if offset < span.start:
            lost(f"{_missing(place, offset, span)}: what was not read yet has been deleted",
                 self._settings)  # fmt: skip
        elif offset > span.end:
            lost(f"{_missing(place, offset, span)}, and was read up to there: it was cut, or made"
                 " anew", self._settings)  # fmt: skip
            return span.end
        return max(offset, span.start)


def _missing(place: Place, offset: int, span: Span) -> str:
    return f"{place[0]}-{place[1]} has no offset {offset}; it goes from {span.start} to {span.end}"


def limited(begin: Offsets, end: Offsets, most: int) -> Offsets:
    """Ends so that all partitions together have so many offsets at most.

    Each gets a share by how much it has, as in Spark's Kafka source; shares are rounded down, and
    what that leaves goes to the first ones that have more.

    Parameters:
        begin: where each partition begins,
        end: and the end of what there is.
        most: how many offsets.
    """
    sizes = {place: end[place] - begin[place] for place in end}
    total = sum(sizes.values())
    if total <= most:
        return end
    shares = {place: size * most // total for place, size in sizes.items()}
    left = most - sum(shares.values())
    for place in sorted(shares):
        if left and shares[place] < sizes[place]:
            shares[place] += 1
            left -= 1
    return {place: begin[place] + share for place, share in shares.items()}
