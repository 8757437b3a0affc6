"""The pytest plugin for users, tried as its page says: pasted into a folder of its own."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pidlease.testing import PidleaseServer, ServerError

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "produce" / "test-your-application.md"
_BLOCK = re.compile(r"(?<!-->\n)^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: A user's module of the same name as the server's must not be in the way.
_FOREIGN = "raise RuntimeError('not the server')\n"


def test_the_page_as_pasted(tmp_path: Path) -> None:
    commands = "".join(_BLOCK.findall(_PAGE.read_text(encoding="utf-8")))
    assert commands.count("python -m pytest") == 2
    (tmp_path / "proxy.py").write_text(_FOREIGN)
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTEST_ADDOPTS": "-W error::pytest.PytestAssertRewriteWarning",
        },
        check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "2 passed" in done.stdout


def test_it_is_killed_and_comes_back_on_the_same_data(tmp_path: Path) -> None:
    with PidleaseServer(tmp_path) as server:
        pid, leases = server.pid, server.leases
        server.kill()
        assert not server.alive
        server.restart({"log_level": "debug"})
        assert (server.leases, server.alive) == (leases, True)
        assert server.pid != pid
        assert server.settings == {"log_level": "debug"}
    assert not server.alive
    assert (tmp_path / "data").is_dir()


def test_a_wrong_setting_is_in_the_error(tmp_path: Path) -> None:
    server = PidleaseServer(tmp_path, settings={"fsync": "sometimes"})
    with pytest.raises(ServerError, match="fsync"):
        server.start()


def test_a_further_server_needs_no_import(tmp_path: Path) -> None:
    """Compared on the same machine at the same time: a busy one starts all of them late."""
    imported = _seconds(tmp_path / "imported", forks=False)
    _seconds(tmp_path / "first", forks=True)
    forked = min(_seconds(tmp_path / f"forked-{number}", forks=True) for number in range(3))
    assert forked < imported


def _seconds(folder: Path, *, forks: bool) -> float:
    server = PidleaseServer(folder, settings={"fsync": "never"})
    server.process.forks = forks
    started = time.monotonic()
    with server:
        return time.monotonic() - started
