"""Ports of tests that run at the same time."""

import subprocess
import sys

_TAKE = (
    "import sys; from pidlease.testing.loopback_ports import free_ports;"
    " print(*(each for _ in range(200) for each in free_ports(3)), flush=True); sys.stdin.read()"
)
_PROCESSES = 4


def test_processes_never_choose_the_same_port() -> None:
    """Once a bug: a broker found its port taken that it had chosen some seconds before."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(_PROCESSES)
    ]
    chosen: list[str] = []
    for each in running:
        assert each.stdout is not None
        chosen += each.stdout.readline().split()
    for each in running:
        each.communicate()
        assert each.returncode == 0
    assert len(chosen) == len(set(chosen)) == _PROCESSES * 600
