"""The examples of README run as pasted."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_README: Final = Path(__file__).resolve().parents[2] / "README.md"
_DEFAULTS: Final = {"127.0.0.1:9092", "127.0.0.1:8080"}


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", _README.read_text(), re.M | re.S)


def test_a_load_that_crashes_in_the_middle(tmp_path: Path) -> None:
    (example,) = [block for block in _blocks("bash") if "pidlease produce" in block]
    kafka_port, http_port = free_ports(2)
    # The page uses the default addresses; here they come by variables, which change no command.
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PIDLEASE_KAFKA_LISTEN": f"{LOOPBACK}:{kafka_port}",
        "PIDLEASE_HTTP_LISTEN": f"{LOOPBACK}:{http_port}",
        "PIDLEASE_SERVERS": f"{LOOPBACK}:{kafka_port}",
        "PIDLEASE_URL": f"http://{LOOPBACK}:{http_port}",
    }
    done = subprocess.run(
        ["bash", "-c", example], cwd=tmp_path, env=env, capture_output=True, text=True,
        timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[-1] == "each line once", done
    assert "Traceback" not in done.stderr


def test_the_producer(tmp_path: Path) -> None:
    (example,) = _blocks("python")
    assert all(address in example for address in _DEFAULTS)
    with PidleaseServer(tmp_path) as server:
        own = example.replace("127.0.0.1:9092", server.bootstrap)
        own = own.replace("http://127.0.0.1:8080", server.http_url)
        done = subprocess.run(
            [sys.executable, "-c", own], capture_output=True, text=True, timeout=WAIT_S, check=False
        )
    assert done.returncode == 0, done.stderr
    partition, offset, sequence = done.stdout.split()
    assert (offset, sequence) == ("0", "0")
    assert partition.isdigit()


def test_the_page_is_short() -> None:
    assert len(_README.read_text().splitlines()) < 120
