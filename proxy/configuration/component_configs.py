"""Makes the components' configurations from the settings."""

import resource
from collections.abc import Iterable
from typing import NamedTuple

from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeperConfig
from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.engine.engine import EngineConfig
from pidlease.engine.maintenance import MaintenanceConfig
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.storage.errors import DataFolderError
from proxy.configuration.named_listeners import NamedListener, kafka_listeners
from proxy.configuration.settings import Settings, split_address
from proxy.http.http_listener import StreamsConfig
from proxy.http.record_routes import RecordLimits
from proxy.kafka.groups.group_steps import GroupLimits
from proxy.kafka.listener_config import AdvertisedListener, ClusterConfig, KafkaListenerConfig
from proxy.security.security_config import (
    ListenerSecurity,
    MemberSecurity,
    SecurityConfig,
    TlsFiles,
    TokenConfig,
)

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
    """Return the Kafka listeners' configuration."""
    listeners = advertised_listeners(settings)
    default = listeners[0]
    return KafkaListenerConfig(
        cluster=ClusterConfig(
            cluster_id,
            default.host,
            default.port,
            auto_create=settings.auto_create_topics,
            default_partitions=settings.default_partitions,
            listeners=listeners if default.name else (),
        ),
        log=log_config(settings),
        request_bytes_max=settings.request_bytes_max,
        batch_bytes_max=settings.batch_bytes_max,
        fetch_bytes_max=settings.fetch_bytes_max,
        memory_bytes_max=settings.memory_bytes_max,
        connections_max=settings.connections_max,
        idle_seconds=settings.idle_seconds,
    )


def advertised_listeners(settings: Settings) -> tuple[AdvertisedListener, ...]:
    """Return what clients connect to, by listener; the first one is the default listener."""
    return tuple(
        AdvertisedListener(each.name, *split_address(each.advertised))
        for each in kafka_listeners(settings)
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


class _Exposed(NamedTuple):
    """A listener that may be open to other machines.

    Attributes:
        option: what its errors name.
        remedy: how its clients would log in by TLS.
    """

    option: str
    address: str
    security: ListenerSecurity
    remedy: str


def check_exposure(settings: Settings) -> None:
    """Check the listen addresses: beyond loopback only with logins by TLS, or --insecure.

    Raises:
        DataFolderError: other machines could connect, or clients could not.
    """
    security = security_config(settings)
    listeners = [_exposed_kafka(each) for each in kafka_listeners(settings)]
    others = {"http_listen": security.http}
    if settings.metrics_listen is not None:
        others["metrics_listen"] = security.metrics
    for name, listener in others.items():
        remedy = f"say --{name.replace('_listen', '-security-protocol')} SASL_SSL"
        option = f"--{name.replace('_', '-')}"
        listeners.append(_Exposed(option, getattr(settings, name), listener, remedy))
    addresses: dict[str, str] = {}
    for each in listeners:
        host, _ = split_address(each.address)
        logs_in = each.security.tls and (
            each.security.login or settings.ssl_client_auth == "required"
        )
        if (
            host not in ("localhost", "::1")
            and not host.startswith("127.")
            and not logs_in
            and not settings.insecure
        ):
            raise DataFolderError(
                f"{each.option} {host} is open to other machines, and clients need no login by TLS"
                f" there; {each.remedy}, listen on 127.0.0.1, or say --insecure"
            )
        if each.address in addresses:
            raise DataFolderError(
                f"{addresses[each.address]} and {each.option} are both {each.address}; give each"
                " its own"
            )
        addresses[each.address] = each.option
    if not settings.listeners:
        listen, _ = split_address(settings.kafka_listen)
        every = listen in ("0.0.0.0", "::")  # noqa: S104 - compared
        if every and settings.kafka_advertise is None:
            raise DataFolderError(
                f"--kafka-listen {listen} is no address that a client can connect to; give one by"
                " --kafka-advertise HOST:PORT"
            )
    listen, _ = split_address(settings.http_listen)
    every = listen in ("0.0.0.0", "::")  # noqa: S104 - compared
    if settings.shared and every and settings.http_advertise is None:
        raise DataFolderError(
            f"--http-listen {listen} is no address at which other active servers reach this one;"
            " give one by --http-advertise HOST:PORT"
        )


def _exposed_kafka(listener: NamedListener) -> _Exposed:
    remedy = "say --kafka-security-protocol SASL_SSL"
    if listener.name:
        remedy = f"say --listener-security-protocol-map {listener.name}:SASL_SSL"
    security = _listener_security(listener.protocol)
    return _Exposed(listener.option, listener.address, security, remedy)


def security_config(settings: Settings) -> SecurityConfig:
    """Return how the listeners are secured.

    Raises:
        DataFolderError: settings contradict each other, or one is missing.
    """
    listeners = kafka_listeners(settings)
    kafka = {each.name: _listener_security(each.protocol) for each in listeners}
    http = _listener_security(settings.http_security_protocol)
    metrics = _listener_security(settings.metrics_security_protocol)
    for name in ("http", "metrics"):
        if getattr(settings, f"{name}_security_protocol") == "SASL_PLAINTEXT":
            raise DataFolderError(
                f"--{name}-security-protocol SASL_PLAINTEXT would send passwords in clear; say"
                " SASL_SSL"
            )
    if settings.metrics_listen is None and not metrics.is_plain:
        raise DataFolderError("--metrics-security-protocol needs --metrics-listen")
    if settings.acls == "kafka" and settings.log != "kafka":
        raise DataFolderError("--acls kafka needs --log kafka: the embedded log has --acls file")
    has_login = any(each.login for each in kafka.values())
    has_tls = any(each.tls for each in (*kafka.values(), http, metrics))
    return SecurityConfig(
        kafka=kafka[listeners[0].name],
        kafka_by_name=kafka if listeners[0].name else {},
        http=http,
        metrics=metrics,
        mechanisms=_mechanisms(settings, listeners) if has_login else (),
        tls_files=_tls_files(settings) if has_tls else None,
        members=_member_security(settings, http),
        mapping_rules=settings.ssl_principal_mapping_rules,
        acls=settings.acls != "off",
        acls_of_kafka=settings.acls == "kafka",
        super_users=tuple(filter(None, settings.super_users.split(";"))),
        allow_if_none=settings.allow_everyone_if_no_acl_found,
        reauth_seconds=settings.connections_max_reauth_ms / 1000,
        login_seconds=settings.sasl_login_seconds,
        login_bytes_max=settings.sasl_server_max_receive_bytes,
        tokens=_token_config(settings),
        audit_log=settings.audit_log,
        quota_window_num=settings.quota_window_num,
        quota_window_seconds=settings.quota_window_size_seconds,
    )


def _listener_security(protocol: str) -> ListenerSecurity:
    return ListenerSecurity(tls=protocol.endswith("SSL"), login=protocol.startswith("SASL"))


def _mechanisms(settings: Settings, listeners: Iterable[NamedListener]) -> tuple[str, ...]:
    found = tuple(settings.sasl_enabled_mechanisms.split(","))
    in_clear = [each for each in found if not each.startswith("SCRAM")]
    without_tls = [each for each in listeners if each.protocol == "SASL_PLAINTEXT"]
    if in_clear and without_tls:
        remedy = _exposed_kafka(without_tls[0]).remedy.removeprefix("say ")
        raise DataFolderError(
            f"--sasl-enabled-mechanisms has {in_clear[0]}, which sends a secret in clear; it needs"
            f" {remedy}"
        )
    if "OAUTHBEARER" in found and not settings.sasl_oauthbearer_jwks_endpoint_url:
        raise DataFolderError(
            "--sasl-enabled-mechanisms has OAUTHBEARER; it needs"
            " --sasl-oauthbearer-jwks-endpoint-url"
        )
    return found


def _tls_files(settings: Settings) -> TlsFiles:
    certificate, key = settings.ssl_certificate, settings.ssl_key
    if certificate is None or key is None:
        raise DataFolderError("TLS needs --ssl-certificate and --ssl-key")
    if settings.ssl_client_auth != "none" and settings.ssl_client_ca is None:
        raise DataFolderError(
            f"--ssl-client-auth {settings.ssl_client_auth} needs --ssl-client-ca: the CA"
            " certificates to trust"
        )
    return TlsFiles(
        certificate, key, settings.ssl_key_password.get_secret_value(), settings.ssl_client_ca,
        settings.ssl_client_auth,
    )  # fmt: skip


def _member_security(settings: Settings, http: ListenerSecurity) -> MemberSecurity | None:
    principals = tuple(filter(None, settings.server_principals.split(";")))
    if not (settings.shared and http.tls):
        if principals:
            raise DataFolderError(
                "--server-principals needs --shared, and --http-security-protocol SSL or SASL_SSL:"
                " active servers know one another by TLS"
            )
        return None
    if not principals or settings.ssl_client_auth == "none":
        raise DataFolderError(
            "--shared with TLS on the HTTP listener needs --server-principals, --ssl-client-ca, and"
            " --ssl-client-auth requested or required: active servers send requests on to one"
            " another, and know one another by their certificates"
        )
    host, _ = split_address(settings.http_advertise or settings.http_listen)
    return MemberSecurity(frozenset(each.removeprefix("User:") for each in principals), host)


def _token_config(settings: Settings) -> TokenConfig | None:
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    if not url:
        return None
    audiences = tuple(
        filter(None, map(str.strip, settings.sasl_oauthbearer_expected_audience.split(",")))
    )
    if not audiences or not settings.sasl_oauthbearer_expected_issuer:
        raise DataFolderError(
            "--sasl-oauthbearer-jwks-endpoint-url needs --sasl-oauthbearer-expected-audience and"
            " --sasl-oauthbearer-expected-issuer: tokens for other services do not count"
        )
    return TokenConfig(
        jwks_url=url,
        audiences=audiences,
        issuer=settings.sasl_oauthbearer_expected_issuer,
        user_claim=settings.sasl_oauthbearer_sub_claim_name,
        skew_seconds=settings.sasl_oauthbearer_clock_skew_seconds,
        refresh_seconds=settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
    )


def open_logs_max(connections_max: int) -> int:
    """Return how many partitions may keep their four files open, beside connections.

    Parameters:
        connections_max: those of Kafka clients; as many of HTTP clients.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _OPEN_LOGS_MOST
    left = soft - min(2 * connections_max, soft // 2) - _OTHER_FILES
    # Readers keep a segment of every eighth partition open.
    return max(_OPEN_LOGS_LEAST, min(left * 8 // 33, _OPEN_LOGS_MOST))


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
