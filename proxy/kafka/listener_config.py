"""The configuration of the Kafka listener."""

from dataclasses import dataclass, field
from typing import NamedTuple

from pidlease.core.log_config import LogConfig


class AdvertisedListener(NamedTuple):
    """A listener as its clients see it.

    Attributes:
        name: empty: the only one.
        host: the host name that its clients connect to.
        port: the port that its clients connect to.
    """

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The cluster as clients see it, and the creation of topics.

    Attributes:
        cluster_id: the data directory's.
        host: the host name that clients of the default listener connect to.
        port: the port that clients of the default listener connect to.
        auto_create: whether Metadata creates a topic that does not exist.
        default_partitions: partitions of a topic that is created without their number.
        listeners: the named listeners, the default one first; empty: there is one without a name.
    """

    cluster_id: str
    host: str
    port: int
    auto_create: bool = True
    default_partitions: int = 1
    listeners: tuple[AdvertisedListener, ...] = ()

    def addresses(self) -> dict[str, tuple[str, int]]:
        """Return what clients connect to, by the name of their listener."""
        if not self.listeners:
            return {"": (self.host, self.port)}
        return {each.name: (each.host, each.port) for each in self.listeners}


@dataclass(frozen=True, slots=True)
class KafkaListenerConfig:
    """The listener's configuration.

    Attributes:
        log: the settings of topics without their own.
        request_bytes_max: Kafka's socket.request.max.bytes.
        batch_bytes_max: Kafka's message.max.bytes.
        fetch_bytes_max: the largest Fetch response; its first batch may be larger.
        memory_bytes_max: memory for requests and responses of all connections together.
        connections_max: concurrent connections.
        idle_seconds: a connection without requests is closed after this time.
    """

    cluster: ClusterConfig
    log: LogConfig = field(default_factory=LogConfig)
    request_bytes_max: int = 100 << 20
    batch_bytes_max: int = 1_048_588
    fetch_bytes_max: int = 16 << 20
    memory_bytes_max: int = 256 << 20
    connections_max: int = 10_000
    idle_seconds: float = 600.0
