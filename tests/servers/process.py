"""A server's process of `pidlease.testing`, with what only this project's tests need."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import override

from pidlease.testing import server_process
from pidlease.testing.server_process import ServerError
from tests.crash.seeds import SOAK
from tests.servers.waiting import until

__all__ = ["ServerError", "ServerProcess", "in_short_test"]


class ServerProcess(server_process.ServerProcess):
    """A process that can also be paused and measured; the soak forks none."""

    @override
    def may_fork(self, command: Sequence[str]) -> bool:
        return not SOAK and super().may_fork(command)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop it during the block (SIGSTOP); data sent to it waits."""
        try:
            self.pause()
            yield
        finally:
            if self.alive:  # it may have been killed meanwhile
                os.kill(self.pid, signal.SIGCONT)

    def pause(self) -> None:
        """Stop it (SIGSTOP), and wait until each of its threads stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = list(Path(f"/proc/{self.pid}/task").glob("*/stat"))
        until(lambda: all(map(_stands_still, tasks)), "each thread to stand still", 0.005)

    def cpu_s(self) -> float:
        """Processor seconds that it has used so far, all threads together."""
        # After the last ")": the name in parentheses may contain blanks.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """The memory that it occupies now."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) << 10


def in_short_test() -> bool:
    """Whether a test other than a soak runs: then servers may be started in cheaper ways."""
    return "PYTEST_CURRENT_TEST" in os.environ and not SOAK


def _stands_still(task: Path) -> bool:
    try:
        return task.read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):  # a thread that has ended
        return True
