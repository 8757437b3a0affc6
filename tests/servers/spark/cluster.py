"""A Spark standalone cluster: a master, and workers of one core with different addresses.

Spark speculates (runs a second attempt of a task) on another host only, never on `local` masters.
"""

import os
import sys
from pathlib import Path
from typing import Self

import pyspark

from pidlease.testing.loopback_ports import free_ports
from tests.servers.process import ServerProcess
from tests.servers.spark import spark_environment
from tests.servers.waiting import WAIT_S, until

_ROOT = Path(__file__).resolve().parents[3]
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_MEMORY = "700m"


class SparkCluster:
    """A running cluster on loopback.

    Parameters:
        folder: for logs and work.
        workers: at most 8.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        (port,) = free_ports(1)
        self.url = f"spark://127.0.0.1:{port}"
        self._folder = folder
        self._port = port
        self._workers = workers
        self._processes: list[ServerProcess] = []

    def __enter__(self) -> Self:
        self._start("127.0.0.1", _MASTER, "--port", str(self._port))
        until(lambda: "I have been elected leader" in self._text(0), "the master")
        for number in range(1, self._workers + 1):
            work = str(self._folder / f"work-{number}")
            self._start(
                f"127.0.0.{number}", _WORKER, "--cores", "1", "--memory", _MEMORY,
                "--work-dir", work, self.url,
            )  # fmt: skip
        for number in range(1, self._workers + 1):
            until(lambda n=number: "Successfully registered" in self._text(n), "a worker")  # type: ignore[misc]
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.stop(WAIT_S)

    def _start(self, host: str, name: str, *arguments: str) -> None:
        number = len(self._processes)
        process = ServerProcess(name, self._folder / f"{number}.log", _ROOT)
        home = Path(pyspark.__file__).parent
        command = (
            str(home / "bin" / "spark-class"), name, "--host", host, "--webui-port", "0",
            *arguments,
        )  # fmt: skip
        own = {
            "SPARK_LOCAL_IP": host, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip
        process.start(command, {**os.environ, **spark_environment(), **own})
        self._processes.append(process)

    def _text(self, number: int) -> str:
        process = self._processes[number]
        assert process.alive, process.log_path.read_text()[-2000:]
        return process.log_path.read_text()
