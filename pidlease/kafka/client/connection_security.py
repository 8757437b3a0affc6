"""TLS and SASL of a client's connections, by the names that aiokafka's users know."""

import ssl
from dataclasses import dataclass, field, replace
from typing import Final, Literal
from urllib.parse import urlsplit

from pidlease.kafka.client.settings import Mechanism, UpstreamConfig

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSecurity:
    """How a client's connections are encrypted, and how the client logs in.

    Attributes:
        security_protocol: of connections to the Kafka listener.
        ssl_context: of SSL and SASL_SSL, and of an https URL.
        sasl_mechanism: of SASL_PLAINTEXT and SASL_SSL.
        sasl_plain_username: the user.
        sasl_plain_password: the user's password, also for SCRAM.
    """

    security_protocol: SecurityProtocol = "PLAINTEXT"
    ssl_context: ssl.SSLContext | None = None
    sasl_mechanism: SaslMechanism = "PLAIN"
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = field(default=None, repr=False)

    @property
    def security_problem(self) -> str:
        """What is invalid, and names the option; empty: nothing."""
        protocol = self.security_protocol
        if protocol not in _PROTOCOLS:
            return f"security_protocol {protocol!r} is none of {', '.join(_PROTOCOLS)}"
        if self._tls and self.ssl_context is None:
            return f"security_protocol {protocol} needs an ssl_context"
        if self._sasl and self.sasl_mechanism not in _MECHANISMS:
            return f"sasl_mechanism {self.sasl_mechanism!r} is none of {', '.join(_MECHANISMS)}"
        named = (self.sasl_plain_username, self.sasl_plain_password)
        if self._sasl and None in named:
            return f"{protocol} needs sasl_plain_username and sasl_plain_password"
        return ""

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """The context of connections to the Kafka listener; None: they are not encrypted."""
        return self.ssl_context if self._tls else None

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of SASL; empty: the client does not log in."""
        return self.sasl_mechanism if self._sasl else ""

    @property
    def username(self) -> str:
        """The user of SASL; empty: none."""
        return (self._sasl and self.sasl_plain_username) or ""

    @property
    def password(self) -> str:
        """The user's password; empty: none."""
        return (self._sasl and self.sasl_plain_password) or ""

    def http_login(self, url: str) -> tuple[str, str] | None:
        """Return user and password for requests to a URL; None: they are sent without.

        Over http, Basic would show the password to everybody on the way; SCRAM does not.
        """
        if not self._sasl or urlsplit(url).scheme != "https":
            return None
        return self.username, self.password

    def secured(self, config: UpstreamConfig) -> UpstreamConfig:
        """Return settings of connections, with this TLS and login."""
        return replace(
            config,
            tls_context=self.tls_context,
            mechanism=self.mechanism,
            username=self.username,
            password=self.password,
        )

    @property
    def _tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def _sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")
