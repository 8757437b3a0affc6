"""The example of README runs as pasted."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.servers.waiting import WAIT_S

_README: Final = Path(__file__).resolve().parents[2] / "README.md"


def test_a_load_that_crashes_in_the_middle(tmp_path: Path) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```", _README.read_text(), re.M | re.S)
    (example,) = [block for block in blocks if "kill -9" in block]
    kafka_port, http_port = free_ports(2)
    kafka, url = f"{LOOPBACK}:{kafka_port}", f"http://{LOOPBACK}:{http_port}"
    assert example.count("127.0.0.1:9092") == example.count("http://127.0.0.1:8080") == 1
    example = example.replace("127.0.0.1:9092", kafka).replace("http://127.0.0.1:8080", url)
    # The commands use the default addresses; here they come by variables.
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PIDLEASE_KAFKA_LISTEN": kafka,
        "PIDLEASE_HTTP_LISTEN": url.removeprefix("http://"),
        "PIDLEASE_SERVERS": kafka,
        "PIDLEASE_URL": url,
    }
    done = subprocess.run(
        ["bash", "-c", example], cwd=tmp_path, env=env, capture_output=True, text=True,
        timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[-1] == "each line once, in order", done
    assert "Traceback" not in done.stderr


def test_the_page_is_short() -> None:
    assert len(_README.read_text().splitlines()) < 120
