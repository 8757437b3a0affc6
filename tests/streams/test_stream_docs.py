"""The example of docs/produce/durable-streams.md runs as it is pasted."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "produce" / "durable-streams.md"
_EXAMPLE = re.compile(r"^    (curl (?:.*\\\n)*.*)(?:\n    (\[.*))?$", re.MULTILINE)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_example(tmp_path: Path) -> None:
    examples = _EXAMPLE.findall(_DOCUMENT.read_text(encoding="utf-8"))
    assert len(examples) == 5
    with PidleaseServer(tmp_path) as server:
        for command, printed in examples:
            here = command.replace("127.0.0.1:8080", server.http_address)
            found = subprocess.run(
                ["bash", "-c", here.replace("curl ", "curl -sS --fail-with-body ", 1)],
                check=True, capture_output=True, text=True, timeout=WAIT_S,
            ).stdout  # fmt: skip
            assert found == printed
        log = server.log_text()
    assert "shop__orders" in log
