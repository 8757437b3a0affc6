"""Runs tests that failed again, alone: `make test` loads this plugin.

The tests run four at a time beside servers, JVMs and browsers, on machines that may stand still for
seconds. A test that fails there and passes alone, three times in a row, is printed as unstable and
does not fail the run, as in the builds of Apache Kafka. It has a defect all the same, or pidlease
has: its failure is printed in full, for somebody to explain. Never run again are tests that printed
a seed, because another run would try something else, and more than two failures.
"""

import re
import subprocess
import sys
from typing import Final

import pytest

#: With more failures, something is broken.
_FAILURES_MAX: Final = 2
_RUNS: Final = 3
#: What tests print that are random: another run would try something else.
_RANDOM: Final = re.compile(r"_SEED=|seed[= ]|Falsifying example|reproduce_failure", re.I)


class SecondLook:
    """Notes what failed, and runs it again in the end.

    Attributes:
        unstable: the tests that passed when they ran again.
    """

    def __init__(self) -> None:
        self.unstable: list[str] = []
        self._failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure, with all that the test printed."""
        if report.failed:
            printed = "\n".join(text for _, text in report.sections)
            self._failed[report.nodeid] = f"{report.longreprtext}\n{printed}"

    @pytest.hookimpl(trylast=True)  # the workers have ended by then
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Run what failed again, if it may be the machine's fault."""
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED:
            return
        if not 1 <= len(self._failed) <= _FAILURES_MAX:
            return
        if any(map(_RANDOM.search, self._failed.values())):
            return
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *self._failed]
        for _ in range(_RUNS):
            if subprocess.run(command, cwd=session.config.rootpath, check=False).returncode:
                return
        self.unstable = list(self._failed)
        session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the unstable tests after all others, where they are seen."""
        if self.unstable:
            terminalreporter.section("UNSTABLE: failed once, passed alone", red=True)
            for each in self.unstable:
                terminalreporter.line(f"UNSTABLE {each}")


def pytest_configure(config: pytest.Config) -> None:
    """Take part where the results come together, not in the workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondLook())
