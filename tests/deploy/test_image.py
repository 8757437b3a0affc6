"""The image, built and run: killed, stopped, as another user, on a root that is read-only."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pidlease.client import BlockingProducer
from tests.crash.readback import consume
from tests.deploy.docker_daemon import (
    BASE,
    Container,
    build_image,
    container,
    docker,
    docker_missing,
    volume,
)
from tests.servers.waiting import WAIT_S, until

_MB: Final = 1_000_000
#: Unpacked. pyarrow and numpy alone are 150 MB of it.
_OVER_BASE_MAX_MB: Final = 260
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
            with urllib.request.urlopen(f"{server.url}/readyz", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    until(ready, "the server to be ready", 0.1)


def test_a_kill_loses_nothing_that_was_acknowledged(image: str, data: str) -> None:
    values = [str(number).encode() for number in range(_COUNT)]
    with container(image, data) as server:
        _wait_ready(server)
        with BlockingProducer(
            bootstrap_servers=server.bootstrap, leases=server.url, name="n"
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
        with BlockingProducer(bootstrap_servers=server.bootstrap, leases=server.url) as producer:
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
