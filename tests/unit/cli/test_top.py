"""`pidlease top` against a stub that answers what a server may answer."""

import http.server
import io
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import pytest
from rich.console import Console

from pidlease.http_api.console_messages import (
    EventRow,
    HistoryAnswer,
    HistorySample,
    LeasesAnswer,
    OutcomeRow,
    OutcomesAnswer,
    PartitionState,
    PartitionStatesAnswer,
    RefusalGroup,
    RefusalsAnswer,
    ServersAnswer,
    SharingServer,
    TopicOutcomes,
)
from pidlease.http_api.job_messages import JobProcess, JobsAnswer, JobState
from pidlease.testing.loopback_ports import free_ports
from proxy.cli import top_command
from tests.unit.cli.datadir import run

#: A name that would clear the terminal, set its title, and turn the text around.
_EVIL: Final = "\x1b[2J\x1b]0;owned\x07[bold]p\u202e\n"


def outcomes(records: int = 5000, at_ms: int = 1_000_000) -> OutcomesAnswer:
    row = TopicOutcomes(
        topic="orders", records=records, bytes=9, duplicates=7, gaps=2, fenced=1, failed=0,
        refused=0,
    )  # fmt: skip
    return OutcomesAnswer(
        at_ms=at_ms, version="9.9.9", ready=True, topics=3, partitions=12, leases=4,
        records=records, batches=50, bytes=900, waited=0, differing=0,
        outcomes=[OutcomeRow(policy="kafka", outcome="duplicate", batches=7),
                  OutcomeRow(policy="strict", outcome="gap", batches=2)],
        by_topic=[row], brokers=[],
    )  # fmt: skip


def history() -> HistoryAnswer:
    samples = [
        HistorySample(
            at_ms=n, records=n * 100, batches=1, bytes=1, duplicates=0, gaps=0, fenced=0,
            failed=0, refused=0, leased=0, ended=0, leases=4, lag_seconds=0.0125,
        )
        for n in range(14)
    ]  # fmt: skip
    return HistoryAnswer(sample_seconds=10.0, samples=samples, more=False)


def answers() -> dict[str, Any]:
    event = EventRow(
        number=1, at_ms=0, kind="gap", pid=-1, name=_EVIL, topic="orders", partition=3,
        generation=0, first_sequence=9, last_sequence=9, expected=7, known_generation=None,
        former=None, reason=_EVIL,
    )  # fmt: skip
    reused = event.model_copy(
        update={"kind": "key_reused", "name": "", "idempotency_key": "order-1", "expected": None}
    )
    group = RefusalGroup(
        kind="gap", count=2, first_ms=0, last_ms=0, action="Send it again.", runbook=""
    )
    leases = LeasesAnswer(
        used=4, capacity=10, lease_seconds=86400.0, granted={}, refused={}, ended=0, names=1,
        block_left=90, block_seconds=0.0, block_failures=0, block_error="", leases=[], next=None,
    )  # fmt: skip
    stopped = PartitionState(
        topic="orders", partition=1, state="stopped", reason="the disk is full", owner="",
        writer="", log_start=0, log_end=None, size_bytes=None, producers=0, in_flight=0,
    )  # fmt: skip
    row = SharingServer(
        node_id=1, server=_EVIL, kafka="k:9092", http="http://k:8080", slots=1024, partitions=12,
        draining=False, decides=True, silent=False, returning=False, responds=True,
    )  # fmt: skip
    silent = row.model_copy(update={"node_id": 2, "server": "beta", "slots": 0, "silent": True,
                                    "decides": False})  # fmt: skip
    servers = ServersAnswer(
        shared=True, partitions_without_owner=3, servers=[row, silent], slot_owners=[1] * 1024
    )
    process = JobProcess(
        kind="spark", job=_EVIL, process="p", started_ms=0, records=12_345, reported_ms=0,
        silent=True, rate=0.0,
    )  # fmt: skip
    job = JobState(
        kind="spark", job=_EVIL, state="silent", records=12_345, duplicates=0, lag=678, rate=0.0,
        lost_seconds=91.0, first_ms=0, processes=[process],
    )  # fmt: skip
    messages = {
        "servers": servers,
        "jobs": JobsAnswer(jobs=[job]),
        "outcomes": outcomes(),
        "history": history(),
        "leases": leases,
        "refusals": RefusalsAnswer(groups=[group], refusals=[event, reused], next=None),
        "partitions": PartitionStatesAnswer(partitions=[stopped], next=None),
    }
    return {name: each.model_dump() for name, each in messages.items()}


@contextmanager
def stub(found: Mapping[str, Any], code: int = 200) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.partition("?")[0].removeprefix("/v1/")
            self.send_response(code if name in found else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found.get(name)).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_one_page() -> None:
    with stub(answers()) as url:
        result = run("top", "--once", "--url", url)
    assert result.exit_code == 0, result.stderr
    for text in (
        "9.9.9", "5,000 records", "12.5 ms", "3 with 12 partitions", "4 of 10 slots", "orders-1",
        "the disk is full", "Send it again.", "orders-3", "expected 7", "order-1", "http://k:8080",
        "1,024", "beta", "does not answer", "3 partitions have no owner", "silent", "12,345", "678",
        "91 s",
    ):  # fmt: skip
        assert text in result.stdout, text
    assert "130" in result.stdout, "records a second, in the last sample"
    assert "▁▄█" in result.stdout, "bars of the last hour"


def test_names_cannot_act_on_the_terminal() -> None:
    with stub(answers()) as url:
        shown = run("top", "--once", "--url", url).stdout
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert "[bold]p" in shown, "no markup, either"


def test_pages_follow_each_other_until_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answers()
    looks = 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        later = outcomes(records=5000 + 321 * 2, at_ms=1_002_000)
        found["outcomes"] = later.model_dump()
        if looks == 2:
            del found["history"]  # as of another server
        if looks == 3:
            raise KeyboardInterrupt

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, height=60)
    monkeypatch.setattr(top_command, "stdout", lambda: console)
    monkeypatch.setattr(top_command, "time", SimpleNamespace(sleep=sleep))
    with stub(found) as url:
        result = run("top", "--url", url)
    assert result.exit_code == 0, result.stderr
    assert "321" in screen.getvalue(), "records a second, between two pages"
    assert "is no pidlease" in screen.getvalue()


def test_no_server() -> None:
    (port,) = free_ports(1)
    result = run("top", "--once", "--url", f"http://127.0.0.1:{port}")
    assert (result.exit_code, "start `pidlease serve`" in result.stderr) == (2, True)


def test_a_server_that_is_starting() -> None:
    detail = "the server is recovering or stopping; try again"
    with stub({name: {"detail": detail} for name in answers()}, code=503) as url:
        result = run("top", "--once", "--url", url)
    assert (result.exit_code, detail in result.stderr) == (2, True)


def test_another_version() -> None:
    with stub({"outcomes": {"version": "0"}}) as url:
        result = run("top", "--once", "--url", url)
    assert (result.exit_code, "of this version" in result.stderr) == (2, True)
