"""What streaming queries with our sink have done, for Prometheus.

Spark tells of each micro-batch; the numbers are those that the sink has noted with its commit.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

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

from pidlease.observability import metric_catalogue as metrics
from pidlease.spark.errors import FENCED, SparkPieceError
from pidlease.spark.sink.driver.spark_checkpoint import query_id
from pidlease.spark.sink.run_state import Place, RunState, RunStore
from pidlease.spark.sink.settings import read_settings


@dataclass(slots=True)
class Progress:
    """What Spark has told.

    Attributes:
        batches: micro-batches that were done,
        seconds: and how long the last one took.
        rate: rows a second, of that one.
        lag: records of the source that are not read yet, by its partition.
        failed: ends by an error,
        fenced: and those of them because another run had taken over.
    """

    batches: int = 0
    seconds: float = 0
    rate: float = 0
    lag: Mapping[Place, int] | None = None
    failed: int = 0
    fenced: int = 0


class SinkListener(StreamingQueryListener):
    """Keeps what is known of one query.

    Parameters:
        options: the sink's.

    Attributes:
        progress: of this process.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        settings = read_settings(options)
        self._checkpoint: Final = settings.checkpoint
        self._store: Final = RunStore(settings.state)
        self._id = ""
        self.progress: Final = Progress()

    def state(self) -> RunState | None:
        """What the sink has noted; None: nothing yet.

        Raises:
            SinkError: it cannot be read.
        """
        found = self._store.before()
        return found[0] if found else None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's
        """See Spark."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's
        """See Spark."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's
        """See Spark."""
        told = event.progress
        if not self._is_ours(str(told.id)):
            return
        progress = self.progress
        progress.batches += 1
        progress.seconds = told.durationMs.get("triggerExecution", 0) / 1000
        progress.rate = told.processedRowsPerSecond or 0
        progress.lag = {
            place: lag for source in told.sources for place, lag in _lags(source).items()
        }

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's
        """See Spark."""
        if self._is_ours(str(event.id)) and event.exception:
            self.progress.failed += 1
            self.progress.fenced += FENCED in event.exception

    def _is_ours(self, found: str) -> bool:
        self._id = self._id or query_id(self._checkpoint)
        return found == self._id


def _lags(source: Any) -> dict[Place, int]:  # noqa: ANN401 - Spark's, of any source
    """By partition, where a source tells its offsets as Kafka's does."""
    try:
        ends, latest = json.loads(source.endOffset), json.loads(source.latestOffset)
        return {
            Place(topic, int(number)): int(offset) - int(ends.get(topic, {}).get(number, 0))
            for topic, partitions in latest.items()
            for number, offset in partitions.items()
        }
    except (TypeError, ValueError, AttributeError):
        return {}  # another source's: it says nothing of partitions


class SinkCollector(Collector):
    """Tells Prometheus.

    Parameters:
        listener: what is known.
    """

    def __init__(self, listener: SinkListener) -> None:
        self._listener: Final = listener

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        progress, state = self._listener.progress, self._listener.state()
        yield metrics.SPARK_BATCHES.of(progress.batches)
        yield metrics.SPARK_FAILURES.of(progress.failed)
        yield metrics.SPARK_FENCED.of(progress.fenced)
        yield metrics.SPARK_SECONDS.of(progress.seconds)
        yield metrics.SPARK_RATE.of(progress.rate)
        lags = progress.lag or {}
        yield metrics.SPARK_LAG.rows([(_label(place), lag) for place, lag in lags.items()])
        rows = [] if state is None else [(_label(p), each) for p, each in state.sources.items()]
        yield metrics.SPARK_SENT.rows([(label, each.sent) for label, each in rows])
        yield metrics.SPARK_DUPLICATES.rows([(label, each.duplicates) for label, each in rows])
        yield metrics.SPARK_HIGH.rows([(label, each.high) for label, each in rows])


def _label(place: Place) -> tuple[str, str]:
    return place.topic, str(place.partition)


def watch(spark: SparkSession, options: Mapping[str, str], port: int | None = None) -> SinkListener:
    """Listen to a query; before it starts.

    Parameters:
        spark: its session.
        options: the sink's.
        port: of loopback, where Prometheus asks; None: nobody does.

    Raises:
        SparkPieceError: the port is taken.
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
    """What a query has done since its checkpoint was begun, in a line."""
    state = listener.state()
    sources = () if state is None else tuple(state.sources.values())
    sent, known = sum(each.sent for each in sources), sum(each.duplicates for each in sources)
    return (
        f"{sent:,} rows since the checkpoint was begun, of {len(sources)} partitions;"
        f" {known:,} of them came again, and had been there"
    )
