"""A real Kafka, in front of which the proxy runs, and a real ZooKeeper, where PIDs come from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from deploy.demo import DemoError
from tests.servers import kafka
from tests.servers.kafka import KafkaServer
from tests.servers.zookeeper import ZooKeeperServer, unavailable_reason

_CHROOT: Final = "pidlease"
#: How long the session of a killed proxy lives on in ZooKeeper.
_SESSION_SECONDS: Final = "4"


class Upstream(NamedTuple):
    """A Kafka, and the settings of a proxy that runs in front of it."""

    kafka: KafkaServer
    settings: dict[str, str]


@contextmanager
def real_upstream(directory: Path) -> Iterator[Upstream]:
    """Start a Kafka and a ZooKeeper, and end both.

    Raises:
        DemoError: they cannot run here; the message says what is missing.
    """
    if reason := kafka.unavailable_reason():
        raise DemoError(f"no Kafka can be started here: {reason}")
    with (
        ZooKeeperServer(directory / "zookeeper") as zookeeper,
        KafkaServer(directory / "kafka") as broker,
    ):
        settings = {
            "log": "kafka",
            "upstream": broker.bootstrap,
            "zookeeper": f"{zookeeper.hosts}/{_CHROOT}",
            "zookeeper_session_seconds": _SESSION_SECONDS,
        }
        yield Upstream(broker, settings)


@contextmanager
def coordinator(directory: Path, log: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    """Start a ZooKeeper where that is possible: PIDs come from it, otherwise from a file.

    Parameters:
        directory: for its data.
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
