"""Reports of a job to the server: a copy goes on without them, and its log says so once."""

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from pidlease.client.job_reporter import JobReporter
from pidlease.client.lease_client import LeaseClient
from pidlease.copier import CopierFencedError, CopySettings
from pidlease.copier.copy_metrics import CopyMetrics, PartitionProgress
from pidlease.copier.copy_reports import CopyReports
from pidlease.http_api.job_messages import PARTITIONS_MAX, SIDE_MAX, JobReport


class Server:
    """Answers reports, and keeps them.

    Attributes:
        status: of the answers; 0: the connection is closed.
    """

    def __init__(self) -> None:
        self.status = 204
        self.reports: list[dict[str, Any]] = []
        self.leases = LeaseClient("http://server", transport=httpx.MockTransport(self._answer))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path) == ("POST", "/v1/jobs")
        if not self.status:
            raise httpx.ReadError("gone")
        if self.status == 204:
            self.reports.append(json.loads(request.content))
        return httpx.Response(self.status, text="x" * 10_000)


def report() -> JobReport:
    return JobReport(kind="copy", job="g", process="p", started_ms=1, records=2)


async def test_what_does_not_arrive_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server, reporter = Server(), JobReporter()
    for status in (404, 0, 503, 204, 204, 403):
        server.status = status
        await reporter.send(server.leases, report())
    assert len(server.reports) == 2
    found = [(each.levelname, each.message) for each in caplog.records if "console" in each.message]
    assert [level for level, _ in found] == ["WARNING", "INFO", "WARNING"]
    assert "http://server: HTTP 404 xxx" in found[0][1]
    assert all(len(text) < 400 for _, text in found)


def copying(server: Server, **changes: Any) -> tuple[CopyReports, CopyMetrics]:
    given = {"source": ["a:1", "b:2"], "destination": "c:3", "leases": "http://server",
             "group": "g", "topics": ["t"]}  # fmt: skip
    metrics = CopyMetrics()
    settings = CopySettings(**{**given, **changes})
    return CopyReports(settings, "copier-1", metrics, server.leases), metrics


async def test_a_copy_s_report() -> None:
    server = Server()
    reports, metrics = copying(server)
    assert reports.report().lag is None, "nothing is assigned yet"
    metrics.partitions = [PartitionProgress("t", 0, offset=7, end_offset=-1)]
    assert reports.report().lag is None, "nothing is fetched yet"
    metrics.partitions = [
        PartitionProgress("t", number, offset=10, end_offset=10 + number) for number in range(50)
    ]
    metrics.records, metrics.duplicates = 20, 3
    found = reports.report()
    assert (found.kind, found.job, found.process, found.source) == ("copy", "g", "copier-1",
                                                                    "a:1,b:2")  # fmt: skip
    assert (found.records, found.duplicates, found.partitions) == (20, 3, 50)
    assert found.lag == sum(range(50))
    assert [each.lag for each in found.lagging] == list(range(49, 49 - PARTITIONS_MAX, -1))


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (None, "ended", ""),
        (asyncio.CancelledError(), "ended", ""),
        (CopierFencedError("another copier has it"), "failed", "another copier has it"),
        (KeyError(), "failed", "KeyError"),
        (ValueError("x" * 9999), "failed", "x" * 1000),
    ],
)
async def test_how_a_copy_ended(error: BaseException | None, state: str, reason: str) -> None:
    server = Server()
    reports, _ = copying(server)
    await reports.end(error)
    ((found),) = server.reports
    assert (found["state"], found["reason"]) == (state, reason)


async def test_names_and_numbers_that_do_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    reports, metrics = copying(server, group="g" * 300, source=["h:1"] * 1000)
    await reports.end(None)
    ((found),) = server.reports
    assert (len(found["job"]), len(found["source"])) == (256, SIDE_MAX)
    metrics.records = 2**60
    await reports.end(None)
    assert len(server.reports) == 1
    assert "records" in caplog.text


async def test_a_server_that_does_not_answer_delays_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pidlease.copier.copy_reports._LAST_S", 0.01)
    server = Server()
    reports, _ = copying(server)

    async def hang(_: JobReport) -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(server.leases, "report_job", hang)
    async with asyncio.timeout(30):
        await reports.end(None)
    assert "no response within" in caplog.text
