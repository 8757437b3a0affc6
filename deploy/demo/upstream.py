"""A real Kafka, in front of which the proxy runs, and a real ZooKeeper, where PIDs come from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.demo import DemoError
from tests.servers import kafka
from tests.servers.kafka import KafkaServer
from tests.servers.zookeeper import ZooKeeperServer, unavailable_reason

_CHROOT: Final = "pidlease"
#: How long the session of a killed proxy lives on in ZooKeeper.
_SESSION_SECONDS: Final = "4"


class Upstream:
    """A Kafka and a ZooKeeper.

    Parameters:
        kafka: one broker.
        zookeeper: where PIDs come from.
    """

    def __init__(self, kafka: KafkaServer, zookeeper: ZooKeeperServer) -> None:
        self._kafka: Final = kafka
        self.bootstrap: Final = kafka.bootstrap
        self.settings: Final = {
            "log": "kafka",
            "upstream": kafka.bootstrap,
            "zookeeper": f"{zookeeper.hosts}/{_CHROOT}",
            "zookeeper_session_seconds": _SESSION_SECONDS,
        }

    def kill9(self) -> None:
        """Kill -9 of the broker."""
        self._kafka.process.kill9()

    def start(self) -> None:
        """Start the broker again, on the data on its disk."""
        self._kafka.start()


@contextmanager
def real_upstream(directory: Path) -> Iterator[Upstream]:
    """Start both, and end both.

    Raises:
        DemoError: they cannot run here; the message says what is missing.
    """
    if reason := kafka.unavailable_reason():
        raise DemoError(f"no Kafka can be started here: {reason}")
    with (
        ZooKeeperServer(directory / "zookeeper") as zookeeper,
        KafkaServer(directory / "kafka") as broker,
    ):
        yield Upstream(broker, zookeeper)


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
