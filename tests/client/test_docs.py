"""The examples of docs/produce/python-client.md do what the page says."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.readback import consume
from tests.servers.pidlease import PidleaseServer

_ROOT = Path(__file__).resolve().parents[2]
_DOCUMENT = (_ROOT / "docs" / "produce" / "python-client.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(?:python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    settings = {"fsync": "never", "default_partitions": "1", "log_level": "warning"}
    with PidleaseServer(tmp_path_factory.mktemp("docs"), settings=settings) as running:
        yield running


def example(server: PidleaseServer, beginning: str) -> str:
    """The first example that begins so, with the ports of this server."""
    found = next(each for each in _BLOCK.findall(_DOCUMENT) if each.startswith(beginning))
    assert "127.0.0.1:9092" in found
    return found.replace("127.0.0.1:9092", server.bootstrap).replace(
        "127.0.0.1:8080", server.http_address
    )


def run(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Paste it into a file, and run that."""
    script = folder / "pasted.py"
    script.write_text(code, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        check=False, cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_the_asyncio_example(server: PidleaseServer, tmp_path: Path) -> None:
    done = run(example(server, "import asyncio"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0 0\n", "")


def test_the_blocking_example(server: PidleaseServer, tmp_path: Path) -> None:
    lines = [b"line %d\n" % number for number in range(20_000)]
    (tmp_path / "lines.txt").write_bytes(b"".join(lines))
    done = run(example(server, "from pidlease.client import BlockingProducer"), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [each.value for each in consume(server.bootstrap, "lines", 1)] == lines


def test_the_blocking_example_with_str(server: PidleaseServer, tmp_path: Path) -> None:
    """The old one: all of the file was lost, and the exit code was 0."""
    (tmp_path / "lines.txt").write_text("a line\n" * 20_000)
    code = example(server, "from pidlease.client import BlockingProducer")
    done = run(code.replace('open("lines.txt", "rb")', 'open("lines.txt")'), tmp_path)
    assert done.returncode == 1
    assert "TypeError: value is str; bytes are needed, encode it first" in done.stderr


def test_the_example_with_serializers(server: PidleaseServer, tmp_path: Path) -> None:
    done = run(example(server, "import json"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 3\n", "")
    first = consume(server.bootstrap, "rows", 1)[0]
    assert (first.key, first.value) == (b"table 4", b'{"table": 4, "drink": "tea"}')
