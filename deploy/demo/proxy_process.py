"""The proxy as a child process: started, watched, killed and started again on the same data."""

import asyncio
import http.client
import os
import random
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_LOOPBACK: Final = "127.0.0.1"
#: Below what the kernel gives to outgoing connections: a client that keeps connecting to a dead
#: server there could be given the server's own port, and then hold it.
_PORTS: Final = range(12_000, 32_000)
_START_S: Final = 30.0
_STOP_S: Final = 15.0
_HTTP_S: Final = 5.0
_TAIL_BYTES: Final = 3000


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


def free_port() -> int:
    """A loopback port on which nothing listens, and which stays ours while the proxy is down."""
    source = random.SystemRandom()
    for _ in range(200):
        port = source.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_LOOPBACK, port))
            return port
    raise DemoError("no free port on 127.0.0.1 between 12000 and 31999")


class Proxy:
    """`pidlease serve`, over several lives.

    Parameters:
        directory: its data and its log go there.
        arguments: more for its command line.
    """

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._arguments = arguments
        self.log_path = directory / "proxy.log"
        self.data_dir = directory / "data"
        self.bootstrap = f"{_LOOPBACK}:{free_port()}"
        self.http_port = free_port()
        self.life = 0
        self._life_begins = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def http_url(self) -> str:
        """Where its HTTP door is."""
        return f"http://{_LOOPBACK}:{self.http_port}"

    @property
    def pid(self) -> int:
        """Of the life that was started last."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether it runs now."""
        return self._process is not None and self._process.returncode is None

    async def start(self, faults: str = "") -> float:
        """Start it and wait until it is ready; how many seconds that took.

        Parameters:
            faults: where it has to die by itself; without it the server has no fault point.
        """
        began = time.monotonic()
        with self.log_path.open("ab") as log:
            self._life_begins = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy", "serve", "--data-dir", str(self.data_dir)),
                *("--kafka-listen", self.bootstrap, "--fsync", "batch"),
                *("--http-listen", f"{_LOOPBACK}:{self.http_port}"),
                *self._arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=_ROOT,
                env=_environment(faults),
                # Ctrl-C is for the demo, which then stops the proxy.
                start_new_session=True,
            )
        self.life += 1
        while not await self._is_ready():
            if not self.alive:
                raise DemoError(f"the proxy ended at its start; {self.tail()}")
            if time.monotonic() - began > _START_S:
                raise DemoError(f"the proxy was not ready within {_START_S:.0f} s; {self.tail()}")
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    def kill_now(self) -> None:
        """Kill -9, and not wait."""
        os.kill(self.pid, signal.SIGKILL)

    async def ended(self) -> int:
        """Wait until it is gone; its exit code, negative for a signal."""
        return await self._running().wait()

    async def stop(self) -> None:
        """A clean stop; by force where that takes too long."""
        if not self.alive:
            return
        process = self._running()
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise DemoError(f"the proxy did not stop at SIGTERM; {self.tail()}") from None

    async def destroy(self) -> None:
        """However the demo ends, nothing of it runs on."""
        if self.alive:
            self.kill_now()
            await self.ended()

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET on its HTTP port."""
        return await asyncio.to_thread(self._get, path)

    def log_of_life(self) -> str:
        """What it has logged since it was started last."""
        return self.log_path.read_bytes()[self._life_begins :].decode(errors="replace")

    def tail(self) -> str:
        """The end of its log."""
        text = self.log_path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        return f"the end of {self.log_path}:\n{text}"

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise DemoError("the proxy was never started")
        return self._process

    def _get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(_LOOPBACK, self.http_port, timeout=_HTTP_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    async def _is_ready(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            return (await self.get("/readyz"))[0] == http.HTTPStatus.OK
        return False


def _environment(faults: str) -> dict[str, str]:
    """What the caller's shell says about pidlease must not change the demo."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("PIDLEASE_")}
    env |= {"PYTHONUNBUFFERED": "1", "PIDLEASE_SNAPSHOT_SECONDS": "3"}
    if faults:
        env["PIDLEASE_FAULTS"] = faults
    return env
