"""The rows of a task: which numbers they have, and where they go.

Checked is that all are of one partition of the source, and in its order; otherwise the task is
refused before it sends anything of the batch that is wrong.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pidlease.spark.errors import SinkError
from pidlease.spark.sink.query_columns import Columns
from pidlease.spark.sink.run_state import Place

_ONE_TASK: Final = (
    "; something between source and sink moves rows to other tasks, or changes their order, and"
    " then nothing tells a retry from a new row"
)


class Rows(NamedTuple):
    """Rows for one partition of the destination, in their order.

    Attributes:
        numbers: they rise.
        batch: the rows; None in `picks`: all of them.
        picks: which of them.
    """

    there: Place
    numbers: np.ndarray
    batch: pa.RecordBatch
    picks: np.ndarray | None


class Numbering:
    """Numbers a task's rows.

    Parameters:
        columns: which columns are what.
        rows_max: how many rows one record of the source may become.
        renamed: the destination's topic by the source's.
        spans: the offsets of the micro-batch by the source's partition: the first, -1 where that
            is not known, and the first behind it.

    Attributes:
        source: the partition that the rows are of; None: none came yet.
    """

    def __init__(
        self,
        columns: Columns,
        rows_max: int,
        renamed: dict[str, str],
        spans: dict[Place, tuple[int, int]],
    ) -> None:
        self._columns: Final = columns
        self._rows_max: Final = rows_max
        self._renamed: Final = renamed
        self._spans: Final = spans
        self.source: Place | None = None
        self._offset = -1
        self._place = -1

    def rows(self, batch: pa.RecordBatch) -> Iterator[Rows]:
        """The rows of a batch by the partition that they go to.

        Raises:
            SinkError: they are not what a task of a source's partition has.
        """
        if not batch.num_rows:
            return
        source = self._one_source(batch)
        numbers = self._numbers(source, batch)
        topic = self._renamed[source.topic]
        if not self._columns.partition:
            yield Rows(Place(topic, source.partition), numbers, batch, None)
            return
        goes = _whole(batch, self._columns.partition)
        for number in np.unique(goes).tolist():
            picks = np.flatnonzero(goes == number)
            yield Rows(Place(topic, number), numbers[picks], batch, picks)

    def _one_source(self, batch: pa.RecordBatch) -> Place:
        topic, partition, _ = self._columns.source
        if batch.column(topic).null_count or batch.column(partition).null_count:
            raise SinkError(
                f"a row without {topic} or {partition}: it does not say where it is from"
            )
        topics = pc.min_max(batch.column(topic)).as_py()
        numbers = pc.min_max(batch.column(partition)).as_py()
        found = {Place(topics[end], numbers[end]) for end in ("min", "max")}
        if self.source is not None:
            found.add(self.source)
        if len(found) > 1:
            named = " and ".join(sorted(map(str, found)))
            raise SinkError(f"a task has rows of {named} of the source{_ONE_TASK}")
        (source,) = found
        if source not in self._spans:
            raise SinkError(
                f"rows of {source} of the source, which the checkpoint does not know"
                f"{_ONE_TASK}; or columns of the source's coordinates were changed"
            )
        self.source = source
        return source

    def _numbers(self, source: Place, batch: pa.RecordBatch) -> np.ndarray:
        name = self._columns.source[2]
        offsets = _whole(batch, name)
        steps = np.diff(offsets, prepend=self._offset)
        if (steps < 0).any():
            at = int(offsets[np.flatnonzero(steps < 0)[0]])
            raise SinkError(f"offset {at} of {source} comes behind a later one{_ONE_TASK}")
        first, end = self._spans[source]
        if offsets[0] < first or offsets[-1] >= end:
            raise SinkError(
                f"offsets {offsets[0]} to {offsets[-1]} of {source} are not within the micro-batch,"
                f" which has {max(first, 0)} to {end - 1}: column {name} was changed"
            )
        places = _places(steps == 0, self._place)
        self._offset, self._place = int(offsets[-1]), int(places[-1])
        if (highest := int(places.max())) >= self._rows_max:
            raise SinkError(
                f"a record of {source} became {highest + 1} rows or more; give option"
                f" maxRowsPerRecord, the most that one may become (now {self._rows_max}). It is of"
                " the numbering, so it needs a new checkpoint and a new topic"
            )
        numbers: np.ndarray = offsets * self._rows_max + places
        return numbers


def _places(same: np.ndarray, before: int) -> np.ndarray:
    """For each row its place among those of its record.

    Parameters:
        same: whether it is of the same record as the row before.
        before: the place of the row before the first one.
    """
    index = np.arange(len(same))
    begins = np.where(same, -1 - before, index)  # the first run may have begun in another batch
    return index - np.maximum.accumulate(begins)


def _whole(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """A column of whole numbers.

    Raises:
        SinkError: some are missing, or negative.
    """
    column = batch.column(name)
    if column.null_count:
        raise SinkError(f"a row without {name}")
    values: np.ndarray = column.cast(pa.int64()).to_numpy()
    if len(values) and values.min() < 0:
        raise SinkError(f"a row with {name} {values.min()}")
    return values
