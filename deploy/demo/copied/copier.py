"""`pidlease copy` as a child process."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Final

from deploy.demo.proxy_process import DemoError, Proxy
from deploy.demo.rows import TOPICS

_ROOT: Final = Path(__file__).resolve().parents[3]
_GROUP: Final = "demo"
#: Who is silent for so long is replaced; so long lasts a takeover.
SESSION_S: Final = 6
_END_S: Final = 60.0
_TAIL_BYTES: Final = 2000


class Copier:
    """One life of a copier.

    Parameters:
        process: its process.
        log_path: where its output goes.
    """

    def __init__(self, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self._process: Final = process
        self._log_path: Final = log_path

    @classmethod
    async def start(cls, log_path: Path, source: Proxy, target: Proxy, *options: str) -> "Copier":
        """Begin.

        Parameters:
            log_path: for its output.
            options: more for its command line.
        """
        with log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy", "copy", "--from", source.bootstrap),
                *("--to", target.bootstrap, "--leases", target.http_url, "--group", _GROUP),
                *("--topics", ",".join(TOPICS), "--rename", "{topic}.copy"),
                *("--session-seconds", str(SESSION_S), *options),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=_ROOT,
                start_new_session=True,
            )
        return cls(process, log_path)

    def send_signal(self, number: signal.Signals) -> None:
        """Kill it, stop it, or let it go on."""
        os.kill(self._process.pid, number)

    async def ended(self) -> int:
        """Wait until it is gone; its exit code, negative for a signal.

        Raises:
            DemoError: it goes on and on.
        """
        try:
            return await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            raise DemoError(f"a copier did not end; {self.tail()}") from None

    async def destroy(self) -> None:
        """Kill -9, unless it is gone."""
        if self.alive:
            self._process.kill()
        await self._process.wait()

    @property
    def alive(self) -> bool:
        """Whether it runs, or is stopped."""
        return self._process.returncode is None

    @property
    def last_line(self) -> str:
        """What it said last."""
        lines = self._log_path.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    def tail(self) -> str:
        """The end of what it said."""
        text = self._log_path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        return f"the end of {self._log_path}:\n{text}"
