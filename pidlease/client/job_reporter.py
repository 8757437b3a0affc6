"""Sends the reports of a job, and logs once if they do not arrive."""

import logging

from pidlease.client.lease_client import LeaseClient
from pidlease.http_api.job_messages import JobReport

_log = logging.getLogger(__name__)


class JobReporter:
    """Sends reports, for operators only: the job goes on without them."""

    def __init__(self) -> None:
        self._problem = ""

    async def send(self, leases: LeaseClient, report: JobReport) -> None:
        """Send a report."""
        self.note(await leases.report_job(report))

    def note(self, problem: str) -> None:
        """Log the first report that does not arrive, and the first one that arrives again.

        Parameters:
            problem: why the last one did not arrive; empty: it did.
        """
        if problem and not self._problem:
            _log.warning("the console does not show this job's progress: %s", problem)
        elif self._problem and not problem:
            _log.info("the console shows this job's progress again")
        self._problem = problem
