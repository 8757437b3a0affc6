"""The official suite of Durable Streams, against a real server on the embedded log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.install import node_missing
from tests.servers.pidlease import PidleaseServer
from tests.streams.stream_programs import RESULT_FILE, run_suite, suite_version

_TIMEOUT_S = 900


@pytest.mark.timeout(_TIMEOUT_S + 60)
def test_the_official_suite(tmp_path: Path) -> None:
    """Most of the time is waiting, for streams that expire and for polls that end."""
    if missing := node_missing():
        pytest.skip(missing)
    expected = json.loads(RESULT_FILE.read_text())
    assert expected["version"] == suite_version()
    # The suite asks whether web pages of other origins may send If-None-Match: if they may at all.
    settings = {"cors_origins": "*", "stream_poll_seconds": "1"}
    with PidleaseServer(tmp_path, settings=settings) as server:
        found = run_suite(server.leases, tmp_path, _TIMEOUT_S)
        assert "Traceback" not in server.log_text()
    assert found.failed == sorted(expected["failed"]), "\n".join(found.texts)
    assert found.skipped == sorted(expected["skipped"])
    assert found.passed == expected["passed"]
