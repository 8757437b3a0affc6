"""This project's own proxy as a child process: killed, restarted and watched by tests."""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.servers.kafka import KafkaServer
from tests.servers.ports import LOOPBACK, free_ports
from tests.servers.process import ServerProcess
from tests.servers.waiting import WAIT_S

_ROOT = Path(__file__).resolve().parents[2]
_HTTP_TIMEOUT_S = 30.0


def _sample_key(sample: Sample) -> str:
    """`name`, or `name{label="value",...}` with the labels in order of their names."""
    if not sample.labels:
        return sample.name
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
    return f"{sample.name}{{{labels}}}"


@contextmanager
def not_started(folder: Path, **settings: str) -> Iterator[PidleaseServer]:
    """A server that the test starts; it is killed at the end of the block if it still runs."""
    server = PidleaseServer(folder, settings=settings)
    try:
        yield server
    finally:
        server.kill9()


def in_front_of(
    kafka: KafkaServer, folder: Path, **settings: str
) -> AbstractContextManager[PidleaseServer]:
    """Like `not_started`, with Kafka as the log."""
    return not_started(folder, **{"log": "kafka", "upstream": kafka.bootstrap, **settings})


class PidleaseServer:
    """`pidlease serve` on loopback ports that stay the same over restarts.

    with PidleaseServer(tmp_path, settings={"fsync": "never"}) as pidlease:
        Producer({"bootstrap.servers": pidlease.bootstrap})
        pidlease.kill9()
        pidlease.restart()
    """

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        start_timeout_s: float = WAIT_S,
    ) -> None:
        """`settings` become PIDLEASE_... variables: {"fsync": "never", "faults": "..."}."""
        self.directory = directory.resolve()
        self.data_dir = data_dir.resolve() if data_dir else self.directory / "data"
        self.settings = dict(settings or {})
        self.start_timeout_s = start_timeout_s
        self.kafka_port, self.http_port = free_ports(2)
        self.bootstrap = f"{LOOPBACK}:{self.kafka_port}"
        self.http_address = f"{LOOPBACK}:{self.http_port}"
        self.http_url = f"http://{self.http_address}"
        self.process = ServerProcess(
            name="pidlease", log_path=self.directory / "pidlease.log", cwd=_ROOT
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Never raises about the exit code: a test may have let it die on purpose."""
        if self.process.alive:
            self.stop()

    @property
    def pid(self) -> int:
        """The pid of the running proxy."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs now; a fault point may end it."""
        return self.process.alive

    def command(self) -> list[str]:
        """The command to run; a test of this class replaces it."""
        return [
            *(sys.executable, "-m", "proxy", "serve"),
            *("--data-dir", str(self.data_dir)),
            *("--kafka-listen", self.bootstrap),
            *("--http-listen", self.http_address),
        ]

    def launch(self) -> None:
        """Start without waiting, for a start that is expected to fail or to take long."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.process.start(self.command(), self._environment())

    def start(self) -> None:
        """Start and wait until it is ready."""
        self.launch()
        try:
            self.wait_ready(self.start_timeout_s)
        except BaseException:  # Ctrl-C, too: the caller does not have the server yet
            self.process.kill9()
            raise

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until /readyz answers 200; raise with the end of the log if it died."""
        self.process.wait_until(self._is_ready, timeout_s)

    def wait_exit(self, timeout_s: float = WAIT_S) -> int:
        """Wait until it ends by itself, e.g. at a fault point; a negative code is a signal."""
        return self.process.wait_exit(timeout_s)

    def kill9(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self.process.kill9()

    def stop(self, timeout_s: float = WAIT_S) -> int | None:
        """Send SIGTERM, and return the exit code."""
        return self.process.stop(timeout_s)

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """Start again on the same ports and data, after a crash or after a clean stop.

        `settings` replace the old ones, e.g. to start without the fault.
        """
        if self.process.alive:
            self.stop()
        if settings is not None:
            self.settings = dict(settings)
        self.start()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET on the HTTP port."""
        connection = http.client.HTTPConnection(LOOPBACK, self.http_port, timeout=_HTTP_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics: `name` or `name{label="value",...}` to its value."""
        return {_sample_key(sample): sample.value for sample in self._samples()}

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name that carry these labels; 0 if there are none."""
        return sum(
            sample.value
            for sample in self._samples()
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def log_text(self) -> str:
        """Return its log of all starts so far."""
        return self.process.log_path.read_text(errors="replace")

    def _samples(self) -> list[Sample]:
        status, body = self.get("/metrics")
        if status != http.HTTPStatus.OK:
            raise RuntimeError(f"/metrics answered {status}: {body[:500]}")
        return [
            sample for family in text_string_to_metric_families(body) for sample in family.samples
        ]

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
