"""Makes the components' configurations from the settings."""

import resource

from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeperConfig
from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.engine.engine import EngineConfig
from pidlease.engine.maintenance import MaintenanceConfig
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.storage.errors import DataFolderError
from proxy.configuration.settings import Settings, split_address
from proxy.http.http_listener import StreamsConfig
from proxy.http.record_routes import RecordLimits
from proxy.kafka.groups.group_steps import GroupLimits
from proxy.kafka.listener_config import ClusterConfig, KafkaListenerConfig

#: Open files beside those of partitions and clients: snapshots, running reads and others.
_OTHER_FILES = 200
_OPEN_LOGS_LEAST = 16
_OPEN_LOGS_MOST = 5000


def engine_config(settings: Settings) -> EngineConfig:
    """Return the engine's configuration."""
    return EngineConfig(
        lease_ms=int(settings.lease_seconds * 1000),
        ring_capacity=settings.ring_capacity,
        keys_max=settings.idempotency_keys_max,
        judging=settings.judging == "on",
        partitions_max=settings.partitions_max,
        maintenance=MaintenanceConfig(
            snapshot_batches=settings.snapshot_batches,
            snapshot_seconds=settings.snapshot_seconds,
            flush_seconds=settings.flush_seconds,
            retention_seconds=settings.retention_check_seconds,
        ),
    )


def log_config(settings: Settings) -> LogConfig:
    """Return the defaults of topics."""
    return LogConfig(
        segment_bytes=settings.segment_bytes,
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
        fsync=FsyncPolicy(settings.fsync),
    )


def listener_config(settings: Settings, cluster_id: str) -> KafkaListenerConfig:
    """Return the Kafka listener's configuration."""
    host, port = split_address(settings.kafka_advertise or settings.kafka_listen)
    return KafkaListenerConfig(
        cluster=ClusterConfig(
            cluster_id,
            host,
            port,
            auto_create=settings.auto_create_topics,
            default_partitions=settings.default_partitions,
        ),
        log=log_config(settings),
        request_bytes_max=settings.request_bytes_max,
        batch_bytes_max=settings.batch_bytes_max,
        fetch_bytes_max=settings.fetch_bytes_max,
        memory_bytes_max=settings.memory_bytes_max,
        connections_max=settings.connections_max,
        idle_seconds=settings.idle_seconds,
    )


def record_limits(settings: Settings) -> RecordLimits:
    """Return the bounds of the records endpoint."""
    return RecordLimits(
        settings.batch_bytes_max, settings.memory_bytes_max // 4, settings.http_reorder_ms
    )


def streams_config(settings: Settings) -> StreamsConfig:
    """Return how streams are served."""
    return StreamsConfig(settings.stream_prefix, settings.stream_poll_seconds)


def group_limits(settings: Settings) -> GroupLimits:
    """Return the bounds of consumer groups."""
    return GroupLimits(
        session_min_ms=int(settings.group_min_session_seconds * 1000),
        session_max_ms=int(settings.group_max_session_seconds * 1000),
        initial_rebalance_ms=int(settings.group_initial_rebalance_seconds * 1000),
        members_max=settings.group_members_max,
        groups_max=settings.groups_max,
        memory_bytes_max=settings.group_memory_bytes_max,
        offsets_retention_ms=int(settings.offsets_retention_seconds * 1000),
    )


def check_exposure(settings: Settings) -> None:
    """Check the listen addresses: beyond loopback only with --insecure (no authentication yet).

    Raises:
        DataFolderError: other machines could connect, or clients could not.
    """
    for name in ("kafka_listen", "http_listen"):
        host, _ = split_address(getattr(settings, name))
        if (
            host not in ("localhost", "::1")
            and not host.startswith("127.")
            and not settings.insecure
        ):
            raise DataFolderError(
                f"--{name.replace('_', '-')} {host} is open to other machines, and there is no"
                " authentication yet; listen on 127.0.0.1, or say --insecure"
            )
    if settings.kafka_listen == settings.http_listen:
        raise DataFolderError(
            f"--kafka-listen and --http-listen are both {settings.http_listen}; give each its own"
        )
    listen, _ = split_address(settings.kafka_listen)
    if listen in ("0.0.0.0", "::") and settings.kafka_advertise is None:  # noqa: S104 - compared
        raise DataFolderError(
            f"--kafka-listen {listen} is no address that a client can connect to; give one by"
            " --kafka-advertise HOST:PORT"
        )


def open_logs_max(connections_max: int) -> int:
    """Return how many partitions may keep their four files open, beside `connections_max`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _OPEN_LOGS_MOST
    left = soft - min(connections_max, soft // 2) - _OTHER_FILES
    return max(_OPEN_LOGS_LEAST, min(left // 4, _OPEN_LOGS_MOST))


def upstream_config(settings: Settings) -> UpstreamConfig:
    """Return the configuration of the connection to Kafka."""
    brokers = (settings.upstream or "").split(",")
    return UpstreamConfig(
        bootstrap=tuple(split_address(each.strip()) for each in brokers),
        tls=settings.upstream_tls,
        ca=settings.upstream_ca,
        certificate=settings.upstream_certificate,
        key=settings.upstream_key,
        mechanism="" if settings.upstream_sasl == "none" else settings.upstream_sasl,
        username=settings.upstream_username,
        password=settings.upstream_password.get_secret_value(),
        request_seconds=settings.upstream_timeout_seconds,
        metadata_seconds=settings.upstream_metadata_seconds,
    )


def zookeeper_config(settings: Settings) -> ZooKeeperConfig | None:
    """Return the configuration of the connection to ZooKeeper; None without --zookeeper."""
    if settings.zookeeper is None:
        return None
    return ZooKeeperConfig(
        hosts=settings.zookeeper,
        session_seconds=settings.zookeeper_session_seconds,
        timeout_seconds=settings.zookeeper_timeout_seconds,
        digest=settings.zookeeper_digest.get_secret_value(),
        tls=settings.zookeeper_tls,
        ca=settings.zookeeper_ca,
        certificate=settings.zookeeper_certificate,
        key=settings.zookeeper_key,
    )
