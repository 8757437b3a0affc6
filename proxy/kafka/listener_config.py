"""The configuration of the Kafka listener."""

from dataclasses import dataclass, field

from pidlease.core.log_config import LogConfig


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The cluster as clients see it, and the creation of topics.

    Attributes:
        cluster_id: the data directory's.
        host: the host name that clients connect to.
        port: the port that clients connect to.
        auto_create: whether Metadata creates a topic that does not exist.
        default_partitions: partitions of a topic that is created without their number.
    """

    cluster_id: str
    host: str
    port: int
    auto_create: bool = True
    default_partitions: int = 1


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
