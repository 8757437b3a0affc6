"""The image for Spark jobs, built and run: a query that is killed, and an audit of its copy."""

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient

from pidlease.client import BlockingProducer
from tests.crash.readback import Stored, consume
from tests.deploy.docker_daemon import build_image, docker, docker_missing, volume
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until

_COUNT: Final = 4000
_PARTITIONS: Final = 2
_COPY: Final = "numbers.copy"
_APPLICATION: Final = """\
import sys

from pidlease.spark import session

_, bootstrap, leases = sys.argv
source = (
    session("copy")
    .readStream.format("pidlease")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", "numbers")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 400)
    .load()
)
query = (
    source.writeStream.format("pidlease")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("leases", leases)
    .option("topic", "{topic}.copy")
    .option("checkpointLocation", "/home/pidlease/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
"""

_REASON = docker_missing()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))


@pytest.fixture(scope="module")
def image() -> str:
    return build_image("spark.Dockerfile", "pidlease-spark:test")


@pytest.fixture
def home() -> Iterator[str]:
    with volume() as name:
        yield name


def _log(name: str) -> str:
    done = subprocess.run(
        ["docker", "logs", name], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def _copied(server: PidleaseServer) -> list[Stored]:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    if _COPY not in admin.list_topics(timeout=WAIT_S).topics:
        return []
    return consume(server.bootstrap, _COPY, _PARTITIONS)


def _fill(server: PidleaseServer) -> None:
    with BlockingProducer(bootstrap_servers=server.bootstrap, leases=server.http_url) as producer:
        for number in range(_COUNT):
            sent = producer.send("numbers", str(number).encode(), partition=number % _PARTITIONS)
        sent.result(WAIT_S)


def test_a_query_that_is_killed_and_the_audit(image: str, home: str, tmp_path: Path) -> None:
    application = tmp_path / "application"
    application.mkdir()
    (application / "copy_numbers.py").write_text(_APPLICATION)
    name = f"pidlease-test-{uuid.uuid4().hex[:12]}"
    options = (
        "--network", "host", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--volume", f"{home}:/home/pidlease",
        "--volume", f"{application}:/application:ro",
    )  # fmt: skip
    settings = {"fsync": "never", "default_partitions": str(_PARTITIONS)}
    with PidleaseServer(tmp_path / "server", settings=settings) as server:
        _fill(server)
        submit = ("spark-submit", "/application/copy_numbers.py")
        command = (*options, image, *submit, server.bootstrap, server.http_url)
        docker("run", "--detach", "--name", name, *command)
        try:

            def copies() -> bool:
                state = docker("inspect", "--format", "{{.State.Running}}", name)
                assert state == "true", _log(name)
                return bool(_copied(server))

            until(copies, "the first copies", 0.1)
            docker("kill", name)
            assert len(_copied(server)) < _COUNT
        finally:
            docker("rm", "--force", name)
        docker("run", "--rm", *command, timeout_s=WAIT_S)
        for partition in range(_PARTITIONS):
            found = [int(each.value) for each in _copied(server) if each.partition == partition]
            assert found == list(range(partition, _COUNT, _PARTITIONS))
        audit = ("pidlease", "spark", "audit", "--log", f"kafka:{server.bootstrap}")
        docker("run", "--rm", *options, image, *audit, timeout_s=WAIT_S)


def test_what_is_in_it(image: str) -> None:
    config = json.loads(docker("inspect", "--format", "{{json .Config}}", image))
    assert config["User"] == "10001:10001"
    script = "command -v gcc cc make; python -m pip --version; exit 0"
    assert docker("run", "--rm", "--entrypoint", "sh", image, "-c", script) == ""
    assert "Usage" in docker("run", "--rm", "--read-only", "--tmpfs", "/tmp", image)
