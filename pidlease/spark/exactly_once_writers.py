"""Preparing a query in the application, before it starts."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pidlease.spark.errors import SinkError
from pidlease.spark.sink.query_shape import check_plan, find_columns
from pidlease.spark.sink.run_start import begin_run, begin_stream_run, prepared, run_coroutine
from pidlease.spark.sink.run_state import RunState
from pidlease.spark.sink.settings import read_settings
from pidlease.spark.sink.table_writes import begin_table, survey_table
from pidlease.spark.spark_options import FORMAT
from pidlease.spark.spark_session import check_classic, register


def exactly_once(frame: DataFrame, options: Mapping[str, str]) -> DataStreamWriter:
    """Return a writer of a streaming query that writes each row exactly once.

    It prepares a run, which fences all earlier runs. So call it once for each start. A query with
    `frame.writeStream.format("pidlease")` prepares its run itself, before its first micro-batch.
    With this function, a query that cannot be exactly-once is refused before it starts.

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
    check_classic(frame)
    if not frame.isStreaming:
        raise SinkError("the query is not a stream: use exactly_once_table")
    settings, columns = read_settings(options), find_columns(frame.schema)
    if not settings.checkpoint:
        raise SinkError("option checkpointLocation is missing: a restart could not resume")
    check_plan(frame._jdf.queryExecution().analyzed())
    given = {**options, "run": begin_stream_run(settings, columns)}
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
    check_classic(frame)
    if frame.isStreaming:
        raise SinkError("the query is a stream: use exactly_once")
    settings, columns = read_settings(options), find_columns(frame.schema)
    check_plan(frame._jdf.queryExecution().analyzed())

    def make(known: list[RunState]) -> RunState:
        table = survey_table(frame, columns, known[0] if known else None, settings.rows_max)
        state = run_coroutine(prepared(settings, known, columns, table, "table"))
        return begin_table(state, table)

    given = {**options, "run": begin_run(settings, make)}
    register(frame.sparkSession)
    return frame.write.format(FORMAT).mode("append").options(**given)
