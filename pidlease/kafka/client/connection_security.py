"""TLS and SASL of a client's connections, by the names that aiokafka's users know."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from aiokafka.abc import AbstractTokenProvider
from typing_extensions import override

from pidlease.kafka.client.settings import (
    Mechanism,
    TokenProvider,
    UpstreamConfig,
    addresses_of,
    tls_context_of,
)
from pidlease.kafka.errors import UpstreamRefusedError

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_TOKEN: Final = "OAUTHBEARER"  # noqa: S105 - a mechanism


class _AiokafkaTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is not typed
    """A provider of tokens of the class that aiokafka wants."""

    def __init__(self, provider: TokenProvider) -> None:
        self._provider: Final = provider

    @override
    async def token(self) -> str:
        return await self._provider.token()


@dataclass(frozen=True, kw_only=True)
class ConnectionSecurity:
    """How a client's connections are encrypted, and how the client logs in.

    Attributes:
        security_protocol: of connections to the Kafka listener.
        ssl_context: of SSL and SASL_SSL, and of an https URL; instead of the files.
        ssl_cafile: PEM file with the certificates to trust.
        ssl_certfile: PEM file with the client's own certificate, and those between it and its CA.
        ssl_keyfile: PEM file with the key of `ssl_certfile`; None: the key is in that file.
        sasl_mechanism: of SASL_PLAINTEXT and SASL_SSL.
        sasl_plain_username: the user.
        sasl_plain_password: the user's password, also for SCRAM.
        sasl_oauth_token_provider: has `async def token(self) -> str`, for OAUTHBEARER. It is asked
            at each login, so it may return a newer token each time.
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
    def problem(self) -> str:
        """What is invalid, and names the option; empty: nothing."""
        protocol = self.security_protocol
        if protocol not in PROTOCOLS:
            return f"security_protocol {protocol!r} is none of {', '.join(PROTOCOLS)}"
        return self._tls_problem() or self._sasl_problem()

    @cached_property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context of the options; None: there is none.

        Raises:
            UpstreamRefusedError: a file cannot be used; the text names it.
        """
        if self.ssl_context is not None or not self._has_files:
            return self.ssl_context
        return tls_context_of(self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)

    @property
    def is_login(self) -> bool:
        """Whether the client logs in by SASL."""
        return self.security_protocol.startswith("SASL")

    @property
    def login_name(self) -> str:
        """The user, for messages."""
        return "the token" if self._is_token else f"user {self.sasl_plain_username!r}"

    def upstream(self, servers: str | Sequence[str]) -> UpstreamConfig:
        """Return the settings of connections to HOST:PORT, or to several.

        Raises:
            ValueError: an address, or an option, is invalid; the text names it.
        """
        if self.problem:
            raise ValueError(self.problem)
        mechanism: Mechanism = self.sasl_mechanism if self.is_login else ""
        is_password = self.is_login and not self._is_token
        return UpstreamConfig(
            addresses_of(servers),
            tls_context=self.context if self._is_tls else None,
            mechanism=mechanism,
            username=(is_password and self.sasl_plain_username) or "",
            password=(is_password and self.sasl_plain_password) or "",
            token_provider=self.sasl_oauth_token_provider if self.is_login else None,
        )

    def options(self) -> dict[str, Any]:
        """Return the options by their names."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def aiokafka(self) -> dict[str, Any]:
        """Return the options of aiokafka's clients, which know no files.

        Raises:
            UpstreamRefusedError: a file cannot be used.
        """
        found: dict[str, Any] = {"security_protocol": self.security_protocol}
        if self._is_tls:
            found["ssl_context"] = self.context
        if self._is_token:
            provider = self.sasl_oauth_token_provider
            assert provider is not None  # noqa: S101 - by `problem`
            found |= {"sasl_oauth_token_provider": _AiokafkaTokens(provider)}
        elif self.is_login:
            found |= {"sasl_plain_username": self.sasl_plain_username,
                      "sasl_plain_password": self.sasl_plain_password}  # fmt: skip
        return found | ({"sasl_mechanism": self.sasl_mechanism} if self.is_login else {})

    def http_login(self, url: str) -> tuple[str, str] | TokenProvider | None:
        """Return user and password, or a provider of tokens, for a URL; None: send no login.

        Over http, Basic and Bearer would show a secret to everybody on the way.
        """
        if not self.is_login or urlsplit(url).scheme != "https":
            return None
        if self._is_token:
            return self.sasl_oauth_token_provider
        return self.sasl_plain_username or "", self.sasl_plain_password or ""

    @property
    def _is_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def _is_token(self) -> bool:
        return self.is_login and self.sasl_mechanism == _TOKEN

    @property
    def _has_files(self) -> bool:
        return self.ssl_cafile is not None or self.ssl_certfile is not None

    def _tls_problem(self) -> str:
        if self.ssl_context is not None and (self._has_files or self.ssl_keyfile is not None):
            return "give either an ssl_context, or ssl_cafile, ssl_certfile and ssl_keyfile"
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            return "ssl_keyfile goes with ssl_certfile"
        if self._is_tls and self.ssl_context is None and not self._has_files:
            return f"security_protocol {self.security_protocol} needs an ssl_context or ssl_cafile"
        try:
            _ = self.context
        except UpstreamRefusedError as error:
            return str(error)
        return ""

    def _sasl_problem(self) -> str:
        protocol, mechanism = self.security_protocol, self.sasl_mechanism
        if not self.is_login:
            return ""
        if mechanism not in MECHANISMS:
            return f"sasl_mechanism {mechanism!r} is none of {', '.join(MECHANISMS)}"
        if self._is_token:
            if not callable(getattr(self.sasl_oauth_token_provider, "token", None)):
                return f"sasl_mechanism {mechanism} needs a sasl_oauth_token_provider with token()"
            if not self._is_tls:
                return f"sasl_mechanism {mechanism} needs SASL_SSL: the token would be readable"
            return ""
        if not self.sasl_plain_username or not self.sasl_plain_password:
            return f"{protocol} needs sasl_plain_username and sasl_plain_password"
        return ""
