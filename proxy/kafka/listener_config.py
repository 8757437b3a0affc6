"""The settings of the Kafka listener, as `proxy/app.py` makes them."""

from dataclasses import dataclass, field

from pidlease.core.log_config import LogConfig


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """How the server describes itself, and makes topics.

    Attributes:
        cluster_id: of the data directory.
        host: where clients are to connect,
        port: and on which port.
        auto_create: whether a topic is made when it is first asked for.
        default_partitions: how many partitions a topic gets that does not say.
    """

    cluster_id: str
    host: str
    port: int
    auto_create: bool = True
    default_partitions: int = 1


@dataclass(frozen=True, slots=True)
class KafkaListenerConfig:
    """The settings of the listener.

    Attributes:
        cluster: how the server describes itself.
        log: the settings of topics that have none of their own.
        request_bytes_max: the largest request (Kafka's socket.request.max.bytes).
        batch_bytes_max: the largest batch (Kafka's message.max.bytes).
        fetch_bytes_max: the most that one answer to a Fetch holds, beyond its first batch.
        memory_bytes_max: what requests and answers of all connections together may hold.
        connections_max: clients at once.
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
