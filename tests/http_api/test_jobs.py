"""What copies and Spark queries report of themselves, and what operators see of it."""

from pathlib import Path
from typing import Any, Final

import pytest

from pidlease.http_api.job_messages import PARTITIONS_MAX, JobReport, JobState
from proxy.http.job_board import (
    GONE_MAX,
    JOBS_MAX,
    PROCESSES_MAX,
    SILENT_SECONDS,
    STALL_SECONDS,
    JobBoard,
    TooManyProcessesError,
)
from tests.http_api.serving import http

_REPORT: Final[dict[str, Any]] = {
    "kind": "copy", "job": "mirror", "process": "a", "started_ms": 1, "records": 10, "lag": 5,
}  # fmt: skip


class Board:
    """A board with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.board = JobBoard(lambda: self.now_s, lambda: int(self.now_s * 1000))

    def report(self, **changes: Any) -> None:
        self.board.report(JobReport(**{**_REPORT, **changes}))

    def later(self, seconds: float) -> JobState:
        """Let time pass; return the job that was the last to report."""
        self.now_s += seconds
        return self.board.answer().jobs[0]


def test_progress_and_rate() -> None:
    board = Board()
    board.report()
    assert (board.later(5).state, board.later(0).rate) == ("running", 0.0)
    board.report(records=60, duplicates=3, lag=1)
    job = board.later(0)
    assert (job.records, job.duplicates, job.lag, job.rate) == (60, 3, 1, 10.0)
    (process,) = job.processes
    assert (process.reported_ms, process.silent) == (1_005_000, False)
    assert job.first_ms == 1_000_000


def test_processes_of_a_job_add_up() -> None:
    board = Board()
    board.report(process="a", records=10, lag=5)
    board.report(process="b", records=20, lag=7)
    job = board.later(0)
    assert (job.records, job.lag, [each.process for each in job.processes]) == (30, 12, ["b", "a"])
    board.report(process="a", state="ended", records=15, lag=4)
    job = board.later(0)
    assert (job.state, job.records, job.lag) == ("running", 35, 7), "the one that goes on has it"


def test_a_process_that_starts_again_with_its_id_counts_anew() -> None:
    board = Board()
    board.report(records=100)
    board.report(records=7, started_ms=2)
    assert board.later(0).records == 107


@pytest.mark.parametrize("state", ["ended", "failed"])
def test_a_report_that_arrives_after_the_last_one_changes_nothing(state: str) -> None:
    board = Board()
    board.report()
    board.report(state=state, records=20, lag=0)
    board.report(records=15, lag=2)
    job = board.later(SILENT_SECONDS)
    assert (job.state, job.records, job.lag) == (state, 20, 0)
    board.report(started_ms=2, records=1, lag=1)
    job = board.later(0)
    assert (job.state, job.records, job.lag) == ("running", 21, 1)


@pytest.mark.parametrize("state", ["running", "failed"])
def test_a_crash_is_lost_time_until_a_record_is_acknowledged_again(state: str) -> None:
    board = Board()
    board.report()
    board.later(4)
    board.report(records=11, lag=9, state=state)
    assert board.later(STALL_SECONDS - 1).lost_seconds == 0
    assert board.later(1).lost_seconds == STALL_SECONDS
    assert board.later(SILENT_SECONDS).state == ("silent" if state == "running" else "failed")
    board.report(process="b", records=0, lag=None)
    assert board.later(2).state == "stalled", "it runs again, and does not know its lag yet"
    board.report(process="b", records=0, lag=30)
    board.later(5)
    board.report(process="b", records=1, lag=29)
    job = board.later(0)
    assert (job.state, job.lost_seconds) == ("running", STALL_SECONDS + SILENT_SECONDS + 2)
    assert board.later(STALL_SECONDS - 1).lost_seconds == job.lost_seconds


@pytest.mark.parametrize("records", [0, 3])
def test_a_crash_without_a_lag_loses_time_if_there_is_one_at_the_restart(records: int) -> None:
    board = Board()
    board.report(records=50, lag=0)
    board.later(60)
    assert board.later(0).lag is None, "it is not known"
    assert (board.later(0).state, board.later(0).lost_seconds) == ("silent", 0)
    board.report(process="b", records=0, lag=None)
    board.later(4)
    board.report(process="b", records=records, lag=500)
    assert board.later(1).lost_seconds == (60 if records else 65)
    board.report(process="b", records=records + 1, lag=400)
    assert board.later(STALL_SECONDS - 1).lost_seconds == (60 if records else 64)
    assert board.later(0).state == "running"


def test_a_crash_of_an_idle_job_loses_no_time() -> None:
    board = Board()
    board.report(lag=0)
    board.later(60)
    board.report(process="b", records=0, lag=0)
    job = board.later(0)
    assert (job.state, job.lost_seconds, job.lag) == ("running", 0, 0)


def test_a_job_that_goes_on_shows_no_lag_of_before() -> None:
    board = Board()
    board.report(lag=7, state="ended")
    assert board.later(60).lag == 7
    board.report(process="b", records=0, lag=None)
    job = board.later(1)
    assert (job.state, job.lag, job.lost_seconds) == ("running", None, 0)


def test_a_lost_report_is_no_stall() -> None:
    board = Board()
    for records in range(100):
        board.report(records=records)
        board.later(STALL_SECONDS + 0.5)
    assert (board.later(0).state, board.later(0).lost_seconds) == ("stalled", STALL_SECONDS + 0.5)
    board.report(records=100)
    assert (board.later(0).state, board.later(0).lost_seconds) == ("running", 0)


def test_the_last_report_of_a_replaced_process_changes_nothing() -> None:
    board = Board()
    board.report(process="a", lag=5)
    board.later(SILENT_SECONDS)
    board.report(process="b", records=1, lag=0)
    board.report(process="b", records=1, lag=0, state="ended")
    board.later(1)
    board.report(process="a", lag=5, state="failed", reason="fenced")
    job = board.later(1000)
    assert (job.state, job.lag, job.lost_seconds) == ("ended", 0, SILENT_SECONDS)
    assert [(each.process, each.reason) for each in job.processes] == [("b", ""), ("a", "fenced")]


def test_the_steps_of_earlier_processes_do_not_count() -> None:
    board = Board()
    board.report(process="a", step_seconds=3600.0, state="ended")
    board.report(process="b", records=1)
    assert board.later(STALL_SECONDS).state == "stalled"


def test_a_job_without_a_lag_loses_no_time() -> None:
    board = Board()
    board.report(lag=0)
    assert board.later(1000).lost_seconds == 0
    board.report(lag=0)
    board.later(2)
    board.report(lag=3)
    assert (board.later(3).state, board.later(0).lost_seconds) == ("running", 0)


def test_a_job_that_was_ended_on_purpose_loses_no_time() -> None:
    board = Board()
    board.report(state="ended")
    assert (board.later(1000).state, board.later(0).lost_seconds) == ("ended", 0)
    board.report(process="b", records=0)
    assert (board.later(1).state, board.later(0).lost_seconds) == ("running", 0)


def test_a_stall_before_the_end_stays_counted() -> None:
    board = Board()
    board.report()
    board.later(STALL_SECONDS + 5)
    board.report(state="ended")
    assert board.later(1000).lost_seconds == STALL_SECONDS + 5


def test_an_unknown_lag_is_no_stall() -> None:
    board = Board()
    board.report(lag=None)
    job = board.later(1000)
    assert (job.lag, job.lost_seconds, job.state) == (None, 0, "silent")


def test_a_long_micro_batch_is_no_stall() -> None:
    board = Board()
    board.report(kind="spark", step_seconds=60.0)
    for _ in range(35):
        assert board.later(5).lost_seconds == 0
        board.report(kind="spark", step_seconds=60.0)
    assert board.later(5).state == "stalled", "three of them are one"


def test_the_board_is_bounded() -> None:
    board = Board()
    for number in range(JOBS_MAX + 5):
        board.report(job=f"j{number}")
    board.report(job="j5")
    board.report(job="new")
    jobs = [each.job for each in board.board.answer().jobs]
    assert len(jobs) == JOBS_MAX
    assert jobs[:3] == ["new", "j5", f"j{JOBS_MAX + 4}"]
    assert "j6" not in jobs
    for number in range(1, PROCESSES_MAX):
        board.report(job="new", process=f"p{number}", records=1)
    with pytest.raises(TooManyProcessesError, match="256 processes"):
        board.report(job="new", process="one more")
    board.report(job="new", process="p1", records=2)
    assert board.later(SILENT_SECONDS).records == 10 + PROCESSES_MAX
    board.report(job="new", process="one more", records=3)
    job = board.later(0)
    assert (len(job.processes), job.records) == (GONE_MAX + 1, 10 + PROCESSES_MAX + 3)
    for name in range(JOBS_MAX):
        for number in range(100):
            board.report(job=f"many-{name}", process=f"p{number}")
    assert sum(len(each.processes) for each in board.board.answer().jobs) <= 2000


async def test_over_http(tmp_path: Path) -> None:
    lagging = [{"topic": "t", "partition": 2, "offset": 4, "lag": 5}]
    async with http(tmp_path) as door:
        assert (await door.get("/v1/jobs"))[1] == {"jobs": []}
        sent = await door.client.post("/v1/jobs", json={**_REPORT, "lagging": lagging})
        assert (sent.status_code, sent.content) == (204, b"")
        _, answer = await door.get("/v1/jobs")
        (job,) = answer["jobs"]
        assert (job["job"], job["records"], job["state"]) == ("mirror", 10, "running")
        assert job["processes"][0]["lagging"] == lagging
        for wrong, field in (
            ({"kind": "other"}, "kind"), ({"records": -1}, "records"), ({"job": ""}, "job"),
            ({"more": 1}, "more"), ({"lagging": lagging * (PARTITIONS_MAX + 1)}, "lagging"),
        ):  # fmt: skip
            refused = await door.client.post("/v1/jobs", json={**_REPORT, **wrong})
            assert (refused.status_code, refused.json()["field"]) == (400, field), refused.text
        assert len((await door.get("/v1/jobs"))[1]["jobs"]) == 1
