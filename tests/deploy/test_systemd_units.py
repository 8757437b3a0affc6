"""pidlease.service: systemd's own tools accept it, and a server reports as it promises."""

import re
import shutil
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from proxy.configuration.settings import Settings
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
_UNIT: Final = _FOLDER / "pidlease.service"
#: The exposure level that `systemd-analyze security` may find at most, times ten.
_EXPOSURE_MAX: Final = "15"

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze on this machine"
)


def _run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, timeout=60, check=False
    )
    text = done.stdout + done.stderr
    if done.returncode and "unrecognized option" in text:
        pytest.skip(f"this version of systemd has no such option: {text.strip()}")
    assert done.returncode == 0, text
    return text


def _setting(name: str) -> str:
    found = re.findall(rf"^{name}=(.*)$", _UNIT.read_text(), re.M)
    assert found, f"{_UNIT} has no {name}"
    return str(found[-1])


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit, with a program that is there."""
    unit = tmp_path / "pidlease.service"
    unit.write_text(_UNIT.read_text().replace("/opt/pidlease/bin/pidlease", "/bin/true"))
    return unit


@needs_systemd
def test_systemd_accepts_the_unit(installed: Path) -> None:
    assert "pidlease.service" not in _run("systemd-analyze", "verify", "--man=no", installed)


@needs_systemd
def test_the_unit_is_hardened(installed: Path) -> None:
    threshold = f"--threshold={_EXPOSURE_MAX}"
    _run("systemd-analyze", "security", "--offline=true", "--no-pager", threshold, installed)


def test_its_times_fit_the_server() -> None:
    fields = Settings.model_fields
    longest_stop = fields["stop_seconds"].default + fields["stop_delay_seconds"].default
    assert int(_setting("TimeoutStopSec")) > longest_stop
    assert int(_setting("StartLimitIntervalSec")) > int(_setting("RestartSec")) * int(
        _setting("StartLimitBurst")
    )


def test_the_example_of_settings() -> None:
    settings = tomllib.loads((_FOLDER / "pidlease.toml").read_text())
    assert {name.replace("-", "_") for name in settings} <= set(Settings.model_fields)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.settimeout(WAIT_S)
        found.bind(str(tmp_path / "notify"))
        yield found


def _until(manager: socket.socket, field: str) -> list[str]:
    """The fields up to this one, which it waits for."""
    seen: list[str] = []
    while field not in seen:
        seen += manager.recv(65536).decode().split("\n")
    return seen


def test_a_server_reports_its_life(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "600000")
    with PidleaseServer(tmp_path / "server", settings={"fsync": "never"}) as server:
        start = _until(manager, "READY=1")
        assert "EXTEND_TIMEOUT_USEC=60000000" in start
        assert "STATUS=serving" in start
        for _ in range(3):
            assert "WATCHDOG=1" in _until(manager, "WATCHDOG=1")
        assert server.stop() == 0
    assert "STATUS=stopping" in _until(manager, "STOPPING=1")


def test_a_server_without_a_manager(
    tmp_path: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that is gone is logged, and the server serves."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    with PidleaseServer(tmp_path / "server", settings={"fsync": "never"}) as server:
        assert server.get("/readyz")[0] == 200
        assert "the service manager got no report" in server.log_text()
        assert server.stop() == 0
