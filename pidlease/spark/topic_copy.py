"""Copying topics by Spark, each record exactly once: from a source to the sink."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pidlease.spark.errors import SparkPieceError, text_of
from pidlease.spark.exactly_once_writers import exactly_once
from pidlease.spark.sink.settings import NAME
from pidlease.spark.spark_session import register

SourceName = Literal["kafka", "pidlease"]
#: Drops or multiplies rows; docs/spark.md says what it must keep.
Transform = Callable[[DataFrame], DataFrame]

_KAFKA: Final = "kafka"
_SERVERS: Final = "kafka.bootstrap.servers"
_ISOLATION: Final = "kafka.isolation.level"
_NO_CONNECTOR: Final = "DATA_SOURCE_NOT_FOUND"


def copy(
    spark: SparkSession,
    source: Mapping[str, str],
    destination: Mapping[str, str],
    *,
    source_format: SourceName = "kafka",
    transform: Transform | None = None,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Start a streaming query that copies topics.

    ```python
    from pidlease.spark import copy, session

    query = copy(
        session("copy"),
        {"kafka.bootstrap.servers": "kafka1:9092", "subscribe": "payments"},
        {
            "kafka.bootstrap.servers": "127.0.0.1:9092",
            "leases": "http://127.0.0.1:8080",
            "checkpointLocation": "/var/lib/copies/payments",
        },
        source_format="pidlease",
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    ```

    Parameters:
        source: options of the source, named as those of Spark's Kafka source:
            `kafka.bootstrap.servers`, `subscribe`, `startingOffsets`, `maxOffsetsPerTrigger`, ...
        destination: options of the sink: `kafka.bootstrap.servers`, `leases`,
            `checkpointLocation`, `topic`, ...
        source_format: `kafka` for Spark's Kafka source, which needs its connector; `pidlease` for
            pidlease's own, which reads any Kafka and data directories.
        transform: applied to the rows.
        trigger: the argument of `DataStreamWriter.trigger`; None: micro-batches without a pause.

    Returns:
        The running query. Earlier runs on the same checkpoint are fenced.

    Raises:
        SparkPieceError: exactly-once is not possible, or a side cannot be reached; or the session
            is one of Spark Connect.
    """
    register(spark)
    _check_apart(source, destination)
    # Spark's default also reads uncommitted and aborted records.
    committed = {_ISOLATION: "read_committed"} if source_format == _KAFKA else {}
    options = {"includeHeaders": "true", **committed, **source}
    try:
        frame = spark.readStream.format(source_format).options(**options).load()
    except AnalysisException as error:
        if source_format == _KAFKA and _NO_CONNECTOR in str(error):
            raise SparkPieceError(
                "Spark's connector to Kafka is not there: load its jars (--jars; docs/spark.md"
                " names them), or read by our own source, pidlease:HOST:PORT"
            ) from None
        raise SparkPieceError(text_of(error)) from error
    if transform is not None:
        frame = transform(frame)
    writer = exactly_once(frame, destination)
    return writer.trigger(**trigger).start() if trigger else writer.start()


def _check_apart(source: Mapping[str, str], destination: Mapping[str, str]) -> None:
    """Check that a copy does not read its own output.

    Raises:
        SparkPieceError: it does.
    """
    sides = [
        {server.strip() for server in side.get(_SERVERS, "").split(",") if server.strip()}
        for side in (source, destination)
    ]
    topic = destination.get("topic", NAME)
    if sides[0] & sides[1] and (topic == NAME or "subscribePattern" in source):
        raise SparkPieceError(
            f"source and destination are the same cluster: topics would be copied to themselves, or"
            f" copies be copied again; name the topics, and give them other names there ({topic})"
        )
