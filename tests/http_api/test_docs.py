"""The examples of docs/produce/http.md do what is said there."""

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pidlease.testing.loopback_ports import LOOPBACK
from tests.crash.lives import server_in
from tests.kafka_listener.client import WireClient
from tests.servers.waiting import WAIT_S

_DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "produce" / "http.md"
#: A command over one or more lines, and what it prints, if that is told.
_EXAMPLE = re.compile(r"^    (curl (?:.*\\\n)*.*)(?:\n    (\{.*))?$", re.MULTILINE)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_examples(tmp_path: Path) -> None:
    examples = _EXAMPLE.findall(_DOCUMENT.read_text(encoding="utf-8"))
    assert len(examples) >= 7
    with server_in(tmp_path) as server:
        server.restart({"log_level": "warning"})
        asyncio.run(_make(server.kafka_port, "orders"))
        lease: dict[str, int] = {}
        for command, printed in examples:
            answer = _run(_adapted(command, server.http_port, lease))
            found = json.loads(answer)
            if "pid" in found:
                lease = {name: found[name] for name in ("pid", "generation")}
            if printed:
                assert re.fullmatch(_pattern(printed), answer), (command, answer)
            else:
                assert not found.get("error"), (command, found)


async def _make(port: int, topic: str) -> None:
    async with await WireClient.connect(LOOPBACK, port) as client:
        await client.create(topic)


def _adapted(command: str, port: int, lease: dict[str, int]) -> str:
    """With this server's port, and with a PID that it has leased."""
    command = command.replace("127.0.0.1:8080", f"{LOOPBACK}:{port}")
    for name, number in lease.items():
        command = re.sub(rf'"{name}": \d\d+', f'"{name}": {number}', command)
    return command


def _run(command: str) -> str:
    return subprocess.run(
        ["bash", "-c", command.replace("curl ", "curl -sS ", 1)],
        check=True, capture_output=True, text=True, timeout=WAIT_S,
    ).stdout  # fmt: skip


def _pattern(printed: str) -> str:
    """What is printed, where "..." stands for anything."""
    return re.escape(printed).replace(re.escape("..."), ".*")
