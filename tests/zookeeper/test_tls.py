"""TLS to a real ZooKeeper, which asks for the client's certificate."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pidlease.coordination.zookeeper.zookeeper_connection import (
    ZooKeeper,
    ZooKeeperConfig,
    ZooKeeperError,
)
from pidlease.coordination.zookeeper.zookeeper_sequence import ZooKeeperSequence
from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.servers.authority import Authority, needs_openssl
from tests.servers.zookeeper import ZooKeeperServer
from tests.servers.zookeeper.marks import needs_zookeeper

pytestmark = [
    needs_zookeeper,
    needs_openssl,
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The TLS port of a ZooKeeper whose certificate is for the loopback address."""
    (port,) = free_ports(1)
    own = authority.issue("server", f"IP:{LOOPBACK}")
    store = authority.folder / "store.pem"
    store.write_text(own.key.read_text() + own.certificate.read_text())
    options = {
        "secureClientPort": str(port),
        "secureClientPortAddress": LOOPBACK,
        "ssl.keyStore.location": str(store),
        "ssl.trustStore.location": str(authority.root.certificate),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
    }
    netty = "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
    folder = tmp_path_factory.mktemp("zookeeper")
    with ZooKeeperServer(folder, options=options, jvm_options=(netty,)):
        yield port


def connected(config: ZooKeeperConfig, seconds: float) -> int:
    """The first number of a PID block."""
    zookeeper = ZooKeeper(config)
    zookeeper.start()
    try:
        zookeeper.wait(seconds)
        return ZooKeeperSequence(zookeeper, "me", lambda: 1, 1).take().first
    finally:
        zookeeper.close()


def test_both_sides_know_one_another(secure: int, authority: Authority) -> None:
    own = authority.issue("client")
    config = ZooKeeperConfig(
        f"{LOOPBACK}:{secure}/tls",
        tls=True,
        ca=authority.root.certificate,
        certificate=own.certificate,
        key=own.key,
    )
    assert connected(config, 30) == 1


@pytest.mark.parametrize("wrong", ["authority", "client", "name"])
def test_who_is_not_known_is_refused(
    secure: int, authority: Authority, tmp_path: Path, wrong: str
) -> None:
    """A server of another authority, a client of another, a certificate for another address."""
    other = Authority(tmp_path)
    own = (other if wrong == "client" else authority).issue("client")
    config = ZooKeeperConfig(
        # The same server, by an address that its certificate does not have.
        f"{'localhost' if wrong == 'name' else LOOPBACK}:{secure}/tls",
        tls=True,
        ca=(other if wrong == "authority" else authority).root.certificate,
        certificate=own.certificate,
        key=own.key,
    )
    with pytest.raises(ZooKeeperError, match="no connection"):
        connected(config, 2)
