"""The image's health check, run beside a real server."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.servers.authority import Authority, needs_openssl
from tests.servers.pidlease import PidleaseServer

_CHECK: Final = Path(__file__).resolve().parents[2] / "deploy" / "docker" / "healthcheck.py"


def _check(port: int, host: str = "0.0.0.0", **settings: str) -> subprocess.CompletedProcess[str]:
    env = {name: text for name, text in os.environ.items() if not name.startswith("PIDLEASE_")}
    env |= {"PIDLEASE_HTTP_LISTEN": f"{host}:{port}"}
    env |= {f"PIDLEASE_{name.upper()}": text for name, text in settings.items()}
    # As the image calls it.
    command = [sys.executable, "-I", "-S", str(_CHECK)]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", ""])
def test_a_server_that_lives(tmp_path: Path, host: str) -> None:
    with PidleaseServer(tmp_path, settings={"fsync": "never"}) as server:
        done = _check(server.http_port, host)
        assert (done.returncode, done.stderr) == (0, "")


@needs_openssl
def test_a_server_by_tls(tmp_path: Path) -> None:
    certificate = Authority(tmp_path).issue("server", f"IP:{LOOPBACK}")
    settings = {
        "http_security_protocol": "SSL",
        "ssl_certificate": str(certificate.certificate),
        "ssl_key": str(certificate.key),
    }
    server = PidleaseServer(tmp_path / "server", settings=settings)
    server.launch()
    try:
        server.process.wait_until(lambda: _check(server.http_port, **settings).returncode == 0, 300)
        # The file of settings may have what the variables do not.
        assert _check(server.http_port).returncode == 0
    finally:
        server.kill()


def test_a_server_that_is_away() -> None:
    (port,) = free_ports(1)
    done = _check(port)
    assert done.returncode == 1
    assert f"127.0.0.1:{port} does not answer" in done.stderr
