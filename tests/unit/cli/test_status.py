"""`pidlease status` against a stub that answers what a server may answer."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pidlease.testing.loopback_ports import free_ports
from tests.unit.cli.datadir import run

ANSWER: dict[str, Any] = {
    "version": "9.9.9",
    "ready": True,
    "uptime_seconds": 90061.0,
    "replay": {"done": 3, "total": 3},
    "topics": 1,
    "partition_count": 1002,
    "producers": 4321,
    "in_flight": 5,
    "partitions": [
        {
            "topic": "orders",
            "partition": 0,
            "start_offset": 7,
            "end_offset": 1234567,
            "producers": 4321,
            "in_flight": 5,
            "stopped": "",
        }
    ],
    "stopped_count": 0,
    "stopped": [],
    "leases": {
        "ring_used": 250,
        "ring_capacity": 1000,
        "lease_seconds": 86400.0,
        "granted": 300,
        "refused": {"no block": 1, "ring full": 2},
        "expired": 50,
        "block_left": 117,
        "prefetch_error": "",
    },
    "snapshot": {
        "number": 12,
        "age_seconds": 3.25,
        "rows": {"producers.parquet": 4321, "leases.parquet": 250},
        "seconds": 0.125,
    },
    "snapshot_failures": 0,
}


@contextmanager
def stub(code: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code if self.path == "/v1/status" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def ask(code: int, answer: object, *options: str) -> tuple[int, str, str]:
    with stub(code, json.dumps(answer).encode()) as url:
        result = run("status", "--url", url, *options)
        return result.exit_code, result.stdout, result.stderr


def test_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    code, shown, _ = ask(200, ANSWER)
    assert code == 0
    for each in ("9.9.9", "ready", "1 day, 1:01:01", "orders", "1,234,567", "and 1,001 more",
                 "250 of 1,000 slots (25.0%)", "1 no block, 2 ring full", "117", "number 12",
                 "3.2 s", "4,321 in producers.parquet", "5 batches"):  # fmt: skip
        assert each in shown, each


def test_json_is_what_the_server_said() -> None:
    code, shown, _ = ask(200, ANSWER, "--json")
    assert (code, json.loads(shown)) == (0, ANSWER)


def test_recovering() -> None:
    answer = {**ANSWER, "ready": False, "snapshot": None,
              "replay": {"done": 1, "total": 3, "offsets_left": 12_345}}  # fmt: skip
    code, shown, _ = ask(200, answer)
    assert code == 1
    assert "not ready: 1 of 3 partitions replayed, 12,345 offsets left" in shown
    assert "none yet" in shown
    assert ask(503, {"status": "not ready"})[0] == 1
    waiting = {"status": "not ready", "reason": "standing by: a serves this cluster"}
    assert "not ready; standing by: a serves this cluster" in ask(503, waiting)[1]
    code, shown, _ = ask(503, {"status": "not ready"}, "--json")
    assert (code, json.loads(shown)) == (1, {"status": "not ready"})


def test_stopped_with_the_reason() -> None:
    stopped = [{"topic": "orders", "partition": 7, "reason": "fsync [red]failed"}]
    code, shown, _ = ask(200, {**ANSWER, "stopped": stopped, "stopped_count": 3})
    assert code == 1
    assert "orders-7 is stopped: fsync [red]failed" in shown
    assert "and 2 more are stopped" in shown


def test_nobody_there() -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    for options in ((), ("--json",)):
        result = run("status", "--url", url, *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"no pidlease answers at {url}" in result.stderr
        assert "start `pidlease serve`" in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (200, b"<html>"),
        (200, b"[]"),
        (200, b'{"version": "0"}'),
        (404, b"{}"),
        (503, b"busy"),
        (500, b"{}"),
    ],
)
def test_somebody_else(code: int, body: bytes) -> None:
    with stub(code, body) as url:
        result = run("status", "--url", url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert url in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "file:///etc/passwd", "http://[", "http://"])
def test_an_address_that_is_none(url: str) -> None:
    result = run("status", "--url", url)
    assert result.exit_code == 2
    assert "--url" in result.stderr
