"""Broken reports of jobs: the console shows what is not so."""

from typing import Final

from tests.mutants.mutant import Mutant

_BOARD: Final = "proxy/http/job_board.py"
_REPORTS: Final = "pidlease/copier/copy_reports.py"
_TESTS: Final = "tests/http_api/test_jobs.py"
_COPIER_TESTS: Final = "tests/client/test_job_reports.py"

JOBS: Final = (
    Mutant(
        "a report that was lost counts as a stall",
        _BOARD,
        "before.at_s if before is not None and records > 0 else now_s",
        "now_s",
        (f"{_TESTS}::test_a_lost_report_is_no_stall",),
    ),
    Mutant(
        "the last report of a replaced process is the job's present",
        _BOARD,
        "        is_late = report.state",
        "        is_late = False and report.state",
        (f"{_TESTS}::test_the_last_report_of_a_replaced_process_changes_nothing",),
    ),
    Mutant(
        "a lag that is not known yet ends a stall",
        _BOARD,
        "        if lag is not None:  # a process that has just started knows none yet\n",
        "        if True:\n",
        (f"{_TESTS}::test_a_crash_is_lost_time_until_a_record_is_acknowledged_again",),
    ),
    Mutant(
        "a process that starts again counts nothing until it has as much as before",
        _BOARD,
        "            before = None  # another process with the same id\n",
        "            pass\n",
        (f"{_TESTS}::test_a_process_that_starts_again_with_its_id_counts_anew",),
    ),
    Mutant(
        "a job that was ended on purpose loses time",
        _BOARD,
        "        if not self._lag or self._was_ended:\n",
        "        if not self._lag:\n",
        (f"{_TESTS}::test_a_job_that_was_ended_on_purpose_loses_no_time",),
    ),
    Mutant(
        "any number of processes may report",
        _BOARD,
        "len(self.processes) >= PROCESSES_MAX",
        "len(self.processes) < 0",
        (f"{_TESTS}::test_the_board_is_bounded",),
    ),
    Mutant(
        "a partition that was never fetched has no lag",
        _REPORTS,
        "each.offset >= 0 and each.end_offset >= 0",
        "each.offset >= 0",
        (f"{_COPIER_TESTS}::test_a_copy_s_report",),
    ),
)
