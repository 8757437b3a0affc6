"""A pidlease server for tests: a process of its own, which a test kills and starts again."""

import http.client
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from pidlease.testing.server_process import PIDLEASE, ServerProcess

_HTTP_TIMEOUT_S: Final = 5.0
_STOP_TIMEOUT_S: Final = 30.0


class PidleaseServer:
    """`pidlease serve` with the embedded log, on loopback ports that stay the same over restarts.

    ```python
    from pathlib import Path

    from pidlease.client import BlockingProducer
    from pidlease.testing import PidleaseServer

    with PidleaseServer(Path("server"), settings={"default_partitions": "1"}) as server:
        with BlockingProducer(
            bootstrap_servers=server.bootstrap_servers, leases=server.leases
        ) as producer:
            producer.send_and_wait("orders", b"tea")
            server.kill()
            cake = producer.send("orders", b"cake")
            server.restart()
            assert cake.result(timeout=60).offset == 1
    ```

    Attributes:
        directory: the folder of the server's log file, and of its data.
        data_dir: the folder of its data.
        settings: PIDLEASE_... variables of the next start, without the prefix.
        bootstrap_servers: HOST:PORT of the Kafka listener.
        leases: the URL of the HTTP listener.
        start_timeout_s: how long a start may take.
    """

    process: ServerProcess

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        start_timeout_s: float = 30,
    ) -> None:
        self.directory = directory.resolve()
        self.data_dir = data_dir.resolve() if data_dir else self.directory / "data"
        self.settings = dict(settings or {})
        self.start_timeout_s = start_timeout_s
        self.kafka_port, self.http_port = free_ports(2)
        self.bootstrap_servers = f"{LOOPBACK}:{self.kafka_port}"
        self.http_address = f"{LOOPBACK}:{self.http_port}"
        self.leases = f"http://{self.http_address}"
        self.process = ServerProcess("pidlease", self.directory / "pidlease.log", self.directory)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Never raises about the exit code: a test may have let it die on purpose."""
        if self.alive:
            self.stop()

    @property
    def pid(self) -> int:
        """The pid of the running process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs now."""
        return self.process.alive

    def command(self) -> list[str]:
        """Return the command to run."""
        return [
            *(*PIDLEASE, "serve"),
            *("--data-dir", str(self.data_dir)),
            *("--kafka-listen", self.bootstrap_servers),
            *("--http-listen", self.http_address),
        ]

    def launch(self) -> None:
        """Start without waiting, for a start that is expected to fail or to take long."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.process.start(self.command(), self._environment())

    def start(self) -> None:
        """Start and wait until it is ready.

        Raises:
            ServerError: it ended, or is not ready in time; the text has the end of its log.
        """
        self.launch()
        try:
            self.wait_ready(self.start_timeout_s)
        except BaseException:  # Ctrl-C, too: the caller does not have the server yet
            self.kill()
            raise

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until /readyz answers 200."""
        self.process.wait_until(self._is_ready, timeout_s)

    def kill(self) -> None:
        """Send SIGKILL (kill -9), and wait until the process has ended."""
        self.process.kill9()

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> int | None:
        """Send SIGTERM, and return the exit code."""
        return self.process.stop(timeout_s)

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """Start again on the same ports and data, after a kill or after a clean stop.

        Parameters:
            settings: replace the earlier ones; None: they stay.
        """
        if self.alive:
            self.stop()
        if settings is not None:
            self.settings = dict(settings)
        self.start()

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a GET on the HTTP port."""
        connection = http.client.HTTPConnection(LOOPBACK, self.http_port, timeout=_HTTP_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def log_text(self) -> str:
        """Return its log of all starts so far."""
        return self.process.log_path.read_text(errors="replace")

    def _is_ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    def _environment(self) -> dict[str, str]:
        # PIDLEASE_... variables of the developer's shell must not leak into a test.
        env = {name: text for name, text in os.environ.items() if not name.startswith("PIDLEASE_")}
        env |= {f"PIDLEASE_{name.upper()}": text for name, text in self.settings.items()}
        # A test that reads the log after a crash must find all of it.
        env["PYTHONUNBUFFERED"] = "1"
        return env
