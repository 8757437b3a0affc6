"""The oldest PySpark that the extra allows, in an environment of its own."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.copier.sides import make_topic
from tests.crash.seeds import SOAK
from tests.servers.pidlease import PidleaseServer
from tests.servers.spark import spark_environment, spark_missing
from tests.servers.waiting import WAIT_S

OLDEST = "4.0.0"
COUNT = 2_000
_ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.timeout(1800),
    # It downloads PySpark and the connector, which has a minute of Ivy's own.
    pytest.mark.skipif(not SOAK, reason="in the soak"),
]


def test_the_oldest_pyspark(server: PidleaseServer, tmp_path: Path) -> None:
    if reason := spark_missing():
        pytest.skip(reason)
    server.start()
    fill(server)
    python = environment(tmp_path / "older")
    done = subprocess.run(
        [str(python), "-m", "tests.spark.older_pyspark", str(tmp_path), server.bootstrap,
         server.http_url, str(COUNT)],
        cwd=_ROOT, env={**os.environ, **spark_environment(), "PYTHONPATH": str(_ROOT),
                        "PYSPARK_PYTHON": str(python)},
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert f"PySpark {OLDEST}: {COUNT} rows, twice" in done.stdout


def fill(server: PidleaseServer) -> None:
    """Write what is copied."""
    from confluent_kafka import Producer

    make_topic(server.bootstrap, "old", 2)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(COUNT):
        producer.produce("old", b"%d" % number, partition=number % 2, headers=[("n", b"1")])
    assert producer.flush(WAIT_S) == 0


def environment(folder: Path) -> Path:
    """Make an environment with the oldest PySpark, and all else from this one."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = (str(python), "-m", "pip", "-q", "install", f"pyspark=={OLDEST}")
    subprocess.run(install, check=True)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python
