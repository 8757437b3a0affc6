"""The official client and the official suite, installed once into build/clients/streams."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.clients import install

_NODE: Final = Path(__file__).with_name("node")
_PROGRAMS: Final = ("conformance.test.js", "exactly_once.js")
#: What the suite is expected to say, and why it skips tests.
RESULT_FILE: Final = Path(__file__).with_name("conformance.json")


class SuiteResult(NamedTuple):
    """What the suite said: the number of tests that passed, and the names of the others."""

    passed: int
    failed: list[str]
    skipped: list[str]
    texts: list[str]


def installed() -> Path:
    """The folder with the programs, and the packages that they need."""
    return install.npm_packages("streams", _NODE, _PROGRAMS)


def suite_version() -> str:
    """The version of the suite in the lock file."""
    locked: dict[str, Any] = json.loads((_NODE / "package-lock.json").read_text())
    return str(
        locked["packages"]["node_modules/@durable-streams/server-conformance-tests"]["version"]
    )


def run_suite(base_url: str, folder: Path, timeout_s: float) -> SuiteResult:
    """Run the whole suite against a server.

    Its tests have limits of seconds, which a busy machine exceeds. So each test has 60 s, and those
    with a limit of their own, which no option changes, have three tries.
    """
    out = folder / "suite.json"
    command: Sequence[str] = (
        "node", "node_modules/vitest/vitest.mjs", "run", "conformance.test.js", "--no-cache",
        "--reporter=json", f"--outputFile={out}", "--testTimeout=60000", "--retry=2",
    )  # fmt: skip
    environment = install.environment({"STREAMS_URL": base_url})
    done = subprocess.run(
        command, cwd=installed(), env=environment, capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip
    if not out.exists():
        raise AssertionError(f"the suite did not run:\n{done.stdout}{done.stderr}")
    files = json.loads(out.read_text())["testResults"]
    tests = [each for file in files for each in file["assertionResults"]]
    by_status = {
        status: sorted(each["fullName"] for each in tests if each["status"] == status)
        for status in ("passed", "failed", "skipped", "pending")
    }
    texts = [text for each in tests for text in each.get("failureMessages", ())]
    skipped = sorted((*by_status["skipped"], *by_status["pending"]))
    return SuiteResult(len(by_status["passed"]), by_status["failed"], skipped, texts)
