"""`make demo-spark`: a real Kafka copied by Spark through the proxy, killed on the way, audited."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer
from typing_extensions import override

from deploy.demo import DemoError
from deploy.demo.__main__ import exit_code, new_console
from deploy.demo.clients import LibrdkafkaClient, Pace, log_into
from deploy.demo.copied import COPY
from deploy.demo.rows import ROWS, TOPICS, repeated
from deploy.demo.screen import Screen
from deploy.demo.story import make_topics, read_topics
from deploy.demo.takeover import FENCED, PROGRESS_S, CopyVerdict, Lives, last_line
from tests.servers.kafka import KafkaServer, unavailable_reason
from tests.servers.pidlease import PidleaseServer
from tests.servers.spark import spark_environment, spark_missing
from tests.servers.spark.application import SparkCopy

#: How often the data sets are written, each time with other keys.
_TIMES: Final = 4
_MICRO_BATCH: Final = 30_000
_ROOT: Final = Path(__file__).resolve().parents[2]
_DIRECTORY: Final = _ROOT / "build" / "demo-spark"


@dataclass(frozen=True, kw_only=True)
class Verdict(CopyVerdict):
    """The result; `audited`: the exit code of the audit."""

    audited: int
    report: Path

    @override
    def checks(self) -> Iterator[tuple[str, bool]]:
        yield from super().checks()
        yield f"the audit ended with {self.audited}", self.audited != 0
        yield f"the audit has written no {self.report}", not self.report.is_file()

    @override
    def summary(self) -> str:
        return (
            f"demo, Spark: source {self.total.sent}, copy {self.total.stored}, kills {self.kills}"
            f" of the application and {self.server_kills} of the server, duplicates caught"
            f" {self.duplicates}, {self.ending()};"
            f" audit {'clean' if not self.audited else 'NOT clean'}: {self.report}"
        )


def main(
    directory: Annotated[
        Path, typer.Option(help="Data and logs; those of an earlier run are removed.")
    ] = _DIRECTORY,
) -> None:
    """Copy 83,576 real rows out of a real Kafka by Spark, kill all of it, and audit the result."""
    console = new_console()
    folder = directory.resolve()

    def run() -> int:
        if reason := unavailable_reason() or spark_missing():
            raise DemoError(f"Spark and Kafka cannot run here: {reason}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        log_into(folder / "clients.log")
        with (
            Screen(console, {}) as screen,
            KafkaServer(folder / "kafka") as kafka,
            PidleaseServer(folder / "server") as server,
        ):
            verdict = _run(folder, screen, kafka, server)
        return verdict.conclude(console)

    raise typer.Exit(exit_code(console, run))


def _run(folder: Path, screen: Screen, kafka: KafkaServer, server: PidleaseServer) -> Verdict:
    make_topics(kafka.bootstrap)
    rows = list(islice(repeated(), _TIMES * ROWS))
    filler = LibrdkafkaClient(kafka.bootstrap, Pace(0).bursts(rows))
    filler.start()
    filler.join(PROGRESS_S)
    screen.log(f"{len(rows):,} real rows stand in a real Kafka")

    def start(number: int) -> SparkCopy:
        return SparkCopy(
            folder / f"spark-{number}", kafka.bootstrap, server, folder / "checkpoint",
            "--topics", ",".join(TOPICS), "--topic", "{topic}" + COPY, "--available-now",
            "--max-offsets-per-trigger", str(_MICRO_BATCH),
        ).start()  # fmt: skip

    with Lives(screen, start) as applications:

        def finish() -> None:
            process = applications.begin().process
            if code := process.wait_exit(PROGRESS_S):
                raise DemoError(f"the successor ended with {code}{process.tail()}")
            screen.log(f"it is done: {last_line(applications.newest)}")

        for part in (0.1, 0.35):
            applications.begin()
            applications.progress(server, int(part * _MICRO_BATCH))
            applications.kill()
            screen.log("kill -9 of the whole application: driver, virtual machine and workers")
        applications.begin()
        applications.progress(server, _MICRO_BATCH // 10)
        server.kill9()
        server.start()
        screen.log("kill -9 of the server; it is back, and the application does not know")
        applications.progress(server, 1)
        zombie = applications.replace(
            "the application is stopped in the middle (SIGSTOP); another one takes over", finish
        )
    source, copy = read_topics(kafka.bootstrap), read_topics(server.bootstrap, COPY)
    server.stop()
    screen.log("the log is audited by Spark, from its segment files")
    report = folder / "report"
    return Verdict(
        sent=len(rows), source=source, copy=copy, kills=applications.kills, server_kills=1,
        duplicates=_duplicates(folder / "checkpoint"), zombie=last_line(zombie),
        fenced=zombie.process.returncode == FENCED, audited=_audit(server.data_dir, report),
        report=report / "report.html",
    )  # fmt: skip


def _duplicates(checkpoint: Path) -> int:
    """Return the number of rows that were sent again, according to the checkpoint."""
    from pidlease.spark.sink.run_state import RunStore  # noqa: PLC0415 - only where Spark is

    runs = RunStore(checkpoint / "pidlease").before()
    if not runs:
        raise DemoError("the checkpoint knows of no run")
    return sum(source.duplicates for source in runs[0].sources.values())


def _audit(data: Path, report: Path) -> int:
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "proxy",
        "spark",
        "audit",
        "--log",
        data,
        "--output",
        report,
    ]
    done = subprocess.run(  # noqa: S603 - our own
        command, check=False, cwd=_ROOT, env={**os.environ, **spark_environment()}
    )
    return done.returncode


if __name__ == "__main__":
    typer.run(main)
