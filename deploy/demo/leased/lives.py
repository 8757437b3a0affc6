"""The lives of the producer, as its watcher sees them."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Final

from deploy.demo.proxy_process import DemoError, Proxy

_ROOT: Final = Path(__file__).resolve().parents[3]
_FIRST_S: Final = 30.0


class Life:
    """One process of the producer.

    Attributes:
        resumed: for each partition, where it went on.
        pid: the leased PID, -1 before it has one.
        acknowledged: how many records it had acknowledged.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.resumed: dict[int, int] = {}
        self.pid = -1
        self.acknowledged = 0
        self.told: list[str] = []
        self._came = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, proxy: Proxy, log: Path, name: str, topic: str, counts: list[int]
    ) -> "Life":
        """Start a process of the producer."""
        arguments = (proxy.bootstrap, proxy.http_url, name, topic, *map(str, counts))
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "deploy.demo.leased.producer", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=_ROOT,
                start_new_session=True,
            )
        return cls(process)

    @property
    def alive(self) -> bool:
        """Whether it runs, or is stopped."""
        return self._process.returncode is None

    async def has_acknowledged(self, count: int) -> None:
        """Wait until it has so many records acknowledged.

        Raises:
            DemoError: it ended before.
        """
        while self.acknowledged < count:
            if self._reading.done():
                raise DemoError(f"the producer ended early: {self.told[-3:]}")
            self._came.clear()
            await asyncio.wait_for(self._came.wait(), _FIRST_S)

    def send_signal(self, number: signal.Signals) -> None:
        """Kill it, stop it, or let it go on."""
        os.kill(self._process.pid, number)

    async def ended(self) -> int:
        """Wait until it is gone; its exit code, negative for a signal."""
        code = await self._process.wait()
        await self._reading
        return code

    async def kill(self) -> None:
        """Kill -9, unless it is gone."""
        if self.alive:
            self._process.kill()
        await self.ended()

    async def _read(self) -> None:
        if self._process.stdout is None:
            raise DemoError("the producer has no output")
        while line := await self._process.stdout.readline():
            self._note(line.decode().strip())
            self._came.set()
        self._came.set()

    def _note(self, text: str) -> None:
        self.told.append(text)
        what, *rest = text.split()
        if what == "resumed":
            partition, number, self.pid = map(int, rest)
            self.resumed[partition] = number
        elif what == "acknowledged":
            self.acknowledged = int(rest[0])
