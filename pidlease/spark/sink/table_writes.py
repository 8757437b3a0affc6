"""Checks tables that are written one after the other under one checkpoint.

A sequence number at or below the high sequence counts as written. That is true for a stream,
because it resumes where it stopped. It is true for tables only if each is written to its end before
the next begins, and no table has rows before the end of an earlier one that the earlier one lacked.
"""

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import SinkError
from pidlease.spark.partition_offsets import OffsetRange
from pidlease.spark.sink.query_shape import QueryColumns
from pidlease.spark.sink.run_state import RunState, SourceProducer, TableRange
from pidlease.spark.sink.spark_checkpoint import MicroBatch


def survey_table(
    frame: DataFrame, columns: QueryColumns, before: RunState | None, rows_max: int
) -> MicroBatch:
    """Run a query without keys and values, to find the offsets that each task reads.

    This proves that no two tasks share a source partition, whatever the query does.

    Parameters:
        before: the state of the last run; None: there was none.
        rows_max: how many rows one source record may become.

    Raises:
        SinkError: two tasks share a partition, or rows would wrongly count as written.
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
    ranges = {}
    for row in rows:
        source = TopicPartition(row["topic"], row["partition"])
        if row["tasks"] > 1:
            raise SinkError(
                f"partition {source.partition} of topic {source.topic} is read by {row['tasks']}"
                " tasks: each would declare the rows of the others missing. Leave out"
                " minPartitions and maxRecordsPerPartition at the source"
            )
        if row["hidden"]:
            raise SinkError(
                f"{row['hidden']} rows of {source} lie before what was written already, and were"
                " not a part of it: they would count as written. Tables are written in the order of"
                " their offsets; write these to another topic, with a checkpoint of its own"
            )
        ranges[source] = OffsetRange(row["first"], row["last"] + 1)
    return MicroBatch(-1, ranges, -1)


def _hidden(sources: Mapping[TopicPartition, SourceProducer], rows_max: int) -> Column:
    """Select rows that would count as written, but were not in an earlier table."""
    hidden = sf.lit(False)  # noqa: FBT003 - a value
    offset = sf.col("offset")
    for (topic, partition), source in sources.items():
        here = (sf.col("topic") == topic) & (sf.col("partition") == partition)
        known = sf.lit(False)  # noqa: FBT003 - a value
        for written in source.tables:
            known |= offset.between(written.start, written.end - 1)
        hidden |= here & (offset < (source.high_sequence + 1) // rows_max) & ~known
    return hidden


def begin_table(state: RunState, table: MicroBatch) -> RunState:
    """Return the state with a table begun.

    Raises:
        SinkError: the last table was not written to its end, and is not part of this one.
    """
    absent = OffsetRange(-1, -1)
    for partition, source in state.sources.items():
        start, end = table.ranges.get(partition, absent)
        tables = list(source.tables)
        if tables and not tables[-1].whole:
            broken = tables.pop()
            if start != broken.start or end < broken.end:
                raise SinkError(
                    f"offsets {broken.start} to {broken.end - 1} of {partition} were begun and not"
                    " written to their end, and this table does not begin there, or ends earlier."
                    " Write that table again first"
                )
        if start >= 0:
            tables.append(TableRange(start, end, whole=False))
        state = state.with_source(partition, replace(source, tables=tuple(tables)))
    return state


def end_table(state: RunState) -> RunState:
    """Return the state with all tables written; adjacent ones become one range."""
    for partition, source in state.sources.items():
        tables: list[TableRange] = []
        for table in source.tables:
            start, end, _ = table
            if tables and start <= tables[-1].end:
                before = tables.pop()
                start, end = min(before.start, start), max(before.end, end)
            tables.append(TableRange(start, end, whole=True))
        state = state.with_source(partition, replace(source, tables=tuple(tables)))
    return state
