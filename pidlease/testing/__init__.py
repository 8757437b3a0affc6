"""A pytest plugin: a real server, on free ports in a temporary folder, which a test may kill.

In the `conftest.py` of the tests' root folder:

    pytest_plugins = ["pidlease.testing"]

It is no entry point: tests that do not name it never import it. PYTEST_DONT_REWRITE
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pidlease.extras import SERVER_MODULES, need_extra
from pidlease.testing.killable_server import PidleaseServer
from pidlease.testing.server_process import ServerError

__all__ = ["PidleaseServer", "ServerError", "pidlease_server", "pidlease_settings"]

need_extra("server", "pidlease.testing", SERVER_MODULES)


@pytest.fixture
def pidlease_settings() -> Mapping[str, str]:
    """Return the server's settings, PIDLEASE_... without the prefix; a test overrides this.

    Nothing is fsynced: a kill -9 loses nothing by that, only a power failure would.
    """
    return {"fsync": "never"}


@pytest.fixture
def pidlease_server(
    tmp_path: Path, pidlease_settings: Mapping[str, str]
) -> Iterator[PidleaseServer]:
    """Run a server during a test."""
    server = PidleaseServer(tmp_path / "pidlease", settings=pidlease_settings)
    try:
        server.start()
        yield server
    finally:
        server.kill()
