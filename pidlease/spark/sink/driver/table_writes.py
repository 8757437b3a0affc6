"""Tables, which are written one behind the other.

A number below H counts as written. Of a stream that is so, for it goes on where it was. Of tables
it is so only where each that was begun is written to its end before the next, and none has rows
before the end of another one that were not a part of that.
"""

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from pidlease.spark.errors import SinkError
from pidlease.spark.sink.driver.spark_checkpoint import MicroBatch
from pidlease.spark.sink.query_columns import Columns
from pidlease.spark.sink.run_state import Place, RunState, Source, Span


def look_at(
    frame: DataFrame, columns: Columns, before: RunState | None, rows_max: int
) -> MicroBatch:
    """What a table reads. It is run once for this, without keys and values.

    So it is known that no two tasks share a partition of the source, whatever stands in between.

    Parameters:
        frame: the query.
        columns: what its columns are.
        before: what is known; None: nothing.
        rows_max: how many rows one record of the source may become.

    Raises:
        SinkError: two do; or some of its rows could not be told from what was written.
    """
    topic, partition, offset = map(sf.col, columns.source)
    placed = frame.select(
        topic.alias("topic"), partition.alias("partition"), offset.alias("offset"),
        sf.spark_partition_id().alias("task"),
    )  # fmt: skip
    hidden = _hidden({} if before is None else before.sources, rows_max)
    figures = (
        sf.count_distinct("task").alias("tasks"), sf.min("offset").alias("first"),
        sf.max("offset").alias("last"), sf.count_if(hidden).alias("hidden"),
    )  # fmt: skip
    rows = placed.groupBy("topic", "partition").agg(*figures).collect()
    starts, ends = {}, {}
    for row in rows:
        place = Place(row["topic"], row["partition"])
        if row["tasks"] > 1:
            raise SinkError(
                f"partition {place.partition} of topic {place.topic} is read by {row['tasks']}"
                " tasks: each would say that what the others have is not there. Leave out"
                " minPartitions and maxRecordsPerPartition at the source"
            )
        if row["hidden"]:
            raise SinkError(
                f"{row['hidden']} rows of {place} lie before what was written already, and were not"
                " a part of it: they would count as written. Tables are written in the order of"
                " their offsets; write these to another topic, with a checkpoint of its own"
            )
        starts[place], ends[place] = row["first"], row["last"] + 1
    return MicroBatch(-1, starts, ends, -1)


def _hidden(sources: Mapping[Place, Source], rows_max: int) -> Column:
    """Whether a row would count as written, and was no part of a table before."""
    found = sf.lit(False)  # noqa: FBT003 - a value
    offset = sf.col("offset")
    for place, source in sources.items():
        here = (sf.col("topic") == place.topic) & (sf.col("partition") == place.partition)
        known = sf.lit(False)  # noqa: FBT003 - a value
        for span in source.spans:
            known |= offset.between(span.first, span.end - 1)
        found |= here & (offset < (source.high + 1) // rows_max) & ~known
    return found


def begun(state: RunState, table: MicroBatch) -> RunState:
    """The state when a table is begun.

    Raises:
        SinkError: the one before was not written to its end, and is no part of this one.
    """
    for place, source in state.sources.items():
        first, end = table.starts.get(place, -1), table.ends.get(place, -1)
        spans = list(source.spans)
        if spans and not spans[-1].whole:
            broken = spans.pop()
            if first != broken.first or end < broken.end:
                raise SinkError(
                    f"offsets {broken.first} to {broken.end - 1} of {place} were begun and not"
                    " written to their end; what this table has comes behind, or does not begin"
                    " there. Write that table again first"
                )
        if first >= 0:
            spans.append(Span(first, end, whole=False))
        state = state.with_source(place, replace(source, spans=tuple(spans)))
    return state


def done(state: RunState) -> RunState:
    """The state when a table is written to its end."""
    for place, source in state.sources.items():
        spans: list[Span] = []
        for span in source.spans:
            if spans and span.first <= spans[-1].end:
                before = spans.pop()
                span = Span(min(before.first, span.first), max(before.end, span.end), True)  # noqa: FBT003, PLW2901
            spans.append(span._replace(whole=True))
        state = state.with_source(place, replace(source, spans=tuple(spans)))
    return state
