"""Help, version and completion, by the real command."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pidlease import __version__
from proxy.cli.console import plain_table, print_table
from proxy.configuration.settings import Settings

_ROOT = Path(__file__).resolve().parents[2]
_WITHOUT_PYSPARK = (
    "import sys; sys.modules['pyspark'] = None; from proxy.__main__ import main; main()"
)


def run(*words: str, program: tuple[str, ...] = ("-m", "pidlease")) -> tuple[int, str, str]:
    env = {name: text for name, text in os.environ.items() if not name.startswith("PIDLEASE_")}
    done = subprocess.run(
        [sys.executable, *program, *words], cwd=_ROOT, capture_output=True, text=True,
        check=False, timeout=60, env=env | {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_version_and_help() -> None:
    assert run("--version") == (0, f"{__version__}\n", "")
    code, short, _ = run("-h")
    assert (code, short) == run("--help")[:2]
    assert code == 0
    for command in ("serve", "produce", "consume", "topics", "status", "--show-completion"):
        assert command in short


def test_help_of_serve() -> None:
    code, shown, _ = run("serve", "-h")
    assert code == 0
    for name in Settings.model_fields:
        assert re.search(rf"--{name.replace('_', '-')}\b", shown), name
    panels = re.findall("^╭─ (.*?) ─", shown, re.MULTILINE)
    assert {"Addresses", "Kafka as the log", "Topics and their log", "Limits"} <= set(panels)
    assert "Others" not in panels, "each setting has a panel"
    for line in (
        r"--fsync +batch\|interval\|never +.*\[default: batch\]",
        r"--segment-bytes +BYTES +.*\[default: 1073741824\]",
        r"--lease-seconds +SECONDS +.*\[default: 86400.0\]",
        r"--data-dir +PATH +",
        r"--kafka-listen +HOST:PORT +.*\[default: 127.0.0.1:9092\]",
        r"--auto-create-topics +--no-auto-create-topics .*\[default: on\]",
    ):
        assert re.search(line, shown), line


@pytest.mark.parametrize("command", ["audit", "copy", "rebuild"])
def test_help_of_spark_commands_needs_no_spark(command: str) -> None:
    code, shown, said = run("spark", command, "--help", program=("-c", _WITHOUT_PYSPARK))
    assert (code, said) == (0, "")
    assert f"spark {command} [OPTIONS]" in shown


def test_spark_commands_need_spark() -> None:
    words = ("spark", "copy", "--from", "kafka:a:1", "--to", "b:1", "--checkpoint", "c")
    code, shown, said = run(*words, "--topics", "t", program=("-c", _WITHOUT_PYSPARK))
    assert (code, shown) == (2, "")
    assert said == "pidlease: PySpark is not installed: pip install 'pidlease[spark]'\n"


def test_completion() -> None:
    env = {"_PIDLEASE_COMPLETE": "complete_bash", "COMP_WORDS": "pidlease to", "COMP_CWORD": "1"}
    done = subprocess.run(
        [Path(sys.executable).with_name("pidlease")], env=os.environ | env,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == ["top", "topics"]


@pytest.mark.parametrize("first", [9_876, 9_876_543_210, 2**63 - 10])
def test_no_number_is_cut_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich takes stdout for a terminal
    name = "a-topic-with-a-name-that-is-long-" * 3
    table = plain_table("partitions", "topic", "begin", "end", "producers", "in flight", "stopped")
    numbers = [f"{first + each:,}" for each in range(3)]
    table.add_row(name, *numbers, "1", "2")
    print_table(table)
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    for number in numbers:
        assert number in shown
    lines = shown.splitlines()
    cells = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert "".join(cells) == name
    assert max(map(len, lines)) == 80 or first > 9_876, "no longer than the terminal if it fits"
