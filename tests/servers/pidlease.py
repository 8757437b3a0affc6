"""The server of `pidlease.testing`, with what only this project's tests need."""

from __future__ import annotations

import http
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from typing_extensions import override

from pidlease.testing import killable_server
from tests.servers.kafka import KafkaServer
from tests.servers.process import ServerProcess
from tests.servers.waiting import WAIT_S

_ROOT = Path(__file__).resolve().parents[2]


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


class PidleaseServer(killable_server.PidleaseServer):
    """A server of this source tree, with its metrics.

    with PidleaseServer(tmp_path, settings={"fsync": "never"}) as pidlease:
        Producer({"bootstrap.servers": pidlease.bootstrap})
        pidlease.kill9()
        pidlease.restart()
    """

    process: ServerProcess

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        start_timeout_s: float = WAIT_S,
    ) -> None:
        """`settings` become PIDLEASE_... variables: {"fsync": "never", "faults": "..."}."""
        super().__init__(
            directory, settings=settings, data_dir=data_dir, start_timeout_s=start_timeout_s
        )
        self.bootstrap = self.bootstrap_servers
        self.http_url = self.leases
        self.process = ServerProcess("pidlease", self.directory / "pidlease.log", _ROOT)

    def wait_exit(self, timeout_s: float = WAIT_S) -> int:
        """Wait until the server ends, e.g. at a fault point; a negative code is a signal."""
        return self.process.wait_exit(timeout_s)

    def kill9(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self.kill()

    @override
    def command(self) -> list[str]:
        """With named listeners, their addresses are all that count."""
        command = super().command()
        if "listeners" in self.settings:
            at = command.index("--kafka-listen")
            del command[at : at + 2]
        return command

    @override
    def stop(self, timeout_s: float = WAIT_S) -> int | None:
        return super().stop(timeout_s)

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

    @override
    def _environment(self) -> dict[str, str]:
        """In front of Kafka, files are the coordinator where none is named.

        Most tests share one Kafka with servers of other tests, each with a directory of its own:
        with Kafka as the coordinator a server would wait until those are known to be gone.
        """
        env = super()._environment()
        if env.get("PIDLEASE_LOG") == "kafka" and "PIDLEASE_ZOOKEEPER" not in env:
            env.setdefault("PIDLEASE_COORDINATION", "files")
        return env

    def _samples(self) -> list[Sample]:
        status, body = self.get("/metrics")
        if status != http.HTTPStatus.OK:
            raise RuntimeError(f"/metrics answered {status}: {body[:500]}")
        return [
            sample for family in text_string_to_metric_families(body) for sample in family.samples
        ]
