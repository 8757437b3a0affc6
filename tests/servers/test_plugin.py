"""The pytest plugin for users, tried as its page says: pasted into a folder of its own."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pidlease.testing import PidleaseServer, ServerError
from tests.docs.page_run import NO_FOREIGN_PLUGINS, PageRun
from tests.docs.snippets import blocks_of_page

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs" / "produce" / "test-your-application.md"
_SCRIPT = """
from pathlib import Path
from pidlease.testing import PidleaseServer

with PidleaseServer(Path("server")) as server:
    print(server.alive)
"""
#: A user's module of the same name as the server's must not be in the way.
_FOREIGN = "raise RuntimeError('not the server')\n"


def test_the_page_as_pasted(tmp_path: Path) -> None:
    """Also where a user's module has the name of one of the server's."""
    (tmp_path / "proxy.py").write_text(_FOREIGN)
    blocks = blocks_of_page(_PAGE, _ROOT)
    env = {"PYTEST_ADDOPTS": f"{NO_FOREIGN_PLUGINS} -W error::pytest.PytestAssertRewriteWarning"}
    with PageRun(blocks, tmp_path, lambda: "", env) as run:
        run.run()


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


def test_a_script_starts_a_server(tmp_path: Path) -> None:
    """A script is not run again by the process that servers are forked from."""
    (tmp_path / "script.py").write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


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
