"""Reports the progress of queries with the sink to the server, for its console.

Spark calls its listeners after each micro-batch. A thread for each query sends the reports, so no
query waits for the server, and one that is in a long micro-batch goes on reporting.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql.streaming.listener import StreamingQueryProgress

from pidlease.client.job_reporter import JobReporter
from pidlease.client.lease_client import LeaseClient
from pidlease.core.topic_partition import TopicPartition
from pidlease.http_api.job_messages import (
    NAME_MAX,
    PARTITIONS_MAX,
    REASON_MAX,
    REPORT_SECONDS,
    SIDE_MAX,
    JobPartition,
    JobReport,
)
from pidlease.spark.errors import SinkError
from pidlease.spark.partition_offsets import offsets_from_json
from pidlease.spark.sink.run_state import RunState, RunStore
from pidlease.spark.sink.settings import SinkSettings, read_settings

#: How long the server may take for a report.
_REQUEST_S: Final = 5.0
#: How long the last report may delay the end of a query.
_LAST_S: Final = 5.0
_STEP_MAX_S: Final = 86_400.0


def lags_of(progress: StreamingQueryProgress) -> dict[TopicPartition, tuple[int, int]]:
    """Return next offset and lag by source partition, of sources with offsets like Kafka's."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    for source in progress.sources:
        try:
            ends = offsets_from_json(json.loads(source.endOffset))
            latest = offsets_from_json(json.loads(source.latestOffset))
        except (TypeError, ValueError, AttributeError):
            continue  # another source, without partitions
        for each, offset in latest.items():
            end = ends.get(each, 0)
            found[each] = end, max(offset - end, 0)
    return found


class QueryReport:
    """Reports one run of a query, until it ends.

    Parameters:
        name: of the query, or its id.
        run: Spark's id of this run.
        execution: Spark's object of the query.
        is_over: returns True if the application has stopped its session.
    """

    def __init__(
        self,
        name: str,
        run: str,
        execution: Any,  # noqa: ANN401
        is_over: Callable[[], bool],
    ) -> None:
        self._name: Final = name
        self._run: Final = run
        self._execution: Final = execution
        self._is_over: Final = is_over
        self._started_ms: Final = time.time_ns() // 1_000_000
        self._reporter: Final = JobReporter()
        self._source = ""
        self._step_s = 0.0
        self._lags: dict[TopicPartition, tuple[int, int]] = {}
        self._ended = threading.Event()
        self._reason = ""
        self._has_committed = False
        self._thread: threading.Thread | None = None

    def progressed(self, progress: StreamingQueryProgress) -> None:
        """Note a micro-batch; the reports begin with the first one."""
        self._source = ", ".join(each.description for each in progress.sources)
        self._step_s = progress.durationMs.get("triggerExecution", 0) / 1000
        self._lags = lags_of(progress)
        self._has_committed |= progress.numInputRows > 0
        self._begin()

    def idle(self) -> None:
        """Note that the sources have nothing new."""
        self._lags = {each: (offset, 0) for each, (offset, _) in self._lags.items()}

    def end(self, reason: str) -> None:
        """Report the end of the run before this returns, if the server responds soon enough.

        Parameters:
            reason: why it failed; empty: it was stopped, or has finished.
        """
        self._reason = reason
        self._begin()
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_LAST_S)

    def _begin(self) -> None:
        if self._thread is not None:
            return
        try:
            sink = _Sink(read_settings(_options(self._execution)), _interval_s(self._execution))
        except (Py4JError, SinkError) as error:
            # Before the first micro-batch a query has no plan yet.
            self._reporter.note(f"query {self._name}: {error}")
            return
        self._thread = threading.Thread(
            target=self._work, args=(sink,), name="pidlease-job-report", daemon=True
        )
        self._thread.start()

    def _work(self, sink: "_Sink") -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.is_set() or self._is_over()
            try:
                asyncio.run(self._send(sink, is_last=is_last))
            except Exception as error:  # noqa: BLE001 - the query goes on without its reports
                self._reporter.note(f"{type(error).__name__}: {error}")
            if not is_last:
                self._ended.wait(REPORT_SECONDS)

    async def _send(self, sink: "_Sink", *, is_last: bool) -> None:
        async with asyncio.timeout(_REQUEST_S), LeaseClient.of(sink.producer) as leases:
            await self._reporter.send(leases, self._report(sink, is_last=is_last))

    def _report(self, sink: "_Sink", *, is_last: bool) -> JobReport:
        """Make the report.

        Raises:
            SinkError: the sink's state cannot be read.
            ValidationError: a number does not fit.
        """
        sent, duplicates = sink.counts() if self._has_committed else (0, 0)
        lags = self._lags
        lagging = sorted(lags.items(), key=lambda item: -item[1][1])
        return JobReport(
            kind="spark",
            job=self._name[:NAME_MAX],
            process=self._run,
            state="running" if not is_last else "failed" if self._reason else "ended",
            reason=self._reason[:REASON_MAX],
            source=self._source[:SIDE_MAX],
            destination=sink.settings.bootstrap_servers[:SIDE_MAX],
            started_ms=self._started_ms,
            records=sent,
            duplicates=duplicates,
            lag=sum(lag for _, lag in lags.values()) if lags else None,
            step_seconds=min(max(self._step_s, sink.interval_s), _STEP_MAX_S),
            partitions=len(lags),
            lagging=[
                JobPartition(topic=each.topic, partition=each.partition, offset=offset, lag=lag)
                for each, (offset, lag) in lagging[:PARTITIONS_MAX] if lag
            ],
        )  # fmt: skip


class _Sink:
    """The sink of a query, and the counts of the query's present run.

    Parameters:
        interval_s: of the query's trigger; 0: its micro-batches follow each other at once.
    """

    def __init__(self, settings: SinkSettings, interval_s: float) -> None:
        self.settings: Final = settings
        self.interval_s: Final = interval_s
        self.producer: Final = settings.producer()
        self._store: Final = RunStore(settings.state)
        self._run = ""
        self._before = 0, 0

    def counts(self) -> tuple[int, int]:
        """Return the rows that the run has sent, and those of them that were stored before.

        Call it after the run's first commit: the newest run is the query's own then.

        Raises:
            SinkError: the run's state cannot be read.
        """
        if not self._run:
            newest = self._store.newest()
            if newest is None:
                return 0, 0
            # A run begins with the counts of the run before.
            self._before = _counts(self._store.before(newest)[:1])
            self._run = newest
        sent, duplicates = _counts([self._store.read(self._run)])
        return sent - self._before[0], duplicates - self._before[1]


def _counts(states: Iterable[RunState]) -> tuple[int, int]:
    """Return the rows that were sent, and those of them that were stored before."""
    sources = [each for state in states for each in state.sources.values()]
    return sum(each.sent for each in sources), sum(each.duplicates for each in sources)


def _options(execution: Any) -> Mapping[str, str]:  # noqa: ANN401 - a Java object
    """Return the options of a query's sink."""
    found = execution.logicalPlan().writeOptions()
    keys = found.keysIterator()
    options = {}
    while keys.hasNext():
        key = keys.next()
        options[str(key)] = str(found.apply(key))
    return options


def _interval_s(execution: Any) -> float:  # noqa: ANN401 - a Java object
    trigger = execution.trigger()
    if str(trigger.getClass().getSimpleName()) != "ProcessingTimeTrigger":
        return 0.0
    return float(trigger.intervalMs()) / 1000
