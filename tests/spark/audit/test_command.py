"""`pidlease spark audit` and `pidlease spark rebuild`, as a user or a script runs them."""

from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.name_bindings import Binding, BindingChange
from pidlease.core.pid import Policy, make_pid
from pidlease.storage.files import RealFiles
from proxy.cli.spark.spark_audit_command import audit
from proxy.cli.spark.spark_rebuild_command import rebuild
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S
from tests.spark.audit.logs import Logs, Origin, encoded
from tests.spark.soak import in_the_soak

KAFKA = Origin(make_pid(Policy.KAFKA, 7))
NASTY = Origin(-1, '<script>alert("x")</script>')


class Running:
    """The tests' session; a command must not stop it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """Do nothing: other tests need the session."""


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    module = import_module("pidlease.spark.spark_session")
    monkeypatch.setattr(module, "session", lambda *_, **__: Running(spark))
    yield CliRunner()
    spark.sparkContext.setLogLevel("WARN")


def run(runner: CliRunner, *arguments: str) -> Result:
    cli = typer.Typer()
    cli.command()(audit)
    cli.command()(rebuild)
    result = runner.invoke(cli, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def fill(path: Path, *, wrong: bool) -> Path:
    with Logs(path) as logs:
        logs.topic("t")
        logs.topic("other")
        for first in range(0, 50, 5):
            logs.append("t", 0, [encoded(KAFKA, 0, first, 5), encoded(NASTY, 0, first, 5)])
        logs.append("other", 0, [encoded(Origin(), -1, -1, 3)])
        if wrong:
            logs.append("t", 0, [encoded(KAFKA, 0, 20, 5), encoded(NASTY, 0, 70, 5)])
    return path


class Page(HTMLParser):
    """The elements of a page, the text in its cells, and the addresses that it loads."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.fetched: list[str] = []
        self._in_cell = False
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag in ("td", "th"):
            self._in_cell = True
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.cells[-1] += data


def test_what_is_wrong_is_shown_and_written(command: CliRunner, tmp_path: Path) -> None:
    path, output = fill(tmp_path / "data", wrong=True), tmp_path / "out"
    result = run(command, "audit", "--log", str(path), "--output", str(output))
    assert result.exit_code == 1
    assert (
        f"duplicate: t-0 offset 100, {KAFKA.pid}, generation 0, sequences 20..24" in result.output
    )
    assert "gap: t-0 offset 105" in result.output
    assert "not sound" in result.output
    content = (output / "report.html").read_text()
    page = Page(content)
    assert page.fetched == []
    assert "url(" not in content
    assert "script" not in page.tags
    assert page.tags.count("svg") == 3
    assert NASTY.producer_id in page.cells
    assert {"duplicate", "gap", str(KAFKA.pid), "the first one is at offset 40"} <= set(page.cells)
    assert (
        "duplicate: 5 records in 1 finding; gap: 20 missing sequence numbers in 1 finding"
        in content
    )
    assert "not checked: 3 of 113 records" in content
    spark = SparkSession.builder.getOrCreate()
    violations = spark.read.parquet(str(output / "violations.parquet")).collect()
    assert {(row.kind, row.offset, row.numbers) for row in violations} == {
        ("duplicate", 100, 5),
        ("gap", 105, 20),
    }
    producers = spark.read.parquet(str(output / "producers.parquet")).collect()
    assert {(row.topic, row.pid, row.records) for row in producers} == {
        ("t", KAFKA.pid, 55), ("t", -1, 55), ("other", -1, 3),
    }  # fmt: skip


def test_a_sound_log_is_exit_code_0(command: CliRunner, tmp_path: Path) -> None:
    path = fill(tmp_path / "data", wrong=False)
    result = run(command, "audit", "--log", str(path), "--topics", "t")
    assert result.exit_code == 0, result.output
    assert "sound" in result.output
    assert "other" not in result.output


def test_records_that_cannot_be_checked_are_not_called_sound(
    command: CliRunner, tmp_path: Path
) -> None:
    path, output = fill(tmp_path / "data", wrong=False), tmp_path / "out"
    result = run(command, "audit", "--log", str(path), "--output", str(output))
    assert result.exit_code == 3, result.output
    assert "not checked: 3 of 103 records" in result.output
    content = (output / "report.html").read_text()
    assert "not checked: 3 of 103 records" in content
    assert "No violation" not in content
    assert "own timestamps" in content  # what the axis of time is


def test_producers_are_shown_by_their_names(command: CliRunner, tmp_path: Path) -> None:
    pids = [make_pid(Policy.STRICT, number) for number in (1, 2)]
    with Logs(tmp_path / "data") as logs:
        logs.topic("t")
        names = FileNames(RealFiles(), logs.folder.names)
        for generation, pid in enumerate(pids):
            bound = Binding(pid, generation, former=pids[0] if generation else -1)
            names.change_many([BindingChange("till-1", names.get_many(["till-1"])[0], bound)])
            # Two of 5 records, with a gap of 15 numbers between them.
            logs.append("t", 0, [encoded(Origin(pid), 0, 20 * place, 5) for place in range(2)])
    result = run(command, "audit", "--log", str(logs.path))
    assert result.exit_code == 1
    for pid, offset in zip(pids, (5, 15), strict=True):
        assert f"gap: t-0 offset {offset}, till-1 ({pid})" in result.output
    logs.folder.names.write_bytes(b"{} 00000000\n" * 2)
    result = run(command, "audit", "--log", str(logs.path))
    assert result.exit_code == 1
    assert "without names" in result.stderr
    assert "till-1" not in result.output


@in_the_soak
def test_a_log_is_looked_at_over_the_kafka_protocol(
    command: CliRunner, server: PidleaseServer
) -> None:
    with server:
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        for number in range(2_000):
            producer.produce("over-kafka", str(number))
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        result = run(command, "audit", "--log", f"kafka:{server.bootstrap}")
    assert result.exit_code == 0, result.output
    assert "2,000" in result.output
    assert "kafka" in result.output


@pytest.mark.parametrize("more", [("--topics", "no-such"), ("--topics-regex", "(")])
def test_what_cannot_be_looked_at_is_exit_code_2(
    command: CliRunner, tmp_path: Path, more: tuple[str, str]
) -> None:
    path = fill(tmp_path / "data", wrong=False)
    for given in ((str(tmp_path / "nothing"),), (str(path), *more)):
        result = run(command, "audit", "--log", *given)
        assert result.exit_code == 2
        assert len(result.output.strip().splitlines()) == 1, result.output


def test_rebuild_says_what_it_has_written(command: CliRunner, tmp_path: Path) -> None:
    path = fill(tmp_path / "data", wrong=False)
    result = run(command, "rebuild", "--log", str(path))
    assert result.exit_code == 0, result.output
    assert "snapshot 1 of" in result.output
    assert [each.name for each in (path / "snapshots").iterdir()] == ["snapshot-000000000001"]


def test_rebuild_of_what_is_none_is_exit_code_2(command: CliRunner, tmp_path: Path) -> None:
    result = run(command, "rebuild", "--log", str(tmp_path / "nothing"))
    assert result.exit_code == 2
    assert "does not exist, or is no directory" in result.output
    assert not (tmp_path / "nothing").exists()
