"""The examples of docs/produce/http.md print what is said there."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.crash.lives import server_in
from tests.servers.waiting import WAIT_S

_ROOT = Path(__file__).resolve().parents[2]
_DOCUMENT = _ROOT / "docs" / "produce" / "http.md"
#: Commands, and what they print.
_EXAMPLE = re.compile(r"^```bash\n(.*?)^```\n\n```text\n(.*?)\n```", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_examples(tmp_path: Path) -> None:
    text = _DOCUMENT.read_text(encoding="utf-8")
    examples = _EXAMPLE.findall(text)
    assert len(examples) == text.count("```bash") >= 12
    (tmp_path / "examples").symlink_to(_ROOT / "examples")
    with server_in(tmp_path) as server:
        server.restart({"log_level": "warning"})
        for commands, printed in examples:
            response = _run(commands.replace("http://127.0.0.1:8080", server.http_url), tmp_path)
            assert re.fullmatch(_pattern(printed), response.strip()), (commands, response)


def _run(commands: str, folder: Path) -> str:
    return subprocess.run(
        ["bash", "-e", "-c", commands],
        check=True, cwd=folder, capture_output=True, text=True, timeout=WAIT_S,
    ).stdout  # fmt: skip


def _pattern(printed: str) -> str:
    """What is printed, where "..." stands for anything."""
    return re.escape(printed).replace(re.escape("..."), ".*")
