"""Events of which there are many."""

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from pidlease.engine import event_log
from pidlease.engine.event_log import EventLog


def test_some_of_each_kind_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And how many were not, when the next one is."""
    now = 100.0
    monkeypatch.setattr(event_log, "time", SimpleNamespace(monotonic=lambda: now))
    told = EventLog(logged_max=3, seconds=10)
    with capture_logs() as logs:
        for number in range(8):
            told.warn("fenced", pid=number)
        told.warn("gap", pid=99)
        now = 109.9
        told.warn("fenced", pid=8)
        now = 110.0
        told.warn("fenced", pid=9)
        now = 120.0
        told.warn("fenced", pid=10)
    assert [(each["event"], each["pid"]) for each in logs] == [
        ("fenced", 0), ("fenced", 1), ("fenced", 2), ("gap", 99), ("fenced", 9), ("fenced", 10),
    ]  # fmt: skip
    assert [each.get("left_out_before") for each in logs] == [None, None, None, None, 6, None]
    assert {each["log_level"] for each in logs} == {"warning"}
