"""A real Kafka behind the proxy, and a real ZooKeeper beside it, for `make demo-kafka`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from deploy.demo.proxy_process import DemoError
from tests.servers.kafka import KafkaServer, unavailable_reason
from tests.servers.zookeeper import ZooKeeperServer

_CHROOT: Final = "pidlease"
#: A proxy that was killed leaves a session behind; nobody waits for it, but it is told.
_SESSION_SECONDS: Final = "4"


class Behind:
    """What the proxy has behind it.

    Parameters:
        kafka: one broker.
        zookeeper: where PIDs come from.
    """

    def __init__(self, kafka: KafkaServer, zookeeper: ZooKeeperServer) -> None:
        self._kafka: Final = kafka
        self.bootstrap: Final = kafka.bootstrap
        self.arguments: Final = (
            *("--log", "kafka", "--upstream", kafka.bootstrap),
            *("--zookeeper", f"{zookeeper.hosts}/{_CHROOT}"),
            *("--zookeeper-session-seconds", _SESSION_SECONDS),
        )

    def kill_now(self) -> None:
        """Kill -9 of the broker."""
        self._kafka.process.kill9()

    async def restart(self) -> None:
        """Start the broker again, on what it has on its disk."""
        await asyncio.to_thread(self._kafka.start)


@asynccontextmanager
async def behind(directory: Path) -> AsyncIterator[Behind]:
    """Start both; when this ends, they are gone.

    Parameters:
        directory: for their data.

    Raises:
        DemoError: they cannot run here; the message says what is missing.
    """
    reason = unavailable_reason()
    if reason is not None:
        raise DemoError(f"no Kafka can be started here: {reason}")
    zookeeper, kafka = ZooKeeperServer(directory / "zookeeper"), KafkaServer(directory / "kafka")
    try:
        await asyncio.to_thread(zookeeper.start)
        await asyncio.to_thread(kafka.start)
        yield Behind(kafka, zookeeper)
    finally:
        await asyncio.to_thread(kafka.process.kill9)
        await asyncio.to_thread(zookeeper.kill9)
