"""Keeps what copies and Spark queries report of themselves, in memory, for operators.

Lost time: a job stalls if no record is acknowledged for a while although it has a lag; it may be
stuck, crashed, or restarting. Stalls count from the last acknowledgement. A job that was ended on
purpose loses no time.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from pidlease.engine.engine import wall_clock_ms
from pidlease.http_api.job_messages import (
    REPORT_SECONDS,
    JobProcess,
    JobReport,
    JobsAnswer,
    JobState,
)

#: The most jobs, and processes of a job, that are kept: those that were the last to report.
JOBS_MAX: Final = 100
PROCESSES_MAX: Final = 16
#: A process is silent after this time: three reports are missing.
SILENT_SECONDS: Final = 3 * REPORT_SECONDS
#: A job stalls after this time, or after this many of its usual steps.
STALL_SECONDS: Final = 2 * REPORT_SECONDS
_STALL_STEPS: Final = 3


class _Process:
    """The last report of a process.

    Attributes:
        at_s: when it came, by the monotonic clock.
    """

    __slots__ = ("at_s", "rate", "report", "reported_ms")

    def __init__(
        self, report: JobReport, at_s: float, at_ms: int, before: "_Process | None"
    ) -> None:
        self.report: Final = report
        self.at_s: Final = at_s
        self.reported_ms: Final = at_ms
        self.rate = 0.0
        if before is not None and at_s > before.at_s:
            self.rate = max(report.records - before.report.records, 0) / (at_s - before.at_s)

    def is_live(self, now_s: float) -> bool:
        """Whether it runs, and a report is not overdue."""
        return self.report.state == "running" and now_s - self.at_s < SILENT_SECONDS


class _Job:
    """A job, and what its processes have reported.

    Attributes:
        progressed_s: when a record was acknowledged, or none was left; by the monotonic clock.
    """

    def __init__(self, now_s: float, now_ms: int) -> None:
        self.processes: Final[OrderedDict[str, _Process]] = OrderedDict()
        self.first_ms: Final = now_ms
        self.progressed_s = now_s
        self._records = 0
        self._duplicates = 0
        self._lag: int | None = None
        self._lost_s = 0.0
        self._was_ended = False

    def report(self, report: JobReport, now_s: float, now_ms: int) -> None:
        """Take a report."""
        stall = self._stall_s(now_s)
        before = self.processes.pop(report.process, None)
        if before is not None and before.report.started_ms != report.started_ms:
            before = None  # another process with the same id
        records, duplicates = report.records, report.duplicates
        if before is not None:
            records -= before.report.records
            duplicates -= before.report.duplicates
        process = self.processes[report.process] = _Process(report, now_s, now_ms, before)
        while len(self.processes) > PROCESSES_MAX:
            self.processes.popitem(last=False)
        self._records += max(records, 0)
        self._duplicates += max(duplicates, 0)
        live = [each for each in self.processes.values() if each.is_live(now_s)] or [process]
        known = [each.report.lag for each in live if each.report.lag is not None]
        self._lag = sum(known) if known else None
        is_ended = all(each.report.state == "ended" for each in live)
        if records > 0 or not self._lag or is_ended or self._was_ended:
            self._lost_s += stall
            self.progressed_s = now_s
        self._was_ended = is_ended

    def _stall_s(self, now_s: float) -> float:
        """Return for how long the job has stalled; 0: it does not stall."""
        if not self._lag or self._was_ended:
            return 0.0
        step = max((each.report.step_seconds for each in self.processes.values()), default=0.0)
        since = now_s - self.progressed_s
        return since if since >= max(STALL_SECONDS, _STALL_STEPS * step) else 0.0

    def state(self, now_s: float) -> JobState:
        """Return the job as it is now."""
        last = next(reversed(self.processes.values()))
        live = [each for each in self.processes.values() if each.is_live(now_s)]
        stall = self._stall_s(now_s)
        of_last = "silent" if last.report.state == "running" else last.report.state
        return JobState(
            kind=last.report.kind,
            job=last.report.job,
            state=("stalled" if stall else "running") if live else of_last,
            records=self._records,
            duplicates=self._duplicates,
            lag=self._lag,
            rate=sum(each.rate for each in live),
            lost_seconds=self._lost_s + stall,
            first_ms=self.first_ms,
            processes=[
                JobProcess(
                    **dict(each.report), reported_ms=each.reported_ms, rate=each.rate,
                    silent=each.report.state == "running" and not each.is_live(now_s),
                )
                for each in reversed(self.processes.values())
            ],
        )  # fmt: skip


class JobBoard:
    """The jobs that report to this server.

    Parameters:
        monotonic: returns the time in s.
        wall_ms: returns the time in ms since 1970.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._monotonic: Final = monotonic
        self._wall_ms: Final = wall_ms
        self._jobs: Final[OrderedDict[tuple[str, str], _Job]] = OrderedDict()

    def report(self, report: JobReport) -> None:
        """Take a report; of too many jobs, the first to report last is forgotten."""
        key, now_s, now_ms = (report.kind, report.job), self._monotonic(), self._wall_ms()
        job = self._jobs.pop(key, None) or _Job(now_s, now_ms)
        job.report(report, now_s, now_ms)
        self._jobs[key] = job
        if len(self._jobs) > JOBS_MAX:
            self._jobs.popitem(last=False)

    def answer(self) -> JobsAnswer:
        """Return all jobs as they are now."""
        now_s = self._monotonic()
        return JobsAnswer(jobs=[job.state(now_s) for job in reversed(self._jobs.values())])
