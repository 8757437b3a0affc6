"""A speculative attempt of a task, which reaches the proxy like the first one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.copier.sides import check_same
from tests.crash.seeds import SOAK
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.spark import spark_environment
from tests.servers.spark.cluster import SparkCluster
from tests.spark.sink.queries import fill

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(900),
    # A cluster takes a minute to do nothing: two workers, an executor each, a driver.
    pytest.mark.skipif(not SOAK, reason="in the soak"),
]

COUNT = 6_000
_ROOT = Path(__file__).resolve().parents[3]


def test_a_second_attempt_beside_the_first(
    kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """Both send the same; Spark commits one, and the log has each row once."""
    server.start()
    fill(kafka_source, "speculation", COUNT)
    with SparkCluster(tmp_path / "cluster", workers=2) as cluster:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.sink.speculating", str(tmp_path), cluster.url,
             kafka_source.bootstrap, server.bootstrap, server.http_url, "speculation"],
            cwd=_ROOT, env={**os.environ, **spark_environment()}, capture_output=True, text=True,
            timeout=250, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    attempts = {path.name for path in (tmp_path / "marks").iterdir()}
    tasks = {name.partition(".")[0] for name in attempts}
    assert any({f"{task}.0", f"{task}.1"} <= attempts for task in tasks), attempts
    # Rows of both are seen there: what the second had sent was known, or the first's was.
    assert server.metric("pidlease_batches_judged_total", outcome="duplicate") > 0
    assert check_same(kafka_source, "speculation", server, "speculation.copy") == COUNT
