"""Reports a copier's progress to the server of the destination, for its console."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from pydantic import ValidationError

from pidlease.client.job_reporter import JobReporter
from pidlease.client.lease_client import LeaseClient
from pidlease.copier.copy_metrics import CopyMetrics
from pidlease.copier.settings import CopySettings
from pidlease.http_api.job_messages import (
    NAME_MAX,
    PARTITIONS_MAX,
    REASON_MAX,
    REPORT_SECONDS,
    SIDE_MAX,
    JobPartition,
    JobReport,
)

#: How long the last report may delay the copier's end.
_LAST_S: Final = 5.0


class CopyReports:
    """Sends the reports of one copier; the copy goes on without them.

    Parameters:
        copier_id: names this copier among those of its group.
    """

    def __init__(
        self, settings: CopySettings, copier_id: str, metrics: CopyMetrics, leases: LeaseClient
    ) -> None:
        self._settings: Final = settings
        self._copier_id: Final = copier_id
        self._metrics: Final = metrics
        self._leases: Final = leases
        self._reporter: Final = JobReporter()
        self._started_ms: Final = time.time_ns() // 1_000_000

    async def run(self) -> None:
        """Report every few seconds, until it is cancelled."""
        while True:
            await self._send(self.report)
            await asyncio.sleep(REPORT_SECONDS)

    async def end(self, error: BaseException | None) -> None:
        """Report the end of the copier.

        Parameters:
            error: why it ended; None: it was stopped, or has finished.
        """
        if error is None or isinstance(error, asyncio.CancelledError):
            make = partial(self.report, "ended")
        else:
            make = partial(self.report, "failed", str(error) or type(error).__name__)
        try:
            await asyncio.wait_for(self._send(make), _LAST_S)
        except TimeoutError:
            self._reporter.note(f"no response within {_LAST_S} s")

    async def _send(self, make: Callable[[], JobReport]) -> None:
        try:
            report = make()
        except ValidationError as error:
            self._reporter.note(str(error))  # the copy goes on
        else:
            await self._reporter.send(self._leases, report)

    def report(
        self, state: Literal["running", "ended", "failed"] = "running", reason: str = ""
    ) -> JobReport:
        """Return the progress."""
        settings, metrics = self._settings, self._metrics
        lagging = sorted(metrics.partitions, key=lambda each: -each.lag)
        known = [each for each in lagging if each.offset >= 0 and each.end_offset >= 0]
        return JobReport(
            kind="copy",
            job=settings.group[:NAME_MAX],
            process=self._copier_id[:NAME_MAX],
            state=state,
            reason=reason[:REASON_MAX],
            source=_joined(settings.source),
            destination=_joined(settings.destination),
            started_ms=self._started_ms,
            records=metrics.records,
            duplicates=metrics.duplicates,
            lag=sum(each.lag for each in known) if known else None,
            partitions=len(metrics.partitions),
            lagging=[
                JobPartition(topic=each.topic, partition=each.partition, offset=each.offset,
                             lag=each.lag)
                for each in known[:PARTITIONS_MAX] if each.lag
            ],
        )  # fmt: skip


def _joined(servers: str | Sequence[str]) -> str:
    return (servers if isinstance(servers, str) else ",".join(servers))[:SIDE_MAX]
