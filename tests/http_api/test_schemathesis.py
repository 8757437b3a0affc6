"""Requests that schemathesis generates from the OpenAPI document, against a real server.

It checks statuses, types, headers and bodies of the responses against the document, that invalid
requests are refused, and that no request makes the server fail.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.seeds import SOAK, new_random
from tests.http_api.appending import JSON
from tests.http_api.lives import ask
from tests.servers.pidlease import PidleaseServer

_ROOT = Path(__file__).resolve().parents[2]
_SCHEMATHESIS = Path(sys.executable).with_name("st")
#: Left out: a valid request may be refused for what no schema says: an unknown setting, a PID with
#: a name, an offset after the end.
_LEFT_OUT = "positive_data_acceptance"
#: A topic and a partition that exist; otherwise nearly all requests are for unknown topics.
_EXISTING = """
[parameters]
"path.topic" = "orders"
"path.partition" = 0
"""
_TOPIC = b'{"name": "orders", "partitions": 2}'


def generate(server: PidleaseServer, folder: Path, config: str, *options: str) -> str:
    """Run schemathesis; return its output if it has found nothing."""
    path = folder / "schemathesis.toml"
    path.write_text(config)
    done = subprocess.run(
        [
            _SCHEMATHESIS, "--no-color", "--config-file", path,
            "run", f"{server.http_url}/openapi.json", "--continue-on-failure", "--exclude-checks",
            _LEFT_OUT, *options,
        ],
        cwd=folder, capture_output=True, text=True, check=False, timeout=3600,
        env=os.environ | {
            "PYTHONPATH": str(_ROOT), "SCHEMATHESIS_HOOKS": "tests.http_api.schemathesis_hooks",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(server: PidleaseServer, config: str, *options: str) -> int:
    """Run schemathesis against a server with a topic; return the number of requests."""
    assert ask(server, "POST", "/v1/topics", _TOPIC, JSON)[0] == 201
    shown = generate(server, server.data_dir.parent, config, *options)
    assert ask(server, "GET", "/healthz")[0] == 200
    (requests,) = re.findall(r"(\d+) generated", shown)
    return int(requests)


def test_some_requests(tmp_path: Path) -> None:
    """The same requests at each run: what is found by chance is for the soak."""
    options = ("--phases", "fuzzing", "--max-examples", "8", "--seed", "22")
    with PidleaseServer(tmp_path, settings={"fsync": "never"}) as server:
        assert check(server, _EXISTING, *options) > 60


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="it takes minutes")
@pytest.mark.parametrize("config", ["", _EXISTING], ids=["any topic", "one topic"])
def test_many_requests(tmp_path: Path, config: str) -> None:
    seed = str(new_random("schemathesis").randrange(1 << 32))
    options = ("--max-examples", "200", "--seed", seed)
    with PidleaseServer(tmp_path, settings={"fsync": "never"}) as server:
        assert check(server, config, *options) > 3_000
