"""One real ZooKeeper for the tests of a module; each test has a chroot of its own."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper, ZooKeeperConfig
from tests.servers.waiting import WAIT_S
from tests.servers.zookeeper import ZooKeeperServer

Connect = Callable[..., ZooKeeper]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def connect(server: ZooKeeperServer) -> Iterator[Connect]:
    """Makes connections to the same chroot, that are closed in the end."""
    made: list[ZooKeeper] = []
    chroot = f"/a/{uuid.uuid4().hex}"

    def connect(**options: object) -> ZooKeeper:
        settings: dict[str, object] = {"session_seconds": 20.0, "timeout_seconds": 30.0, **options}
        hosts = settings.pop("hosts", server.hosts + chroot)
        zookeeper = ZooKeeper(ZooKeeperConfig(hosts, **settings))  # type: ignore[arg-type]
        made.append(zookeeper)
        zookeeper.start()
        zookeeper.wait(WAIT_S)
        return zookeeper

    yield connect
    for each in made:
        each.close()
