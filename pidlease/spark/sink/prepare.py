"""What is done in the application before a query starts."""

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pidlease.spark.data_source import NAME
from pidlease.spark.errors import SinkError
from pidlease.spark.session import register
from pidlease.spark.sink.checkpoint import MicroBatch, read_micro_batch
from pidlease.spark.sink.columns import Columns, find_columns
from pidlease.spark.sink.plan import check_plan
from pidlease.spark.sink.run_state import Place, RunState, RunStore
from pidlease.spark.sink.runs import reached
from pidlease.spark.sink.settings import SinkSettings, read_settings

Result = TypeVar("Result")


def exactly_once(frame: DataFrame, options: Mapping[str, str]) -> DataStreamWriter:
    """A writer of a streaming query, which each row leaves exactly once.

    It prepares a run: from now on every run before it is fenced. So call it once for each start.

    Parameters:
        frame: a streaming query; see `columns` for what its rows must have.
        options: `kafka.bootstrap.servers` and `leases` of a pidlease, `checkpointLocation`, and
            more; see docs/spark.md.

    Returns:
        `frame.writeStream` with all that is to be said but the trigger.

    Raises:
        SinkError: exactly-once cannot be kept; it says why, and what to change. Nothing is written.
    """
    if not frame.isStreaming:
        raise SinkError("the query is no stream: exactly_once_table writes it")
    settings, columns = read_settings(options), find_columns(frame.schema)
    if not settings.checkpoint:
        raise SinkError("option checkpointLocation is missing: without it a restart knows nothing")
    check_plan(frame)
    store = RunStore(settings.state)
    newest = store.newest()
    before = newest[1] if newest is not None else None
    batch = read_micro_batch(settings.checkpoint)
    _check_not_ahead(settings, before, batch)
    state = run(_prepared(settings, before, columns, batch))
    register(frame.sparkSession)
    return frame.writeStream.format(NAME).options(**{**options, "run": store.begin(state)})


def exactly_once_table(frame: DataFrame, options: Mapping[str, str]) -> DataFrameWriter:
    """The same for a query that is no stream: a part of a topic, which is written once.

    It is run a second time for this, without keys and values, to see which tasks read what. Written
    again, as a whole or from an earlier offset on, nothing of it is doubled.

    Parameters:
        frame: the query.
        options: see `exactly_once`; `checkpointLocation` is where the sink keeps its own files.

    Returns:
        `frame.write` with all that is to be said.

    Raises:
        SinkError: see `exactly_once`.
    """
    if frame.isStreaming:
        raise SinkError("the query is a stream: exactly_once writes it")
    settings, columns = read_settings(options), find_columns(frame.schema)
    check_plan(frame)
    store = RunStore(settings.state)
    newest = store.newest()
    before = newest[1] if newest is not None else None
    state = run(_prepared(settings, before, columns, _whole(frame, columns)))
    register(frame.sparkSession)
    given = {**options, "run": store.begin(state)}
    return frame.write.format(NAME).mode("append").options(**given)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Do asynchronous work and wait for it, also where a loop runs already, as in a notebook."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def _prepared(
    settings: SinkSettings, before: RunState | None, columns: Columns, batch: MicroBatch | None
) -> RunState:
    query = {"topic": settings.topic, "rows": settings.rows_max}
    async with reached(settings) as runs:
        state = await runs.prepare(before, query, spread=bool(columns.partition))
        return state if batch is None else await runs.grow(state, batch)


def _check_not_ahead(
    settings: SinkSettings, before: RunState | None, batch: MicroBatch | None
) -> None:
    """See that the sink knows of all that Spark takes for done.

    Raises:
        SinkError: it does not.
    """
    if batch is None:
        return
    known = -1 if before is None else before.batch
    if batch.committed > known:
        raise SinkError(
            f"Spark's checkpoint {settings.checkpoint} is at micro-batch {batch.committed}, and the"
            f" sink's state in {settings.state} at {known}: it is another query's, or was not"
            " restored with it. Restore both together, or begin with a new checkpoint and a new"
            " topic"
        )


def _whole(frame: DataFrame, columns: Columns) -> MicroBatch:
    """What a query that is no stream reads.

    It is run once for this, without keys and values. So it is known that no two tasks share a
    partition of the source, whatever stands in between.

    Raises:
        SinkError: two do.
    """
    topic, partition, offset = map(sf.col, columns.source)
    placed = frame.select(
        topic.alias("topic"), partition.alias("partition"), offset.alias("offset"),
        sf.spark_partition_id().alias("task"),
    )  # fmt: skip
    figures = (
        sf.count_distinct("task").alias("tasks"), sf.min("offset").alias("first"),
        sf.max("offset").alias("last"),
    )  # fmt: skip
    rows = placed.groupBy("topic", "partition").agg(*figures).collect()
    for row in rows:
        if row["tasks"] > 1:
            raise SinkError(
                f"partition {row['partition']} of topic {row['topic']} is read by {row['tasks']}"
                " tasks: each would say that what the others have is not there. Leave out"
                " minPartitions and maxRecordsPerPartition at the source"
            )
    starts = {Place(row["topic"], row["partition"]): row["first"] for row in rows}
    ends = {Place(row["topic"], row["partition"]): row["last"] + 1 for row in rows}
    return MicroBatch(-1, starts, ends, -1)
