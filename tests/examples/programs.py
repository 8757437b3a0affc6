"""Runs an example as a process, and counts what is in the log."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
#: Each append takes 30 ms more, so that a kill comes in the middle.
SLOW: Final = {"default_partitions": "3", "faults": "slow=0.03 before fsync *.log 1"}


@contextmanager
def program(*command: str, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a program in which `pidlease` and `python` are those of the tests."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment: Mapping[str, str] = {**os.environ, "PATH": path, **variables}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def outcome(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Wait for the program's end; return its exit code, stdout and stderr."""
    output, errors = process.communicate(timeout=WAIT_S)
    return process.returncode, output, errors


def wait_for_records(server: PidleaseServer, topic: str, least: int) -> None:
    """Wait until at least so many records were appended since the server's start."""
    until(
        lambda: server.metric("pidlease_appended_records_total", topic=topic) >= least,
        f"{least} records in {topic}",
        poll_s=0.005,
    )


def check_once(stored: Iterable[bytes], due: Iterable[bytes]) -> None:
    """Assert that what is stored is what is due, each once."""
    found, wanted = Counter(stored), Counter(due)
    lost, doubled = wanted - found, found - wanted
    print(f"{wanted.total()} due, {lost.total()} lost, {doubled.total()} doubled or foreign")
    assert (list(lost)[:5], list(doubled)[:5]) == ([], [])
