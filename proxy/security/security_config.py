"""How a server is secured, by its settings. Without any, nothing else of this package is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

#: Of the data directory: the users and the ACLs.
SECURITY_FOLDER: Final = "security"
ClientAuth = Literal["none", "requested", "required"]


class SecurityError(Exception):
    """The security cannot be set up as the settings say; the message says why."""


class TlsFiles(NamedTuple):
    """The files of TLS.

    Attributes:
        certificate: the server's, followed by the intermediate ones (PEM).
        key: of the certificate (PEM).
        key_password: of the key; empty: the key is not encrypted.
        ca: the authorities of clients' certificates (PEM); None: no client has one.
        client_auth: whether clients must have a certificate.
    """

    certificate: Path
    key: Path
    key_password: str = ""
    ca: Path | None = None
    client_auth: ClientAuth = "none"


class MemberSecurity(NamedTuple):
    """How active servers that share a cluster know one another: by their certificates.

    Attributes:
        users: those of the servers' certificates.
        host: where the others reach this server; its certificate is for this host.
    """

    users: frozenset[str]
    host: str


class TokenConfig(NamedTuple):
    """What tokens must be.

    Attributes:
        jwks_url: where the issuer's keys are.
        audiences: one of them must be in the token.
        user_claim: the claim with the user's name.
        skew_seconds: how far clocks may be apart.
        refresh_seconds: how often to read the keys.
    """

    jwks_url: str
    audiences: tuple[str, ...]
    issuer: str
    user_claim: str = "sub"
    skew_seconds: float = 30.0
    refresh_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """How one listener is secured.

    Attributes:
        tls: whether connections are encrypted.
        login: whether clients must log in with a user's name.
    """

    tls: bool = False
    login: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether there is neither."""
        return not self.tls and not self.login


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """How the server is secured; by default, not at all.

    Attributes:
        kafka: of the default listener for Kafka clients.
        kafka_by_name: of all listeners for Kafka clients, if they have names.
        metrics: of the listener for metrics and health alone, if there is one.
        mechanisms: of SASL.
        tls_files: needed if a listener has TLS.
        members: of active servers; None: there are no others, or HTTP has no TLS.
        mapping_rules: `ssl.principal.mapping.rules`.
        acls: whether ACLs count.
        acls_of_kafka: whether these are Kafka's own, and not those of the file.
        reauth_seconds: how long a login counts at most; 0: without limit.
        login_seconds: how long a login may take.
        login_bytes_max: the largest request before the login.
        tokens: what tokens must be; None: there are no tokens.
        audit_log: the file; None: there is none.
        quota_window_num: Kafka's number of samples; a client that was idle may use what its quota
            allows in one sample less.
        quota_window_seconds: Kafka's length of a sample.
    """

    kafka: ListenerSecurity = field(default_factory=ListenerSecurity)
    kafka_by_name: Mapping[str, ListenerSecurity] = field(default_factory=dict)
    http: ListenerSecurity = field(default_factory=ListenerSecurity)
    metrics: ListenerSecurity = field(default_factory=ListenerSecurity)
    mechanisms: tuple[str, ...] = ()
    tls_files: TlsFiles | None = None
    members: MemberSecurity | None = None
    mapping_rules: str = "DEFAULT"
    acls: bool = False
    acls_of_kafka: bool = False
    super_users: tuple[str, ...] = ()
    allow_if_none: bool = False
    reauth_seconds: float = 0.0
    login_seconds: float = 10.0
    login_bytes_max: int = 64 << 10
    tokens: TokenConfig | None = None
    audit_log: Path | None = None
    quota_window_num: int = 11
    quota_window_seconds: float = 1.0

    @property
    def is_off(self) -> bool:
        """Whether nothing is secured."""
        return all(each.is_plain for each in self.listeners) and not self.acls

    @property
    def listeners(self) -> tuple[ListenerSecurity, ...]:
        """How each listener is secured."""
        return self.kafka, *self.kafka_by_name.values(), self.http, self.metrics

    @property
    def kafka_login(self) -> bool:
        """Whether clients log in on one of the listeners for Kafka clients at least."""
        return self.kafka.login or any(each.login for each in self.kafka_by_name.values())

    def of_kafka(self, name: str) -> ListenerSecurity:
        """Return how a listener for Kafka clients is secured; no name: the default listener."""
        return self.kafka_by_name[name] if name else self.kafka
