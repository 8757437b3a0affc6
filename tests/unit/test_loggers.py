"""Log lines of code that runs in servers and in applications."""

import logging
import subprocess
import sys

import pytest
import structlog

from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import RepeatedLines

_UNCONFIGURED = """
import logging
from pidlease.observability.loggers import Logger
log = Logger("pidlease.kafka.x")
log.warning("nothing is configured", broker=1)
logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
log.info("below the level")
log.error("a request failed", broker=1, error="away")
try:
    raise ValueError("a defect")
except ValueError:
    log.exception("a bug")
"""


def test_an_application_gets_lines_by_its_own_logging_and_nothing_on_stdout() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _UNCONFIGURED], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[:3] == [
        "nothing is configured: broker=1",
        "pidlease.kafka.x ERROR a request failed: broker=1, error=away",
        "pidlease.kafka.x ERROR a bug",
    ]
    assert lines[-1] == "ValueError: a defect"


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_a_server_gets_lines_by_structlog(level: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as lines:
        RepeatedLines().write(Logger("x"), level, "a request failed", "cause", broker=1)
    assert lines == [{"event": "a request failed", "log_level": level, "broker": 1}]
    assert not caplog.records
