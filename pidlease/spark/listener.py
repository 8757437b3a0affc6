"""Prometheus metrics of streaming queries with the sink.

Spark reports each micro-batch; the counts are those that the sink saved with its commit.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from typing_extensions import override

from pidlease.core.topic_partition import TopicPartition
from pidlease.observability import metric_catalogue as metrics
from pidlease.spark.errors import FENCED, SparkPieceError
from pidlease.spark.query_reports import lags_of
from pidlease.spark.sink.run_state import RunState, RunStore
from pidlease.spark.sink.settings import read_settings
from pidlease.spark.sink.spark_checkpoint import query_id


@dataclass(slots=True)
class QueryProgress:
    """What Spark has reported, in this process.

    Attributes:
        batches: micro-batches that were committed.
        seconds: duration of the last one.
        rate: rows per second of the last one.
        lag: unread records by source partition.
        failed: ends of the query by an error.
        fenced: those of them because another run had taken over.
    """

    batches: int = 0
    seconds: float = 0
    rate: float = 0
    lag: Mapping[TopicPartition, int] | None = None
    failed: int = 0
    fenced: int = 0


class SinkListener(StreamingQueryListener):
    """Collects the progress of one query."""

    def __init__(self, options: Mapping[str, str]) -> None:
        settings = read_settings(options)
        self._checkpoint: Final = settings.checkpoint
        self._store: Final = RunStore(settings.state)
        self._id = ""
        self.progress: Final = QueryProgress()

    def state(self) -> RunState | None:
        """Read the sink's newest state; None if there is none yet.

        Raises:
            SinkError: the state cannot be read.
        """
        states = self._store.before()
        return states[0] if states else None

    @override
    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    @override
    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    @override
    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        reported = event.progress
        if not self._is_ours(str(reported.id)):
            return
        progress = self.progress
        progress.batches += 1
        progress.seconds = reported.durationMs.get("triggerExecution", 0) / 1000
        progress.rate = reported.processedRowsPerSecond or 0
        progress.lag = {each: lag for each, (_, lag) in lags_of(reported).items()}

    @override
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if self._is_ours(str(event.id)) and event.exception:
            self.progress.failed += 1
            self.progress.fenced += FENCED in event.exception

    def _is_ours(self, query: str) -> bool:
        self._id = self._id or query_id(self._checkpoint)
        return query == self._id


class SinkCollector(Collector):
    """Makes the metrics of a listener's query at each scrape."""

    def __init__(self, listener: SinkListener) -> None:
        self._listener: Final = listener

    @override
    def collect(self) -> Iterable[Metric]:
        progress, state = self._listener.progress, self._listener.state()
        yield metrics.SPARK_BATCHES.of(progress.batches)
        yield metrics.SPARK_FAILURES.of(progress.failed)
        yield metrics.SPARK_FENCED.of(progress.fenced)
        yield metrics.SPARK_SECONDS.of(progress.seconds)
        yield metrics.SPARK_RATE.of(progress.rate)
        lags = progress.lag or {}
        yield metrics.SPARK_LAG.rows([(_label(source), lag) for source, lag in lags.items()])
        rows = [] if state is None else [(_label(p), each) for p, each in state.sources.items()]
        yield metrics.SPARK_SENT.rows([(label, each.sent) for label, each in rows])
        yield metrics.SPARK_DUPLICATES.rows([(label, each.duplicates) for label, each in rows])
        yield metrics.SPARK_HIGH.rows([(label, each.high_sequence) for label, each in rows])


def _label(source: TopicPartition) -> tuple[str, str]:
    return source.topic, str(source.partition)


def watch(spark: SparkSession, options: Mapping[str, str], port: int | None = None) -> SinkListener:
    """Start to follow a query; call it before the query starts.

    Parameters:
        spark: the query's session.
        port: for Prometheus, on the loopback address; None: no metrics are served.

    Raises:
        SparkPieceError: the port is in use.
    """
    listener = SinkListener(options)
    spark.streams.addListener(listener)
    if port is not None:
        registry = CollectorRegistry()
        try:
            start_http_server(port, "127.0.0.1", registry)
        except OSError as error:
            raise SparkPieceError(f"metrics port {port}: {error}") from None
        registry.register(SinkCollector(listener))
    return listener


def summary(listener: SinkListener) -> str:
    """Summarize in a line the rows of a query since its checkpoint was begun."""
    state = listener.state()
    sources = () if state is None else tuple(state.sources.values())
    sent, known = sum(each.sent for each in sources), sum(each.duplicates for each in sources)
    return (
        f"{sent:,} rows since the checkpoint was begun, of {len(sources)} partitions;"
        f" {known:,} of them were duplicates"
    )
