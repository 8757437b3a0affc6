"""Looks at each query with the sink when it starts, in the application.

Spark calls a listener once for each start of a query, and waits for it before the first
micro-batch. Only there are known: the query's plan, and that this is a new start.
"""

import weakref
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from typing_extensions import override

from pidlease.spark.errors import SinkError
from pidlease.spark.query_reports import QueryReport
from pidlease.spark.sink.query_shape import check_plan
from pidlease.spark.sink.start_note import StartNote, StartNotes
from pidlease.spark.spark_options import FORMAT

#: The sessions that have a listener.
_sessions: Final[weakref.WeakSet[SparkSession]] = weakref.WeakSet()
#: Spark's class that runs micro-batches one after the other, each with its offsets saved before.
_MICRO_BATCHES: Final = "MicroBatchExecution"
#: Triggers of micro-batches that are in the checkpoint before their rows are written.
_TRIGGERS: Final = frozenset(("ProcessingTimeTrigger", "AvailableNowTrigger$", "OneTimeTrigger$"))


def watch_starts(spark: SparkSession) -> None:
    """Note the starts of a session's queries, from now on."""
    if spark not in _sessions:
        spark.streams.addListener(_StartListener(spark))
        _sessions.add(spark)


class _StartListener(StreamingQueryListener):
    def __init__(self, spark: SparkSession) -> None:
        self._spark: Final = weakref.ref(spark)
        #: By Spark's id of the run, of queries with the sink.
        self._reports: Final[dict[str, QueryReport]] = {}

    @override
    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        # Spark logs what is raised here. Then there is no note, and the sink refuses the query.
        spark = self._spark()
        if spark is None:
            return
        query, run = str(event.id), str(event.runId)
        execution = _execution(spark, query)
        if _sink_name(execution) != FORMAT:
            return
        StartNotes(_local_folder(spark)).write(query, StartNote(run, problem_of(execution)))
        self._reports[run] = QueryReport(event.name or query, run, execution, self._is_over)

    def _is_over(self) -> bool:
        spark = self._spark()
        return spark is None or spark.sparkContext._jsc is None

    @override
    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        report = self._reports.get(str(event.progress.runId))
        if report is not None:
            report.progressed(event.progress)

    @override
    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        report = self._reports.get(str(event.runId))
        if report is not None:
            report.idle()

    @override
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        report = self._reports.pop(str(event.runId), None)
        if report is not None:
            report.end(event.exception or "")


def _sink_name(execution: Any) -> str:  # noqa: ANN401 - a Java object
    """Return the name of a query's sink; empty: it has none, as a function or files."""
    try:
        return str(execution.sink().name()).lower()
    except Py4JJavaError:
        return ""


def _execution(spark: SparkSession, query: str) -> Any:  # noqa: ANN401 - a Java object
    return spark.streams._jsqm.get(query).streamingQuery()


def _local_folder(spark: SparkSession) -> Path:
    """Return the folder that Spark names to the Python workers on the driver."""
    jvm: Any = spark.sparkContext._jvm
    folders = jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()
    return Path(str(folders.localDirsString()[0]))


def problem_of(execution: Any) -> str:  # noqa: ANN401 - a Java object
    """Return why a query cannot be exact; empty: nothing is known against it."""
    try:
        kind = str(execution.getClass().getSimpleName())
        trigger = str(execution.trigger().getClass().getSimpleName())
        if kind != _MICRO_BATCHES or trigger not in _TRIGGERS:
            return (
                f"the query runs as {kind} with {trigger}: the sink needs micro-batches that are in"
                " the checkpoint before they are written. Use trigger processingTime or"
                " availableNow"
            )
        check_plan(execution.analyzedPlan())
    except SinkError as error:
        return str(error)
    except Py4JError as error:
        return (
            f"the plan of the query cannot be read in this version of Spark ({error}); start it as"
            " pidlease.spark.exactly_once(df, options).start()"
        )
    return ""
