"""Preparing a query in the application, before it starts."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pidlease.spark.errors import SinkError
from pidlease.spark.session import register
from pidlease.spark.sink.query_shape import QueryColumns, check_plan, find_columns
from pidlease.spark.sink.run_preparation import connect
from pidlease.spark.sink.run_state import RunState, RunStore
from pidlease.spark.sink.settings import SinkSettings, read_settings
from pidlease.spark.sink.spark_checkpoint import MicroBatch, query_id, read_micro_batch
from pidlease.spark.sink.table_writes import begin_table, survey_table
from pidlease.spark.spark_options import FORMAT

Result = TypeVar("Result")


def exactly_once(frame: DataFrame, options: Mapping[str, str]) -> DataStreamWriter:
    """Return a writer of a streaming query that writes each row exactly once.

    It prepares a run, which fences all earlier runs. So call it once for each start.

    ```python
    from pidlease.spark import exactly_once, session

    orders = (
        session("orders")
        .readStream.format("pidlease")
        .option("kafka.bootstrap.servers", "kafka1:9092")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    destination = {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "leases": "http://127.0.0.1:8080",
        "checkpointLocation": "/var/lib/copies/orders",
    }
    query = exactly_once(orders, destination).trigger(availableNow=True).start()
    query.awaitTermination()
    ```

    Parameters:
        frame: a streaming query; docs/spark.md lists the columns that its rows must have.
        options: `kafka.bootstrap.servers` and `leases` of a pidlease, `checkpointLocation`, and
            more; see docs/spark.md.

    Returns:
        `frame.writeStream` with all options but the trigger.

    Raises:
        SinkError: exactly-once is not possible. Nothing is written.
    """
    if not frame.isStreaming:
        raise SinkError("the query is not a stream: use exactly_once_table")
    settings, columns = read_settings(options), find_columns(frame.schema)
    if not settings.checkpoint:
        raise SinkError("option checkpointLocation is missing: a restart could not resume")
    check_plan(frame)
    # Read before the state, so that the state is not older than the checkpoint.
    batch, query = read_micro_batch(settings.checkpoint), query_id(settings.checkpoint)

    def begin(known: list[RunState]) -> RunState:
        _check_fits(settings, known, batch, query)
        return _run(_prepared(settings, known, columns, batch, "stream"))

    given = {**options, "run": _begin_run(settings, begin)}
    register(frame.sparkSession)
    return frame.writeStream.format(FORMAT).options(**given)


def exactly_once_table(frame: DataFrame, options: Mapping[str, str]) -> DataFrameWriter:
    """Return a writer of a query that is not a stream, such as a part of a topic.

    The query is run an additional time, without keys and values, to find the offsets that each
    task reads. Writing it again, as a whole, adds no duplicates. Tables with later offsets may
    follow under the same checkpoint.

    ```python
    from pidlease.spark import exactly_once_table, session

    orders = session("orders").read.format("pidlease").load(
        subscribe="orders", **{"kafka.bootstrap.servers": "kafka1:9092"}
    )
    destination = {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "leases": "http://127.0.0.1:8080",
        "checkpointLocation": "/var/lib/copies/orders-table",
        "topic": "{topic}.table",
    }
    exactly_once_table(orders, destination).save()
    ```

    Parameters:
        options: as in `exactly_once`; `checkpointLocation` is for the sink's own files only.

    Returns:
        `frame.write` with all options.

    Raises:
        SinkError: exactly-once is not possible. Nothing is written.
    """
    if frame.isStreaming:
        raise SinkError("the query is a stream: use exactly_once")
    settings, columns = read_settings(options), find_columns(frame.schema)
    check_plan(frame)

    def begin(known: list[RunState]) -> RunState:
        table = survey_table(frame, columns, known[0] if known else None, settings.rows_max)
        return begin_table(_run(_prepared(settings, known, columns, table, "table")), table)

    given = {**options, "run": _begin_run(settings, begin)}
    register(frame.sparkSession)
    return frame.write.format(FORMAT).mode("append").options(**given)


def _begin_run(settings: SinkSettings, begin: Callable[[list[RunState]], RunState]) -> str:
    """Begin a run, and return its name.

    Parameters:
        begin: makes the run's state from those of the earlier runs, the newest first.

    Raises:
        SinkError: the run cannot begin.
    """
    store = RunStore(settings.state)
    name = store.reserve()
    try:
        store.write(name, begin(store.before(name)))
        store.check_alone(name)
    except SinkError:
        store.release(name)
        raise
    store.forget_old()
    return name


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine, even in a thread with a running event loop, as in a notebook."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def _prepared(
    settings: SinkSettings,
    known: list[RunState],
    columns: QueryColumns,
    batch: MicroBatch | None,
    kind: str,
) -> RunState:
    query = {"kind": kind, "topic": settings.topic, "rows": settings.rows_max}
    async with connect(settings) as preparation:
        state = await preparation.prepare(
            known[0] if known else None, query, spread=bool(columns.partition)
        )
        return state if batch is None else await preparation.grow(state, batch, known)


def _check_fits(
    settings: SinkSettings, known: list[RunState], batch: MicroBatch | None, query: str
) -> None:
    """Check that the sink's state is of this checkpoint, and contains all that Spark committed.

    Raises:
        SinkError: it is not, or does not.
    """
    if not known:
        saved, ids = -1, set()
    else:
        ours = [each for each in known if each.name == known[0].name]
        # The last commit of a run that was replaced is in that run's own state.
        saved, ids = max(each.batch for each in ours), {each.query_id for each in ours} - {""}
    other = ids - {query} if query or saved >= 0 else set()
    if batch is not None and batch.committed > saved:
        problem = f"is at micro-batch {batch.committed}, and the sink's state at {saved}"
    elif other:
        problem = f"is of query {query or '(none yet)'}, and the sink's state of {other.pop()}"
    elif batch is None and saved >= 0:
        problem = f"has no micro-batch, and the sink's state {saved}"
    else:
        return
    raise SinkError(
        f"Spark's checkpoint {settings.checkpoint} {problem} ({settings.state}): they do not"
        " belong together, or one was deleted or not restored with the other. Restore both, or"
        " begin with a new checkpoint and a new topic"
    )
