"""The progress of copies and Spark queries by their own reports, in memory, for operators.

Lost time: a job stalls if no record is acknowledged for a while although it has a lag; it may be
stuck, crashed, or starting again. A stall counts from the last report that showed progress to the
last one without. A job that was ended on purpose loses no time.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from pidlease.engine.engine import wall_clock_ms
from pidlease.http_api.job_messages import (
    REPORT_SECONDS,
    JobProcess,
    JobReport,
    JobsAnswer,
    JobState,
)

#: The most jobs that are kept: those that were the last to report.
JOBS_MAX: Final = 100
#: The most processes of a job that may report, and that are kept when they do not report any more.
PROCESSES_MAX: Final = 256
GONE_MAX: Final = 16
#: The most processes of all jobs.
_ALL_MAX: Final = 2000
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


def _sum_of_lags(processes: Iterable[_Process]) -> int | None:
    """Return the lag of processes together; None: none of them knows its own."""
    known = [each.report.lag for each in processes if each.report.lag is not None]
    return sum(known) if known else None


class TooManyProcessesError(Exception):
    """A job has as many processes as are kept."""


class _Job:
    """A job, and the reports of its processes.

    Attributes:
        processes: by their ids, the last to report last.
    """

    def __init__(self, now_s: float, now_ms: int) -> None:
        self.processes: Final[OrderedDict[str, _Process]] = OrderedDict()
        self._first_ms: Final = now_ms
        #: The last report that showed progress, or that nothing was left, by the monotonic clock.
        self._progressed_s = now_s
        self._records = 0
        self._duplicates = 0
        self._lag: int | None = None
        self._step_s = 0.0
        self._lost_s = 0.0
        self._was_ended = False
        #: A process reports after all were gone, and does not know its lag yet.
        self._is_back = False

    def report(self, report: JobReport, now_s: float, now_ms: int) -> None:
        """Add a report.

        Raises:
            TooManyProcessesError: there is no room for another process.
        """
        before = self.processes.get(report.process)
        self._make_room(report.process, now_s)
        if before is not None and before.report.started_ms != report.started_ms:
            before = None  # another process with the same id
        if before is not None and before.report.state != "running":
            return  # sent before the last one, and overtaken by it
        if not any(each.is_live(now_s) for each in self.processes.values()):
            self._is_back = bool(self.processes) and not self._was_ended
        records, duplicates = report.records, report.duplicates
        if before is not None:
            records -= before.report.records
            duplicates -= before.report.duplicates
        if self._is_back and report.lag is not None:
            # What came while all were gone was not known: a lag or records show that some did.
            self._is_back = False
            self._lag = self._lag or report.lag or records
        # A report may have been lost: there was no progress until the last one that arrived.
        stall_end_s = before.at_s if before is not None and records > 0 else now_s
        stall_s = self._stall_s(stall_end_s)
        is_late = report.state != "running" and before is not None and self._is_past(before, now_s)
        process = _Process(report, now_s, now_ms, before)
        self.processes[report.process] = process
        self.processes.move_to_end(report.process, last=not is_late)
        self._records += max(records, 0)
        self._duplicates += max(duplicates, 0)
        if is_late:
            return
        was_ended = self._was_ended
        self._note_present(process, now_s)
        is_idle = self._lag == 0 and not self._is_back
        if records > 0 or is_idle or self._was_ended or was_ended:
            self._lost_s += stall_s
            self._progressed_s = now_s

    def _make_room(self, process: str, now_s: float) -> None:
        gone = [name for name, each in self.processes.items()
                if not each.is_live(now_s) and name != process]  # fmt: skip
        for name in gone[: max(len(gone) - GONE_MAX, 0)]:
            del self.processes[name]
        if process not in self.processes and len(self.processes) >= PROCESSES_MAX:
            raise TooManyProcessesError(f"the job has {PROCESSES_MAX} processes that report")

    def _is_past(self, before: _Process, now_s: float) -> bool:
        """Whether a process was silent while others went on: its lag is not the job's any more."""
        return now_s - before.at_s >= SILENT_SECONDS and any(
            each.at_s > before.at_s for each in self.processes.values()
        )

    def _note_present(self, process: _Process, now_s: float) -> None:
        """Note the lag, the step and the end, by the processes that report."""
        live = [each for each in self.processes.values() if each.is_live(now_s)] or [process]
        lag = _sum_of_lags(live)
        if lag is not None:  # a process that has just started knows none yet
            self._lag = lag
        self._step_s = max(each.report.step_seconds for each in live)
        self._was_ended = all(each.report.state == "ended" for each in live)

    def _stall_s(self, now_s: float) -> float:
        """Return for how long the job has stalled; 0: it does not stall."""
        if not self._lag or self._was_ended:
            return 0.0
        since = now_s - self._progressed_s
        return since if since >= max(STALL_SECONDS, _STALL_STEPS * self._step_s) else 0.0

    def state(self, now_s: float) -> JobState:
        """Return the job as it is now."""
        last = next(reversed(self.processes.values()))
        live = [each for each in self.processes.values() if each.is_live(now_s)]
        stall_s = self._stall_s(now_s)
        of_last = "silent" if last.report.state == "running" else last.report.state
        # Of a job that is gone, the lag is not known any more.
        seen = live or ([] if of_last == "silent" else [last])
        return JobState(
            kind=last.report.kind,
            job=last.report.job,
            state=("stalled" if stall_s else "running") if live else of_last,
            records=self._records,
            duplicates=self._duplicates,
            lag=_sum_of_lags(seen),
            rate=sum(each.rate for each in live),
            lost_seconds=self._lost_s + stall_s,
            first_ms=self._first_ms,
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
        """Add a report. Of too many jobs, those that have not reported for longest are forgotten.

        Raises:
            TooManyProcessesError: the job has too many processes.
        """
        key, now_s, now_ms = (report.kind, report.job), self._monotonic(), self._wall_ms()
        job = self._jobs.get(key) or _Job(now_s, now_ms)
        job.report(report, now_s, now_ms)
        self._jobs[key] = job
        self._jobs.move_to_end(key)
        while len(self._jobs) > JOBS_MAX or (len(self._jobs) > 1 and self._processes > _ALL_MAX):
            self._jobs.popitem(last=False)

    @property
    def _processes(self) -> int:
        return sum(len(job.processes) for job in self._jobs.values())

    def answer(self) -> JobsAnswer:
        """Return all jobs as they are now."""
        now_s = self._monotonic()
        return JobsAnswer(jobs=[job.state(now_s) for job in reversed(self._jobs.values())])
