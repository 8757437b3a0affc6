"""The configuration and the alerts, checked by Prometheus's own tool."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.observability.rules import FOLDER, rules
from tests.servers.waiting import WAIT_S

_TESTS = sorted((FOLDER / "tests").glob("*.yml"))


def run(promtool: Path, *arguments: str | Path) -> str:
    """Its output; it must be content."""
    done = subprocess.run(
        [promtool, *arguments],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_and_the_rules(promtool: Path) -> None:
    assert "prometheus.yml is valid" in run(promtool, "check", "config", "prometheus.yml")
    assert f"{len(rules())} rules found" in run(promtool, "check", "rules", "alerts.yml")


@pytest.mark.parametrize("path", _TESTS, ids=lambda path: path.stem)
def test_when_alerts_fire(promtool: Path, path: Path) -> None:
    run(promtool, "test", "rules", path)


def test_each_alert_is_seen_to_fire() -> None:
    told = "".join(path.read_text() for path in _TESTS)
    for rule in rules():
        fires = f'alertname="{rule.name}"' in told or f"alertname: {rule.name}" in told
        assert rule.kind == "record" or fires, rule.name


def test_the_tests_can_fail(promtool: Path, tmp_path: Path) -> None:
    """Without what counts a series' first jump, one of them does."""
    text = (FOLDER / "alerts.yml").read_text()
    rate_only = text.replace("(up offset 5m == 1 or", "(up offset 5m == 2 or")
    assert rate_only != text
    (tmp_path / "alerts.yml").write_text(rate_only)
    shutil.copytree(FOLDER / "tests", tmp_path / "tests")
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "tests" / "producers.yml"],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "FencingStorm" in done.stdout + done.stderr
