"""The servers that are compared, each with its data in a folder, on a port of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final, Self

from typing_extensions import override

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.clients import install
from tests.servers.pidlease import PidleaseServer
from tests.servers.process import ServerProcess

_HERE: Final = Path(__file__).parent
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 30.0
_URSULA: Final = Path(__file__).resolve().parents[3] / "build" / "ursula" / "bin" / "ursula"
_URSULA_VERSION: Final = "0.11.5"
#: One node with its journal on the disk, as its own default for one node has it: `fsync` always.
_URSULA_TOML: Final = """
[server]
listen = "{host}:{port}"
admin_listen = "{host}:{admin}"
cluster_id = "benchmark"

[raft]
node_id = 1
group_count = 16

[[raft.peers]]
node_id = 1
url = "http://{host}:{port}"

[raft.wal]
path = "{data}"
fsync = "always"
min_available_size = "0"
resume_available_size = "0"

# Else it refuses appends after some MB, as no S3 takes older ones.
[storage.cold]
max_hot_size_per_group = "8GiB"
"""


class StreamServer:
    """One server; a context manager that stops it.

    Attributes:
        name: in tables.
        port: of its HTTP listener.
        process: for its processor time.
    """

    name: str
    port: int
    process: ServerProcess

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        self.process.stop(_STOP_TIMEOUT_S)

    def path(self, stream: str) -> str:
        """The path of the stream of that name."""
        raise NotImplementedError


class PidleaseStreams(StreamServer):
    """This project's, with `fsync=batch`."""

    name = "pidlease"

    def __init__(self, folder: Path) -> None:
        self._server = PidleaseServer(folder, settings={"fsync": "batch"})
        self.port = self._server.http_port
        self.process = self._server.process

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @override
    def path(self, stream: str) -> str:
        return f"/v1/stream/{stream}"


class _OtherServer(StreamServer):
    def __init__(self, folder: Path) -> None:
        self.port, self._second_port = free_ports(2)
        self._folder = folder.resolve()  # the servers run in it
        self.process = ServerProcess(self.name, self._folder / "server.log", self._folder)

    def __enter__(self) -> Self:
        self._folder.mkdir(exist_ok=True)
        (self._folder / "data").mkdir()
        self.process.start(self._command(), os.environ)
        self.process.wait_until(self._ready, _START_TIMEOUT_S)
        return self

    def _command(self) -> Sequence[str]:
        raise NotImplementedError

    def _ready(self) -> bool:
        return self._status("PUT", self.path("ready")) in (200, 201)

    def _status(self, method: str, path: str) -> int:
        connection = HTTPConnection(LOOPBACK, self.port, timeout=5)
        try:
            connection.request(method, path, headers={"Content-Type": "text/plain"})
            return connection.getresponse().status
        except (OSError, HTTPException):  # it does not listen yet
            return 0
        finally:
            connection.close()


class Ursula(_OtherServer):
    """One node of Ursula."""

    name = "Ursula"

    @staticmethod
    def missing() -> str | None:
        """Why it cannot run here; None if it can."""
        if not _URSULA.exists():
            return "Ursula is not built: `make ursula` takes ten minutes and needs Rust's cargo"
        command = [str(_URSULA), "--version"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if _URSULA_VERSION not in found:
            return f"Ursula {_URSULA_VERSION} is wanted, `make ursula` builds it (found: {found})"
        return None

    @override
    def path(self, stream: str) -> str:
        return f"/bucket/{stream}"

    def _command(self) -> Sequence[str]:
        config = self._folder / "ursula.toml"
        text = _URSULA_TOML.format(
            host=LOOPBACK, port=self.port, admin=self._second_port, data=self._folder / "data"
        )
        config.write_text(text)
        return [str(_URSULA), "server", "--config", str(config)]

    def _ready(self) -> bool:
        # A stream needs its bucket first.
        return self._status("PUT", "/bucket") != 0 and super()._ready()


class FileServer(_OtherServer):
    """The reference server in Node.js, with its file store."""

    name = "Durable Streams' file server"

    @staticmethod
    def missing() -> str | None:
        """Why it cannot run here; None if it can."""
        return install.node_missing()

    @override
    def path(self, stream: str) -> str:
        return f"/{stream}"

    def _command(self) -> Sequence[str]:
        built = install.npm_packages("stream-servers", _HERE, ["file_server.js"])
        program = str(built / "file_server.js")
        return ["node", program, str(self.port), str(self._folder / "data")]
