"""Reports the progress of queries with the sink to the server, whose console shows it.

Spark calls its listeners after each micro-batch. A thread sends the reports, so that no query waits
for the server, and a query in a long micro-batch is not taken for a dead one.
"""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pydantic import ValidationError
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

_log = logging.getLogger(__name__)

#: How long the server may take for a report.
_REQUEST_S: Final = 2.0


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
    """What is known of one run of a query.

    Parameters:
        interval_s: of its trigger; 0: its micro-batches follow each other at once.
    """

    def __init__(self, name: str, run: str, settings: SinkSettings, interval_s: float) -> None:
        self._name: Final = name
        self._run: Final = run
        self._settings: Final = settings
        self._interval_s: Final = interval_s
        self._started_ms: Final = time.time_ns() // 1_000_000
        self._store: Final = RunStore(settings.state)
        self._source = ""
        self._seconds = 0.0
        self._lags: dict[TopicPartition, tuple[int, int]] = {}
        self._ended = False
        self._reason = ""
        self._producer: Final = settings.producer()
        self._reporter: Final = JobReporter()
        self._sending: Final = threading.Lock()

    def progressed(self, progress: StreamingQueryProgress) -> None:
        """Note a micro-batch."""
        self._source = ", ".join(each.description for each in progress.sources)
        self._seconds = progress.durationMs.get("triggerExecution", 0) / 1000
        self._lags = lags_of(progress)

    def idle(self) -> None:
        """Note that the sources have nothing new."""
        self._lags = {each: (offset, 0) for each, (offset, _) in self._lags.items()}

    def end(self, reason: str) -> None:
        """Note the end of the run; an empty reason: it was stopped, or has finished."""
        self._ended, self._reason = True, reason

    def send(self) -> None:
        """Send the report; if that fails, the log says why."""
        with self._sending:
            try:
                asyncio.run(self._send(self.make()))
            except (SinkError, ValidationError) as error:
                self._reporter.note(str(error))

    async def _send(self, report: JobReport) -> None:
        async with LeaseClient.of(self._producer, timeout_s=_REQUEST_S) as leases:
            await self._reporter.send(leases, report)

    def make(self) -> JobReport:
        """Return the report.

        Raises:
            SinkError: the sink's state cannot be read.
            ValidationError: a number does not fit.
        """
        # A run carries the counts of the run before on.
        states = self._store.before()
        sent, duplicates = _counts(states[:1])
        sent_before, duplicates_before = _counts(states[1:2])
        lagging = sorted(self._lags.items(), key=lambda item: -item[1][1])
        return JobReport(
            kind="spark",
            job=self._name[:NAME_MAX],
            process=self._run,
            state="running" if not self._ended else "failed" if self._reason else "ended",
            reason=self._reason[:REASON_MAX],
            source=self._source[:SIDE_MAX],
            destination=self._settings.bootstrap_servers[:SIDE_MAX],
            started_ms=self._started_ms,
            records=max(sent - sent_before, 0),
            duplicates=max(duplicates - duplicates_before, 0),
            lag=sum(lag for _, lag in self._lags.values()) if self._lags else None,
            step_seconds=min(max(self._seconds, self._interval_s), 86_400.0),
            partitions=len(self._lags),
            lagging=[
                JobPartition(topic=place.topic, partition=place.partition, offset=offset, lag=lag)
                for place, (offset, lag) in lagging[:PARTITIONS_MAX] if lag
            ],
        )  # fmt: skip


def _counts(states: Iterable[RunState]) -> tuple[int, int]:
    """Return the rows that were sent, and those of them that were stored before."""
    sources = [each for state in states for each in state.sources.values()]
    return sum(each.sent for each in sources), sum(each.duplicates for each in sources)


class QueryReports:
    """Reports the queries of an application, from a thread that begins with the first of them."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._reports: Final[dict[str, QueryReport]] = {}
        self._thread: threading.Thread | None = None

    def find(self, run: str) -> QueryReport | None:
        """Return the report of a run; None: there is none."""
        return self._reports.get(run)

    def begin(self, name: str, run: str, execution: Any) -> QueryReport | None:  # noqa: ANN401
        """Begin to report a query that has the sink.

        Parameters:
            name: of the query, or its id.
            run: Spark's id of this run.
            execution: Spark's object of the query; its plan is known from the first micro-batch on.

        Returns:
            None if its options cannot be read; the log says why.
        """
        try:
            settings = read_settings(_options(execution))
            report = QueryReport(name, run, settings, _interval_s(execution))
        except (Py4JError, SinkError) as error:
            _log.info("the console does not show query %s: %s", name, error)
            return None
        with self._lock:
            self._reports[run] = report
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="pidlease-job-reports", daemon=True
                )
                self._thread.start()
        return report

    def end(self, run: str, reason: str) -> None:
        """Report the end of a run, before this returns: the application may end then.

        Parameters:
            reason: why it failed; empty: it was stopped, or has finished.
        """
        with self._lock:
            report = self._reports.pop(run, None)
        if report is not None:
            report.end(reason)
            report.send()

    def _work(self) -> None:
        while True:
            time.sleep(REPORT_SECONDS)
            with self._lock:
                reports = list(self._reports.items())
            for run, report in reports:
                if run in self._reports:
                    report.send()


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
