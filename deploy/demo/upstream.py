"""Starts a real Kafka as the log of the proxy, and perhaps a ZooKeeper as the coordinator."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from deploy.demo import DemoError
from tests.servers import kafka
from tests.servers.kafka import KafkaServer
from tests.servers.zookeeper import ZooKeeperServer, unavailable_reason

_CHROOT: Final = "pidlease"
#: How long the session of a killed proxy stays in ZooKeeper.
_SESSION_SECONDS: Final = "4"


class Upstream(NamedTuple):
    """Kafka, and the settings of a proxy that uses it as the log.

    Attributes:
        source: where PIDs come from.
    """

    kafka: KafkaServer
    settings: dict[str, str]
    source: str


@contextmanager
def real_upstream(directory: Path, *, with_zookeeper: bool) -> Iterator[Upstream]:
    """Run Kafka during the block.

    Parameters:
        with_zookeeper: run ZooKeeper as the coordinator; otherwise that is Kafka, too.

    Raises:
        DemoError: Kafka cannot run here; the message says what is missing.
    """
    if reason := kafka.unavailable_reason():
        raise DemoError(f"no Kafka can be started here: {reason}")
    with KafkaServer(directory / "kafka") as broker:
        settings = {"log": "kafka", "upstream": broker.bootstrap}
        if not with_zookeeper:
            yield Upstream(broker, settings | {"coordination": "kafka"}, "Kafka")
            return
        with ZooKeeperServer(directory / "zookeeper") as zookeeper:
            settings |= {
                "zookeeper": f"{zookeeper.hosts}/{_CHROOT}",
                "zookeeper_session_seconds": _SESSION_SECONDS,
            }
            yield Upstream(broker, settings, "ZooKeeper")


@contextmanager
def coordinator(directory: Path, log: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    """Run ZooKeeper during the block if possible; otherwise PIDs come from a file.

    Parameters:
        log: shows where PIDs come from.

    Yields:
        Where PIDs come from, and ZooKeeper's address; empty: there is none.
    """
    reason = unavailable_reason()
    server = ZooKeeperServer(directory)
    if reason is None:
        try:
            server.start()
        except RuntimeError as error:  # its jars cannot be fetched, or it does not start
            reason = str(error).partition("\n")[0].rstrip(":")
    if reason is not None:
        log(f"PIDs come from the file sequence: no ZooKeeper here ({reason})")
        yield "a file", ""
        return
    try:
        log(f"PIDs come from a real ZooKeeper at {server.hosts}/{_CHROOT}")
        yield "ZooKeeper", f"{server.hosts}/{_CHROOT}"
    finally:
        server.kill9()
