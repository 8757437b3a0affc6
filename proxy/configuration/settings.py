"""All settings: from the command line, from PIDLEASE_... variables, or from a TOML file."""

import difflib
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeperConfig
from pidlease.storage.file_faults import FaultPlan
from proxy.configuration.listener_lists import listener_addresses, listener_protocols
from proxy.security.certificate_names import PrincipalMapper

_PORT_MAX = 65_535
#: Variables that other commands read.
_OTHER_VARIABLES = (
    "PIDLEASE_URL",
    "PIDLEASE_SERVERS",
    "PIDLEASE_COMMAND_CONFIG",
    "PIDLEASE_FROM_COMMAND_CONFIG",
    "PIDLEASE_FROM_PASSWORD",
    "PIDLEASE_SECURITY_PROTOCOL",
    "PIDLEASE_SASL_MECHANISM",
    "PIDLEASE_USER_PASSWORD",
    "PIDLEASE_USER",
    "PIDLEASE_PASSWORD",
    "PIDLEASE_TOKEN",
    "PIDLEASE_TOKEN_FILE",
)
#: Variables that Kubernetes and Docker set in all containers near a service called pidlease.
_OF_A_SERVICE = re.compile(
    r"PIDLEASE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)


class SettingsError(Exception):
    """A setting is invalid; the message names it."""


_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")
#: The routes that no stream may hide.
_TAKEN_PATHS: Final = (
    "/v1/history/", "/v1/leases/", "/v1/outcomes/", "/v1/partitions/", "/v1/producers/",
    "/v1/refusals/", "/v1/servers/", "/v1/status/", "/v1/topics/", "/v1/topic-defaults/",
    "/console/", "/docs/", "/healthz/", "/metrics/", "/openapi.json/", "/readyz/",
)  # fmt: skip
_ORIGIN: Final = re.compile(r"https?://[^/,\s*?#@]+")


def _default_data_dir() -> Path:
    """Return a folder that any user may write, by the rules of the desktop's base directories."""
    home = os.environ.get("XDG_DATA_HOME", "")
    # By these rules, a relative path is ignored.
    folder = Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "share"
    return folder / "pidlease"


def _is_address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= _PORT_MAX:
        raise ValueError("is HOST:PORT, for example 127.0.0.1:9092")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("is HOST:PORT; an IPv6 address stands in brackets, like [::1]:9092")
    return value


def _is_address_list(value: str) -> str:
    for each in value.split(","):
        _is_address(each.strip())
    return value


def _is_listener_list(value: str) -> str:
    for address in listener_addresses(value).values():
        _is_address(address)
    return value


def _is_protocol_map(value: str) -> str:
    listener_protocols(value)
    return value


def _is_origin_list(value: str) -> str:
    for each in filter(None, value.split(",")):
        if each != "*" and not _ORIGIN.fullmatch(each):
            raise ValueError("is SCHEME://HOST[:PORT],..., for example https://example.org; or *")
    return value


def _is_path(value: str) -> str:
    if not _PATH.fullmatch(value) or f"{value}/".startswith(_TAKEN_PATHS) or value == "/v1":
        raise ValueError("is a path, for example /v1/stream, under which there are no other routes")
    return value


def _is_fault_plan(value: str) -> str:
    FaultPlan(value)
    return value


def _is_zookeeper(value: str) -> str:
    ZooKeeperConfig(value)
    return value


def _is_mapping_rules(value: str) -> str:
    PrincipalMapper(value)
    return value


def _is_mechanism_list(value: str) -> str:
    unknown = set(value.split(",")) - set(get_args(SaslMechanism))
    if unknown:
        names = ", ".join(get_args(SaslMechanism))
        raise ValueError(f"{min(unknown)!r} is none of {names}")
    return value


def _is_jwks_url(value: str) -> str:
    local = ("http://127.0.0.1:", "http://localhost:", "http://[::1]:")
    if value and not value.startswith(("https://", *local)):
        raise ValueError("is an https URL: whoever changes the keys on the way could log in")
    return value


def _is_principal_list(value: str) -> str:
    for each in filter(None, value.split(";")):
        if not each.startswith("User:") or each == "User:":
            raise ValueError(f"{each!r} is not User:NAME; several are separated by semicolons")
    return value


SaslMechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"]
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Address = Annotated[str, AfterValidator(_is_address)]
Positive = Annotated[int, Field(gt=0)]
#: Up to ten years; their milliseconds fit wherever they are stored.
Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86_400, allow_inf_nan=False)]


class Settings(BaseSettings):
    """The settings of `pidlease serve`: sizes in bytes, times in seconds unless the name says."""

    model_config = SettingsConfigDict(
        env_prefix="PIDLEASE_", extra="forbid", frozen=True, validate_default=True
    )

    data_dir: Path = Field(
        default_factory=_default_data_dir,
        description="directory of the log, the snapshots and the PID sequence",
    )
    listeners: Annotated[str, AfterValidator(_is_listener_list)] = Field(
        "",
        description="several addresses for Kafka clients, by names, instead of"
        " kafka_listen, kafka_advertise and kafka_security_protocol",
    )
    advertised_listeners: Annotated[str, AfterValidator(_is_listener_list)] = Field(
        "",
        description="what clients of these listeners connect to; default: the listener's own"
        " address",
    )
    kafka_listen: str = Field("127.0.0.1:9092", description="address for Kafka clients")
    kafka_advertise: Address | None = Field(
        None, description="address that Kafka clients connect to; default: kafka_listen"
    )
    http_listen: Address = Field(
        "127.0.0.1:8080", description="address for the HTTP API, health, metrics and status"
    )
    metrics_listen: Address | None = Field(
        None,
        description="address for metrics and health alone; then /metrics is not on http_listen",
    )
    console: bool = Field(
        default=True, description="serve the console, a page for operators, at / of the HTTP port"
    )
    cors_origins: Annotated[str, AfterValidator(_is_origin_list)] = Field(
        "",
        description="SCHEME://HOST,...: web pages that may use the HTTP API; *: all",
    )
    stream_prefix: Annotated[str, AfterValidator(_is_path)] = Field(
        "/v1/stream", description="where the paths of Durable Streams begin"
    )
    stream_poll_seconds: Seconds = Field(
        20.0, description="how long a long poll of a stream waits for more"
    )
    http_reorder_ms: int = Field(
        100,
        ge=0,
        le=60_000,
        description="how long an HTTP append waits for one that it overtook; 0: not at all",
    )
    insecure: bool = Field(
        default=False,
        description="listen beyond this machine although clients need no login by TLS there",
    )

    kafka_security_protocol: SecurityProtocol = Field(
        "PLAINTEXT", description="SSL: TLS; SASL_: clients log in with a user's name"
    )
    listener_security_protocol_map: Annotated[str, AfterValidator(_is_protocol_map)] = Field(
        "",
        description="security protocols of listeners; one called PLAINTEXT, SSL,"
        " SASL_PLAINTEXT or SASL_SSL needs no entry",
    )
    http_security_protocol: SecurityProtocol = Field(
        "PLAINTEXT",
        description="the same for the HTTP API; SASL_SSL: Basic, Bearer or a certificate",
    )
    metrics_security_protocol: SecurityProtocol = Field(
        "PLAINTEXT",
        description="the same for metrics_listen; PLAINTEXT: no rights needed",
    )
    ssl_certificate: Path | None = Field(
        None, description="certificate of the listeners, with its chain (PEM)"
    )
    ssl_key: Path | None = Field(None, description="key of ssl_certificate (PEM)")
    ssl_key_password: SecretStr = Field(
        SecretStr(""), description="of an encrypted key; better given by PIDLEASE_SSL_KEY_PASSWORD"
    )
    ssl_client_ca: Path | None = Field(
        None,
        description="CA certificates to trust for clients' certificates, and those of active"
        " servers (PEM)",
    )
    ssl_client_auth: Literal["none", "requested", "required"] = Field(
        "none", description="whether clients have certificates"
    )
    ssl_principal_mapping_rules: Annotated[str, AfterValidator(_is_mapping_rules)] = Field(
        "DEFAULT", description="RULE:PATTERN/REPLACEMENT/,...: users of clients' certificates"
    )
    server_principals: Annotated[str, AfterValidator(_is_principal_list)] = Field(
        "",
        description="User:NAME;...: the active servers, by their certificates (with shared, and TLS"
        " on the HTTP listener)",
    )
    sasl_enabled_mechanisms: Annotated[str, AfterValidator(_is_mechanism_list)] = Field(
        "SCRAM-SHA-256,SCRAM-SHA-512",
        description="of SCRAM-SHA-256, SCRAM-SHA-512, PLAIN and OAUTHBEARER",
    )
    sasl_server_max_receive_bytes: int = Field(
        64 << 10, ge=1024, le=1 << 20, description="largest request before the login"
    )
    sasl_login_seconds: Seconds = Field(10.0, description="how long a login may take")
    connections_max_reauth_ms: int = Field(
        0, ge=0, le=2**31 - 1, description="how long a login counts; 0: without limit (KIP-368)"
    )
    sasl_oauthbearer_jwks_endpoint_url: Annotated[str, AfterValidator(_is_jwks_url)] = Field(
        "", description="where the keys of tokens are (https)"
    )
    sasl_oauthbearer_expected_audience: str = Field(
        "", description="AUDIENCE,...: one of them is in each token"
    )
    sasl_oauthbearer_expected_issuer: str = Field("", description="issuer of all tokens")
    sasl_oauthbearer_sub_claim_name: str = Field(
        "sub", min_length=1, description="claim of a token with the user's name"
    )
    sasl_oauthbearer_clock_skew_seconds: float = Field(
        30.0, ge=0, le=300, description="how far the clock of a token's issuer may be off"
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = Field(
        3_600_000, ge=1000, le=7 * 86_400_000, description="how often to read the keys of tokens"
    )
    acls: Literal["off", "file", "kafka"] = Field(
        "off",
        description="clients need rights: file: by security/acls in the data directory; kafka: by"
        " Kafka's own ACLs (with log=kafka)",
    )
    super_users: Annotated[str, AfterValidator(_is_principal_list)] = Field(
        "", description="User:NAME;...: users that may do everything"
    )
    allow_everyone_if_no_acl_found: bool = Field(
        default=False, description="allow all what no ACL is about"
    )
    audit_log: Path | None = Field(
        None, description="file of logins, refusals and changes, as JSON lines"
    )
    quota_window_num: int = Field(
        11, ge=2, le=3600, description="samples of a quota's window; an idle client has one less"
    )
    quota_window_size_seconds: Seconds = Field(1.0, description="length of a sample")

    log: Literal["embedded", "kafka"] = Field(
        "embedded", description="log in the data directory, or in the Kafka cluster of --upstream"
    )
    upstream: Annotated[str, AfterValidator(_is_address_list)] | None = Field(
        None, description="HOST:PORT,... of Kafka's brokers (with log=kafka)"
    )
    upstream_tls: bool = Field(default=False, description="connect to Kafka by TLS")
    upstream_ca: Path | None = Field(None, description="CA certificates to trust for Kafka")
    upstream_certificate: Path | None = Field(None, description="certificate of pidlease for Kafka")
    upstream_key: Path | None = Field(None, description="key of upstream_certificate")
    upstream_sasl: Literal["none", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "none", description="SASL mechanism for Kafka"
    )
    upstream_username: str = Field("", description="SASL user")
    upstream_password: SecretStr = Field(
        SecretStr(""), description="SASL password; better given by PIDLEASE_UPSTREAM_PASSWORD"
    )
    upstream_timeout_seconds: float = Field(
        # Less than the time for which engine/appenders/applied_offset.py keeps doubts.
        30.0, gt=0, le=50, description="longest wait for a response of Kafka"
    )  # fmt: skip
    upstream_metadata_seconds: Seconds = Field(
        30.0, description="how often to read the cluster's metadata"
    )

    fsync: Literal["batch", "interval", "never"] = Field(
        "batch",
        description="fsync before each response, every flush-seconds, or only by the system",
    )
    flush_seconds: Seconds = Field(1.0, description="how often fsync=interval fsyncs")
    segment_bytes: int = Field(1 << 30, ge=1024, lt=2**31, description="size of a segment")
    retention_ms: int = Field(
        7 * 24 * 3600 * 1000, ge=-1, description="how long records are kept; -1: without limit"
    )
    retention_bytes: int = Field(-1, ge=-1, description="largest partition; -1: no limit")
    retention_check_seconds: Seconds = Field(300.0, description="how often to apply retention")

    auto_create_topics: bool = Field(default=True, description="create topics on first use")
    default_partitions: int = Field(
        1, gt=0, le=10_000, description="partitions of a topic created on first use"
    )
    partitions_max: Positive = Field(20_000, description="partitions of all topics together")

    judging: Literal["on", "off"] = Field("on", description="off: no idempotence at all")
    lease_seconds: Seconds = Field(24 * 3600.0, description="length of a lease")
    ring_capacity: int = Field(
        1_000_000, gt=0, le=50_000_000, description="size of the lease table"
    )
    idempotency_keys_max: int = Field(
        100_000, gt=0, le=50_000_000, description="idempotency keys at once, each for a lease"
    )

    zookeeper: Annotated[str, AfterValidator(_is_zookeeper)] | None = Field(
        None, description="HOST:PORT,.../CHROOT, the source of PIDs; default: see coordination"
    )
    zookeeper_digest: SecretStr = Field(
        SecretStr(""), description="USER:PASSWORD; better given by PIDLEASE_ZOOKEEPER_DIGEST"
    )
    zookeeper_tls: bool = Field(default=False, description="connect to ZooKeeper by TLS")
    zookeeper_ca: Path | None = Field(None, description="CA certificates to trust for ZooKeeper")
    zookeeper_certificate: Path | None = Field(
        None, description="certificate of pidlease for ZooKeeper"
    )
    zookeeper_key: Path | None = Field(None, description="key of zookeeper_certificate")
    zookeeper_session_seconds: Seconds = Field(10.0, description="silence that ends a session")
    zookeeper_timeout_seconds: Seconds = Field(
        5.0, description="longest wait for a call, and for the connection at the start"
    )

    coordination: Literal["auto", "files", "kafka"] = Field(
        "auto",
        description="what keeps PIDs, names and the owner: kafka (the topic __pidlease of the"
        " cluster), files (of data_dir), or auto: ZooKeeper if one is given, else kafka with"
        " log=kafka, else files",
    )

    shared: bool = Field(
        default=False,
        description="serve the cluster together with other active servers (with log=kafka, and"
        " PIDs in Kafka or ZooKeeper)",
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="active servers on this machine, which have kafka_listen or listeners, and"
        " http_listen, in common, and each the ports above by its number (with shared)",
    )
    http_advertise: Address | None = Field(
        None,
        description="address at which other active servers reach the HTTP port; default:"
        " http_listen",
    )

    snapshot_batches: Positive = Field(100_000, description="batches until the next snapshot")
    snapshot_seconds: Seconds = Field(
        60.0, description="time until the next snapshot, if it is over first"
    )

    groups_max: Positive = Field(100_000, description="consumer groups, with members or without")
    group_members_max: Positive = Field(10_000, description="members of a consumer group")
    group_memory_bytes_max: int = Field(
        64 << 20, ge=1 << 16, description="memory for the members of all groups"
    )
    group_initial_rebalance_seconds: float = Field(
        3.0, ge=0, le=3600, description="how long an empty group waits for more members"
    )
    group_min_session_seconds: Seconds = Field(6.0, description="shortest session of a member")
    group_max_session_seconds: Seconds = Field(1800.0, description="longest session of a member")
    offsets_max: Positive = Field(1_000_000, description="committed offsets of all groups")
    offsets_retention_seconds: Seconds = Field(
        7 * 24 * 3600.0, description="how long offsets of a group without members are kept"
    )

    request_bytes_max: int = Field(100 << 20, ge=1024, lt=2**31, description="largest request")
    batch_bytes_max: int = Field(1_048_588, ge=1024, lt=2**31, description="largest batch")
    fetch_bytes_max: int = Field(16 << 20, ge=1024, lt=2**31, description="largest Fetch response")
    memory_bytes_max: int = Field(
        256 << 20, ge=1 << 20, description="memory for requests and responses in flight"
    )
    connections_max: Positive = Field(
        10_000,
        description="concurrent connections of the Kafka listeners together; of each HTTP listener,"
        " too",
    )
    idle_seconds: Seconds = Field(600.0, description="time after which to close idle connections")
    io_threads: int = Field(8, gt=0, le=256, description="threads for reading and writing files")

    stop_delay_seconds: float = Field(
        0.0,
        ge=0,
        le=3600,
        description="how long /readyz reports a stop before the listeners close",
    )
    stop_seconds: Seconds = Field(60.0, description="longest stop; then the process is ended")

    log_format: Literal["console", "json"] = Field("console", description="format of log lines")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest level of log lines to write"
    )
    log_repeat_seconds: float = Field(
        10.0,
        ge=0,
        le=3600,
        description="how long repeated log lines are only counted; 0: all are written",
    )
    faults: Annotated[str, AfterValidator(_is_fault_plan)] = Field(
        "", description="for tests only: file operations to fail, delay, or die at"
    )

    @field_validator("kafka_listen")
    @classmethod
    def _is_an_address_if_it_counts(cls, value: str, info: ValidationInfo) -> str:
        return value if not value and info.data.get("listeners") else _is_address(value)

    @field_validator("upstream")
    @classmethod
    def _is_there_for_kafka(cls, value: str | None, info: ValidationInfo) -> str | None:
        if (value is None) is (info.data.get("log") == "kafka"):
            raise ValueError("is needed with log=kafka, and only then")
        return value

    @field_validator("coordination")
    @classmethod
    def _is_one_coordinator(cls, value: str, info: ValidationInfo) -> str:
        if value != "auto" and info.data.get("zookeeper") is not None:
            raise ValueError(f"{value} and zookeeper are two coordinators: name one")
        if value == "kafka" and info.data.get("log") != "kafka":
            raise ValueError("kafka needs log=kafka")
        return value

    @field_validator("shared")
    @classmethod
    def _has_what_it_shares(cls, value: bool, info: ValidationInfo) -> bool:  # noqa: FBT001
        if value and (info.data.get("log") != "kafka" or info.data.get("coordination") == "files"):
            raise ValueError(
                "needs log=kafka, and not coordination=files: without, there is nothing to share"
            )
        return value

    @field_validator("workers")
    @classmethod
    def _shares_with_the_other_workers(cls, value: int, info: ValidationInfo) -> int:
        if value > 1 and not info.data.get("shared"):
            raise ValueError("needs shared: each worker is an active server")
        if value > 1 and sys.platform != "linux":
            raise ValueError("needs Linux: elsewhere workers outlive a supervisor that is killed")
        return value

    @field_validator("group_max_session_seconds")
    @classmethod
    def _is_not_below_the_shortest(cls, value: float, info: ValidationInfo) -> float:
        # If the shortest itself is invalid, its own error is reported.
        if value < info.data.get("group_min_session_seconds", value):
            raise ValueError("is shorter than group_min_session_seconds")
        return value

    @property
    def coordinated_by_kafka(self) -> bool:
        """Whether PIDs, names and the owner are in the topic `__pidlease` of the cluster."""
        if self.coordination == "auto":
            return self.log == "kafka" and self.zookeeper is None
        return self.coordination == "kafka"


def split_address(value: str) -> tuple[str, int]:
    """Split a checked address into host and port."""
    host, _, port = value.rpartition(":")
    return host.strip("[]"), int(port)


def load_settings(config: Path | None, given: dict[str, Any]) -> Settings:
    """Combine the settings of command line, environment and file; the first of these counts.

    Parameters:
        config: a TOML file, or None.
        given: the options of the command line; None for those not given.

    Raises:
        SettingsError: a setting is unknown, missing or invalid.
    """
    values: dict[str, Any] = {}
    if config is not None:
        try:
            values = tomllib.loads(config.read_text())
        except (OSError, ValueError) as error:
            raise SettingsError(f"{config}: {error}") from error
    explicit = {name: value for name, value in given.items() if value is not None}
    fields: dict[str, Any] = {}
    for name, value in values.items():
        field = name.replace("-", "_")
        if field in fields:
            raise SettingsError(f"{config}: {field} is given twice, with - and with _")
        fields[field] = value
    for field in sorted(fields.keys() - Settings.model_fields.keys()):
        name = field.replace("_", "-")
        near = _nearest(name, [each.replace("_", "-") for each in Settings.model_fields])
        raise SettingsError(f"{config}: unknown setting {name}{near}")
    _check_variables()
    # The file only gives defaults: an environment variable, in any case, takes precedence.
    variables = {name.upper() for name in os.environ}
    fields = {
        name: value for name, value in fields.items() if f"PIDLEASE_{name.upper()}" not in variables
    }
    try:
        return Settings(**{**fields, **explicit})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'settings'}: {each['msg']}"
            f" (given: {each['input']!r})"
            if each["type"] != "missing"
            else f"{'.'.join(map(str, each['loc']))}: not given"
            for each in error.errors()
        )
        raise SettingsError(problems) from None


def _check_variables() -> None:
    """Refuse variables that would be ignored: a typing error would change nothing, silently.

    Raises:
        SettingsError: a PIDLEASE_ variable is of no setting, and of no other command.
    """
    prefix = Settings.model_config["env_prefix"]
    known = [*(f"{prefix}{name.upper()}" for name in Settings.model_fields), *_OTHER_VARIABLES]
    for name in sorted(os.environ):
        # pydantic reads variables in any case.
        upper = name.upper()
        if upper.startswith(prefix) and upper not in known and not _OF_A_SERVICE.fullmatch(upper):
            raise SettingsError(f"unknown variable {name}{_nearest(upper, known)}")


def _nearest(name: str, known: list[str]) -> str:
    (*_, near) = ("", *difflib.get_close_matches(name, known, n=1))
    return f"; did you mean {near}?" if near else ""
