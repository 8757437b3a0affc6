"""The supervisor of workers: real processes, which serve nothing."""

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers.process import ServerProcess
from tests.servers.waiting import WAIT_S, until

_ROOT = Path(__file__).resolve().parents[2]


class Supervised:
    """The supervisor's process, and what it and its workers print."""

    def __init__(self, folder: Path) -> None:
        self.process = ServerProcess("supervisor", folder / "log", _ROOT)

    def start(self, *plans: str, **environ: str) -> None:
        by_number = json.dumps(dict(enumerate(plans, 1)))
        command = [sys.executable, "-m", "tests.integration.scripted_workers", by_number]
        env = {name: text for name, text in os.environ.items() if name != "NOTIFY_SOCKET"}
        self.process.start(command, env | environ)

    def text(self) -> str:
        return self.process.log_path.read_text()

    def pids(self, number: int) -> list[int]:
        """The pids of a worker, of all its starts."""
        return [int(each) for each in re.findall(rf"^{number} is (\d+)$", self.text(), re.M)]

    def wait_for(self, line: str, times: int = 1) -> None:
        until(lambda: self.text().count(line) >= times, f"{times} of {line!r} in the log")

    def delays(self) -> list[float]:
        """The delays of restarts, in their order."""
        return [
            float(each) for each in re.findall(r"started again .*seconds=([\d.]+)", self.text())
        ]


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    found = Supervised(tmp_path)
    yield found
    found.process.kill9()


def _runs(pid: int) -> bool:
    """Whether a process is more than an entry in the table of processes."""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_worker_that_dies_is_started_again_after_longer_and_longer_delays(
    supervised: Supervised,
) -> None:
    supervised.start("serve", "serve")
    supervised.wait_for("all workers serve")
    for starts in (1, 2, 3):
        until(lambda: len(supervised.pids(2)) == starts, f"start {starts} of worker 2")  # noqa: B023
        os.kill(supervised.pids(2)[-1], signal.SIGKILL)
    until(lambda: len(supervised.pids(2)) == 4, "the fourth start of worker 2")
    assert supervised.delays() == [0.2, 0.4, 0.8]
    assert supervised.text().count("signal SIGKILL") == 3
    assert len(supervised.pids(1)) == 1
    assert supervised.process.stop(WAIT_S) == 0


def test_all_workers_read_their_settings_again_and_stop_in_turn(supervised: Supervised) -> None:
    supervised.start("serve", "serve", "serve")
    supervised.wait_for("all workers serve")
    os.kill(supervised.process.pid, signal.SIGHUP)
    for number in (1, 2, 3):
        supervised.wait_for(f"{number} reads")
    assert supervised.process.stop(WAIT_S) == 0
    assert re.findall(r"^(\d) stops$", supervised.text(), re.M) == ["3", "2", "1"]
    assert "started again" not in supervised.text()


def test_if_one_cannot_start_all_are_stopped(supervised: Supervised) -> None:
    supervised.start("serve", "refuse")
    assert supervised.process.wait_exit(WAIT_S) == 2
    assert "a worker cannot start" in supervised.text()
    assert not any(map(_runs, supervised.pids(1)))


def test_a_worker_that_does_not_stop_is_killed(supervised: Supervised) -> None:
    supervised.start("serve", "stay")
    supervised.wait_for("all workers serve")
    assert supervised.process.stop(WAIT_S) == 3
    assert "1 stops" in supervised.text()
    assert not _runs(supervised.pids(2)[0])


def test_no_worker_outlives_a_supervisor_that_is_killed(supervised: Supervised) -> None:
    supervised.start("serve", "stay")
    supervised.wait_for("all workers serve")
    pids = supervised.pids(1) + supervised.pids(2)
    assert all(map(_runs, pids))
    supervised.process.kill9()
    until(lambda: not any(map(_runs, pids)), "no worker to be left")


@pytest.mark.parametrize("second", ["serve", "load"])
def test_the_service_manager_hears_of_a_start_when_all_serve(
    supervised: Supervised, tmp_path: Path, second: str
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(WAIT_S)
        manager.bind(str(tmp_path / "notify"))
        supervised.start("serve", second, NOTIFY_SOCKET=str(tmp_path / "notify"))
        wanted = "READY=1" if second == "serve" else "1 of 2 workers serve; worker 2: load\n"
        reports = ""
        while wanted not in reports:
            reports += manager.recv(65536).decode() + "\n"
        assert ("READY=1" in reports) == (second == "serve")


def test_a_worker_that_hangs_is_killed_by_the_watchdog(
    supervised: Supervised, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1500000"}
        supervised.start("serve", "serve", **environ)
        supervised.wait_for("all workers serve")
        suspended = supervised.pids(2)[-1]
        os.kill(suspended, signal.SIGSTOP)

        def replaced() -> bool:
            with suppress(BlockingIOError):  # or the supervisor's own reports would not fit
                while True:
                    manager.recv(65536)
            return supervised.pids(2)[-1] != suspended

        until(replaced, "another worker 2")
        assert "a worker does not report and is killed" in supervised.text()
