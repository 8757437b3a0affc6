"""TLS and SASL of a client's connections, by the names that aiokafka's users know."""

import ssl
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from aiokafka.abc import AbstractTokenProvider
from typing_extensions import override

from pidlease.kafka.client.settings import (
    OAUTHBEARER,
    Mechanism,
    TokenProvider,
    UpstreamConfig,
    tls_context_of,
)
from pidlease.kafka.errors import UpstreamRefusedError

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)


class _AiokafkaTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is not typed
    """A provider of tokens of the class that aiokafka wants."""

    def __init__(self, provider: TokenProvider) -> None:
        self._provider: Final = provider

    @override
    async def token(self) -> str:
        return await self._provider.token()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSecurity:
    """How a client's connections are encrypted, and how the client logs in.

    Attributes:
        security_protocol: of connections to the Kafka listener.
        ssl_context: of SSL and SASL_SSL, and of an https URL; instead of the three files.
        ssl_cafile: PEM file with the certificates to trust; None: the system's.
        ssl_certfile: PEM file with the client's own certificate, and those between it and its CA.
        ssl_keyfile: PEM file with the key of `ssl_certfile`; None: the key is in that file.
        sasl_mechanism: of SASL_PLAINTEXT and SASL_SSL.
        sasl_plain_username: the user.
        sasl_plain_password: the user's password, also for SCRAM.
        sasl_oauth_token_provider: for OAUTHBEARER; has `async def token(self) -> str`, as aiokafka
            wants it. It is asked at each login, so it may return a newer token each time.
    """

    security_protocol: SecurityProtocol = "PLAINTEXT"
    ssl_context: ssl.SSLContext | None = None
    ssl_cafile: str | Path | None = None
    ssl_certfile: str | Path | None = None
    ssl_keyfile: str | Path | None = None
    sasl_mechanism: SaslMechanism = "PLAIN"
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = field(default=None, repr=False)
    sasl_oauth_token_provider: TokenProvider | None = field(default=None, repr=False)

    @property
    def security_problem(self) -> str:
        """What is invalid, and names the option; empty: nothing. Reads the files."""
        protocol = self.security_protocol
        if protocol not in PROTOCOLS:
            return f"security_protocol {protocol!r} is none of {', '.join(PROTOCOLS)}"
        return self._tls_problem() or self._sasl_problem()

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """The context of connections to the Kafka listener; None: they are not encrypted.

        Raises:
            UpstreamRefusedError: a file cannot be used; the text names it.
        """
        return self.https_context if self._tls else None

    @property
    def https_context(self) -> ssl.SSLContext | None:
        """The context of an https URL, whatever the protocol; None: there is none.

        Raises:
            UpstreamRefusedError: a file cannot be used; the text names it.
        """
        if not self._has_files:
            return self.ssl_context
        return tls_context_of(self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of SASL; empty: the client does not log in."""
        return self.sasl_mechanism if self._sasl else ""

    @property
    def username(self) -> str:
        """The user of SASL; empty: none."""
        return (self._with_password and self.sasl_plain_username) or ""

    @property
    def password(self) -> str:
        """The user's password; empty: none."""
        return (self._with_password and self.sasl_plain_password) or ""

    @property
    def token_provider(self) -> TokenProvider | None:
        """The provider of tokens for SASL; None: the client sends none."""
        return self.sasl_oauth_token_provider if self.mechanism == OAUTHBEARER else None

    def http_login(self, url: str) -> tuple[str, str] | TokenProvider | None:
        """Return user and password, or a provider of tokens, for a URL; None: send no login.

        Over http, Basic and Bearer would show a secret to everybody on the way; SCRAM does not.
        """
        if not self._sasl or urlsplit(url).scheme != "https":
            return None
        return self.token_provider or (self.username, self.password)

    def secured(self, config: UpstreamConfig) -> UpstreamConfig:
        """Return settings of connections, with this TLS and login.

        Raises:
            UpstreamRefusedError: a file cannot be used; the text names it.
        """
        return replace(
            config,
            tls_context=self.tls_context,
            mechanism=self.mechanism,
            username=self.username,
            password=self.password,
            token_provider=self.token_provider,
        )

    def security_options(self) -> dict[str, Any]:
        """Return the options of TLS and SASL by their names."""
        return {each.name: getattr(self, each.name) for each in fields(ConnectionSecurity)}

    def aiokafka_options(self) -> dict[str, Any]:
        """Return the options of aiokafka's clients, which know no files.

        Raises:
            UpstreamRefusedError: a file cannot be used; the text names it.
        """
        found: dict[str, Any] = {
            "security_protocol": self.security_protocol, "ssl_context": self.tls_context,
        }  # fmt: skip
        if self._sasl:
            found["sasl_mechanism"] = self.sasl_mechanism
        if self.token_provider is not None:
            found["sasl_oauth_token_provider"] = _AiokafkaTokens(self.token_provider)
        elif self._sasl:
            found |= {"sasl_plain_username": self.username, "sasl_plain_password": self.password}
        return found

    @property
    def _tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def _sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    @property
    def _with_password(self) -> bool:
        return self._sasl and self.sasl_mechanism != OAUTHBEARER

    @property
    def _has_files(self) -> bool:
        return self.ssl_cafile is not None or self.ssl_certfile is not None

    def _tls_problem(self) -> str:
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            return "ssl_keyfile goes with ssl_certfile"
        if self.ssl_context is not None and self._has_files:
            return "give either an ssl_context, or ssl_cafile, ssl_certfile and ssl_keyfile"
        if self._tls and self.ssl_context is None and not self._has_files:
            return (
                f"security_protocol {self.security_protocol} needs an ssl_context or ssl_cafile;"
                " ssl.create_default_context() trusts the system's authorities"
            )
        try:
            _ = self.https_context
        except UpstreamRefusedError as error:
            return str(error)
        return ""

    def _sasl_problem(self) -> str:
        mechanism = self.sasl_mechanism
        if not self._sasl:
            return ""
        if mechanism not in MECHANISMS:
            return f"sasl_mechanism {mechanism!r} is none of {', '.join(MECHANISMS)}"
        if mechanism == OAUTHBEARER:
            if callable(getattr(self.sasl_oauth_token_provider, "token", None)):
                return ""
            return f"sasl_mechanism {mechanism} needs a sasl_oauth_token_provider with token()"
        if None in (self.sasl_plain_username, self.sasl_plain_password):
            return f"{self.security_protocol} needs sasl_plain_username and sasl_plain_password"
        return ""
