"""The image, built and run: killed, stopped, as another user, on a root that is read-only."""

import json
import os
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from deploy.package.archives import unpack
from pidlease.client import BlockingProducer
from tests.crash.readback import consume
from tests.deploy.docker_daemon import (
    BASE,
    ROOT,
    Container,
    build_image,
    container,
    docker,
    docker_missing,
    volume,
)
from tests.servers.waiting import WAIT_S, until

_MB: Final = 1_000_000
#: Unpacked; docs/operate/install.md says how much it is.
_OVER_BASE_MAX_MB: Final = 150
_DIRECTORIES: Final = ROOT / "tests" / "data" / "directories"
#: The grace that docs/operate/install.md names.
_GRACE_S: Final = 90
_COUNT: Final = 2000

_REASON = docker_missing()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))


@pytest.fixture(scope="module")
def image() -> str:
    return build_image()


@pytest.fixture
def data() -> Iterator[str]:
    with volume() as name:
        yield name


def _wait_ready(server: Container) -> None:
    def ready() -> bool:
        assert server.state()["Running"], server.log()
        try:
            with urllib.request.urlopen(f"{server.http_url}/readyz", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    until(ready, "the server to be ready", 0.1)


def test_a_kill_loses_nothing_that_was_acknowledged(image: str, data: str) -> None:
    values = [str(number).encode() for number in range(_COUNT)]
    with container(image, data) as server:
        _wait_ready(server)
        with BlockingProducer(
            bootstrap_servers=server.bootstrap, leases=server.http_url, name="n"
        ) as producer:
            sent = [producer.send("t", value, partition=0) for value in values[: _COUNT // 2]]
            sent[0].result(WAIT_S)
            server.kill()
            sent += [producer.send("t", value, partition=0) for value in values[_COUNT // 2 :]]
            server.start()
            offsets = [each.result(WAIT_S).offset for each in sent]
        _wait_ready(server)
        stored = [each.value for each in consume(server.bootstrap, "t", 1)]
    assert stored == values
    # A duplicate of an older batch has no offset.
    assert all(found in (None, place) for place, found in enumerate(offsets))


def _events(server: Container, event: str) -> list[dict[str, Any]]:
    text = server.log()
    assert "Traceback" not in text, text
    lines = map(json.loads, text.splitlines())
    return [line for line in lines if line["event"] == event]


def _append(server: Container, body: bytes, number: int) -> dict[str, Any]:
    """Append over HTTP under a producer id, compressed by zstd."""
    request = urllib.request.Request(
        f"{server.http_url}/v1/topics/http/partitions/0/records",
        data=pa.compress(body, codec="zstd", asbytes=True),
        headers={
            "Content-Type": "application/octet-stream", "Content-Encoding": "zstd",
            "Producer-Id": "meter-3", "Producer-Epoch": "0", "Producer-Seq": str(number),
        },
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        found: dict[str, Any] = json.load(response)
    return found


def test_its_snapshots_and_codecs(image: str, data: str) -> None:
    """What the build leaves out of the packages, and strips, is not missed."""
    batches = 60
    with container(image, data, "--env", "PIDLEASE_SNAPSHOT_BATCHES=50") as server:
        _wait_ready(server)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            client = Producer({"bootstrap.servers": server.bootstrap, "compression.type": codec})
            client.produce(codec, b"abc" * 100, partition=0)
            assert client.flush(WAIT_S) == 0
            # Over HTTP the server unpacks the batch.
            path = f"{server.http_url}/v1/topics/{codec}/partitions/0/records?offset=0"
            with urllib.request.urlopen(path, timeout=WAIT_S) as response:
                (record,) = json.load(response)["records"]
            assert record["value"] == "abc" * 100
        for number in range(batches):
            assert _append(server, b"abc" * 100, number)["offset"] == number
        until(lambda: bool(_events(server, "snapshot")), "a snapshot", 0.1)
        server.kill()
        server.start()
        until(lambda: bool(_events(server, "recovered")[1:]), "the server to recover", 0.1)
        assert _events(server, "recovered")[1]["producers"] > 0
        assert not _events(server, "snapshot skipped")
        _wait_ready(server)
        assert _append(server, b"abc" * 100, batches - 1)["duplicate"]
        assert server.stop(_GRACE_S) == 0
    mount = f"{data}:/var/lib/pidlease"
    docker("run", "--rm", "--read-only", "--volume", mount, image, "verify")


@pytest.mark.parametrize(
    "archive", sorted(_DIRECTORIES.glob("*.tar.xz")), ids=lambda path: path.name.split(".tar")[0]
)
def test_it_reads_the_snapshots_of_earlier_versions(
    image: str, archive: Path, tmp_path: Path
) -> None:
    with tarfile.open(archive) as packed:
        unpack(packed, tmp_path)
    folder = tmp_path / "data"
    # As the user of the folder: verify takes its lock.
    user = f"{os.getuid()}:{os.getgid()}"
    options = ("--rm", "--read-only", "--user", user, "--volume", f"{folder}:/var/lib/pidlease")
    report = json.loads(docker("run", *options, image, "verify", "--json"))
    assert report["totals"]["snapshots"] > 0
    assert report["findings"] == []


def test_it_stops_within_its_grace(image: str, data: str) -> None:
    with container(image, data) as server:
        server.wait_healthy()
        assert server.stop(_GRACE_S) == 0
        events = [json.loads(line)["event"] for line in server.log().splitlines()]
        assert events[-1] == "stopped"


def test_as_a_foreign_user(image: str, data: str) -> None:
    """Some platforms choose the user's number, in group 0."""
    with container(image, data, "--user", "12345:0") as server:
        _wait_ready(server)
        with BlockingProducer(
            bootstrap_servers=server.bootstrap, leases=server.http_url
        ) as producer:
            assert producer.send_and_wait("t", b"1", partition=0).offset == 0


def test_a_folder_of_a_foreign_user(image: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o777)
    with container(image, str(folder), "--user", "12345:12345") as server:
        _wait_ready(server)
        assert server.stop(_GRACE_S) == 0
    assert (folder / "meta.json").stat().st_uid == 12345


def test_what_is_in_it(image: str) -> None:
    config = json.loads(docker("inspect", "--format", "{{json .Config}}", image))
    assert config["User"] == "10001:10001"
    script = "command -v gcc cc c++ ld make; /opt/pidlease/bin/python -m pip --version; exit 0"
    assert docker("run", "--rm", "--entrypoint", "sh", image, "-c", script) == ""
    assert docker("run", "--rm", "--read-only", image, "--version")
    whole, base = (int(docker("inspect", "--format", "{{.Size}}", each)) for each in (image, BASE))
    assert (whole - base) / _MB < _OVER_BASE_MAX_MB
