"""From the first record to the verdict."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, Message, Producer
from rich.console import Console

from deploy.demo.proxy_process import DemoError
from deploy.demo.readback import Stored, read_topics
from deploy.demo.rows import PARTITIONS, TOPICS, load_records
from deploy.demo.spark.verdict import Verdict
from deploy.demo.topics import create_topics
from tests.servers.kafka import KafkaServer, unavailable_reason
from tests.servers.pidlease import PidleaseServer
from tests.servers.spark import java_environment, spark_missing
from tests.servers.spark.application import SparkCopy

#: The data set is written so often, under other keys.
_TIMES: Final = 4
_COPY: Final = ".copy"
_MICRO_BATCH: Final = 30_000
_FENCED: Final = 3
_ALL_S: Final = 300.0
_LOOK_S: Final = 0.02
_APPENDED: Final = "pidlease_appended_records_total"
_ROOT: Final = Path(__file__).resolve().parents[3]


class Story:
    """See the module's text.

    Parameters:
        console: where it is told.
        directory: data, logs and the report; what an earlier run left there is removed.
    """

    def __init__(self, console: Console, directory: Path) -> None:
        self._console: Final = console
        self._directory: Final = directory
        self._began: Final = time.monotonic()
        self._applications: list[SparkCopy] = []
        self._kills = 0
        self._server_kills = 0

    def run(self) -> Verdict:
        """Run it.

        Raises:
            DemoError: it cannot go on; the message says why.
        """
        if reason := unavailable_reason() or spark_missing():
            raise DemoError(f"Spark and Kafka cannot run here: {reason}")
        shutil.rmtree(self._directory, ignore_errors=True)
        with ExitStack() as stack:
            stack.callback(self._end_all)
            kafka = stack.enter_context(KafkaServer(self._directory / "kafka"))
            server = stack.enter_context(PidleaseServer(self._directory / "server"))
            create_topics(kafka.bootstrap, dict.fromkeys(TOPICS, PARTITIONS))
            sent = _fill(kafka.bootstrap)
            self._tell(f"{sent:,} real rows stand in a real Kafka")
            self._kill(kafka, server)
            zombie, told = self._replace(kafka, server)
            source = _read(kafka.bootstrap, "")
            copy = _read(server.bootstrap, _COPY)
            duplicates = self._duplicates()
            server.stop()
            self._tell("the log is audited by Spark, from its segment files")
            audited, report = self._audit(server.data_dir)
        return Verdict(
            sent, source, copy, self._kills, self._server_kills, duplicates,
            told, zombie == _FENCED, audited, report,
        )  # fmt: skip

    def _kill(self, kafka: KafkaServer, server: PidleaseServer) -> None:
        for part in (0.1, 0.35):
            self._begin(kafka, server)
            self._arrived(server, int(part * _MICRO_BATCH))
            self._applications[-1].kill9()
            self._kills += 1
            self._tell("kill -9 of the whole application: driver, virtual machine and workers")
        self._begin(kafka, server)
        self._arrived(server, _MICRO_BATCH // 10)
        server.kill9()
        server.start()
        self._server_kills += 1
        self._tell("kill -9 of the server; it is back, and the application does not know")
        self._arrived(server, 1)

    def _replace(self, kafka: KafkaServer, server: PidleaseServer) -> tuple[int, str]:
        """The application is stopped and replaced; how it ends, and what it says."""
        zombie = self._applications[-1]
        with zombie.stopped():
            self._tell("the application is stopped in the middle (SIGSTOP); another one takes over")
            successor = self._begin(kafka, server)
            code = successor.process.wait_exit(_ALL_S)
            if code:
                raise DemoError(f"the successor ended with {code}: {successor.text[-2000:]}")
            self._tell(f"it is done: {_last_line(successor)}")
        code = zombie.process.wait_exit(_ALL_S)
        self._tell(f"the zombie woke up: {_last_line(zombie)}")
        return code, _last_line(zombie)

    def _begin(self, kafka: KafkaServer, server: PidleaseServer) -> SparkCopy:
        folder = self._directory / f"spark-{len(self._applications) + 1}"
        application = SparkCopy(
            folder, kafka.bootstrap, server, self._directory / "checkpoint",
            "--topics", ",".join(TOPICS), "--topic", "{topic}" + _COPY, "--available-now",
            "--max-offsets-per-trigger", str(_MICRO_BATCH),
        ).start()  # fmt: skip
        self._applications.append(application)
        return application

    def _arrived(self, server: PidleaseServer, more: int) -> None:
        """Wait until the server has taken so many more records."""
        before = server.metric(_APPENDED)
        self._until(lambda: server.metric(_APPENDED) >= before + more)

    def _until(self, happened: Callable[[], bool]) -> None:
        end, running = time.monotonic() + _ALL_S, self._applications[-1]
        while not happened():
            if not running.process.alive:
                raise DemoError(f"the application ended early: {running.text[-2000:]}")
            if time.monotonic() > end:
                raise DemoError(f"nothing arrives any more: {running.text[-2000:]}")
            time.sleep(_LOOK_S)

    def _duplicates(self) -> int:
        """Rows that came again, by the checkpoint."""
        from pidlease.spark.sink.run_state import RunStore  # noqa: PLC0415 - only where Spark is

        runs = RunStore(self._directory / "checkpoint" / "pidlease").before()
        if not runs:
            raise DemoError("the checkpoint knows of no run")
        return sum(source.duplicates for source in runs[0].sources.values())

    def _audit(self, data: Path) -> tuple[int, Path]:
        report = self._directory / "report"
        command = [sys.executable, "-m", "proxy", "spark", "audit", "--log", str(data),
                   "--output", str(report)]  # fmt: skip
        done = subprocess.run(  # noqa: S603 - our own
            command, check=False, cwd=_ROOT, env={**os.environ, **java_environment()}
        )
        return done.returncode, report / "report.html"

    def _end_all(self) -> None:
        for application in self._applications:
            if application.process.alive:
                application.kill9()

    def _tell(self, text: str) -> None:
        passed = time.monotonic() - self._began
        self._console.print(f"{passed:6.1f} s  {text}", markup=False, highlight=False)


def _fill(bootstrap: str) -> int:
    """Write the rows; how many."""
    failed: list[str] = []

    def told(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    rows = [row for rows in load_records().values() for row in rows]
    for time_ in range(_TIMES):
        for row in rows:
            key = b"%d-%s" % (time_, row.key)
            producer.produce(row.topic, row.value, key, row.partition, on_delivery=told)
            producer.poll(0)
        if producer.flush(60) or failed:
            raise DemoError(f"Kafka did not take all rows: {failed[:3]}")
    return _TIMES * len(rows)


def _read(bootstrap: str, suffix: str) -> list[Stored]:
    """All records, under the source's names."""
    found = read_topics(bootstrap, {topic + suffix: PARTITIONS for topic in TOPICS})
    return [replace(each, topic=each.topic.removesuffix(suffix)) for each in found]


def _last_line(application: SparkCopy) -> str:
    lines = application.text.splitlines()
    return lines[-1] if lines else "it said nothing"
