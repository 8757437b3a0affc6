"""What is done in the application before a query starts."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pidlease.spark.errors import SinkError
from pidlease.spark.session import register
from pidlease.spark.sink.driver.query_plan import check_plan
from pidlease.spark.sink.driver.sink_runs import reached
from pidlease.spark.sink.driver.spark_checkpoint import MicroBatch, query_id, read_micro_batch
from pidlease.spark.sink.driver.table_writes import begun, look_at
from pidlease.spark.sink.query_columns import Columns, find_columns
from pidlease.spark.sink.run_state import RunState, RunStore
from pidlease.spark.sink.settings import SinkSettings, read_settings
from pidlease.spark.spark_options import FORMAT

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
    # Before the state: what is committed meanwhile is then in the state.
    batch, query = read_micro_batch(settings.checkpoint), query_id(settings.checkpoint)

    def begin(known: list[RunState]) -> RunState:
        _check_fits(settings, known, batch, query)
        return run(_prepared(settings, known, columns, batch, "stream"))

    given = {**options, "run": _begun(settings, begin)}
    register(frame.sparkSession)
    return frame.writeStream.format(FORMAT).options(**given)


def exactly_once_table(frame: DataFrame, options: Mapping[str, str]) -> DataFrameWriter:
    """The same for a query that is no stream: a part of a topic, which is written once.

    It is run a second time for this, without keys and values, to see which tasks read what. Written
    again, as a whole, nothing of it is doubled; tables that come behind one another may follow.

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

    def begin(known: list[RunState]) -> RunState:
        table = look_at(frame, columns, known[0] if known else None, settings.rows_max)
        return begun(run(_prepared(settings, known, columns, table, "table")), table)

    given = {**options, "run": _begun(settings, begin)}
    register(frame.sparkSession)
    return frame.write.format(FORMAT).mode("append").options(**given)


def _begun(settings: SinkSettings, begin: Callable[[list[RunState]], RunState]) -> str:
    """Begin a run; its name.

    Parameters:
        begin: makes its state of those of the runs before, the newest first.

    Raises:
        SinkError: it cannot begin.
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


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Do asynchronous work and wait for it, also where a loop runs already, as in a notebook."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def _prepared(
    settings: SinkSettings,
    known: list[RunState],
    columns: Columns,
    batch: MicroBatch | None,
    kind: str,
) -> RunState:
    query = {"kind": kind, "topic": settings.topic, "rows": settings.rows_max}
    async with reached(settings) as runs:
        state = await runs.prepare(
            known[0] if known else None, query, spread=bool(columns.partition)
        )
        return state if batch is None else await runs.grow(state, batch, known)


def _check_fits(
    settings: SinkSettings, known: list[RunState], batch: MicroBatch | None, query: str
) -> None:
    """See that the sink's state is of this checkpoint, and knows of all that Spark takes for done.

    Raises:
        SinkError: it does not.
    """
    if not known:
        noted, ids = -1, set()
    else:
        ours = [each for each in known if each.name == known[0].name]
        # The last commit of a run that was replaced is in that one's own.
        noted, ids = max(each.batch for each in ours), {each.query_id for each in ours} - {""}
    other = ids - {query} if query or noted >= 0 else set()
    if batch is not None and batch.committed > noted:
        problem = f"is at micro-batch {batch.committed}, and the sink's state at {noted}"
    elif other:
        problem = f"is of query {query or '(none yet)'}, and the sink's state of {other.pop()}"
    elif batch is None and noted >= 0:
        problem = f"has no micro-batch, and the sink's state {noted}"
    else:
        return
    raise SinkError(
        f"Spark's checkpoint {settings.checkpoint} {problem} ({settings.state}): they do not"
        " belong together, or one was deleted or not restored with the other. Restore both, or"
        " begin with a new checkpoint and a new topic"
    )
