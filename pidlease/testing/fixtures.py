"""The fixtures of the pytest plugin."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pidlease.testing.killable_server import PidleaseServer


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
