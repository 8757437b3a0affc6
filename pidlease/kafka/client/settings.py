"""The settings of a connection to Kafka."""

import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, Protocol

from aiokafka.conn import collect_hosts

from pidlease.core.backoff import Backoff
from pidlease.kafka.api import CLIENT_ID
from pidlease.kafka.errors import UpstreamRefusedError

Mechanism = Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
OAUTHBEARER: Final = "OAUTHBEARER"
#: A broker's address: host and port.
Address = tuple[str, int]
#: Versions of Kafka's APIs: key -> (lowest, highest version).
Versions = Mapping[int, tuple[int, int]]
#: The most addresses of brokers to remember.
_ADDRESSES_MAX: Final = 10_000


class TokenProvider(Protocol):
    """Provides tokens, as aiokafka's AbstractTokenProvider does."""

    async def token(self) -> str:
        """Return a token that has not expired."""


class ServedVersions:
    """The versions that brokers serve, each broker's as of the last connection to it.

    A broker that was upgraded or rolled back serves others at the same address.

    Attributes:
        on_change: called, on the event loop, after a broker's versions have changed.
    """

    def __init__(self) -> None:
        self.on_change: Final[list[Callable[[], None]]] = []
        self._of: Final[dict[Address, Versions]] = {}

    def __contains__(self, address: Address) -> bool:
        return address in self._of

    def note(self, address: Address, versions: Versions) -> None:
        """Note the versions that a broker serves now."""
        before = self._of.pop(address, None)
        if len(self._of) >= _ADDRESSES_MAX:
            del self._of[next(iter(self._of))]  # the addresses of brokers may change
        self._of[address] = versions
        if versions != before:
            for changed in self.on_change:
                changed()

    def common(self, addresses: Iterable[Address]) -> dict[int, tuple[int, int]]:
        """Return the versions that all of these brokers serve.

        Brokers that never responded are left out. If none of them did, it is those that did.
        """
        known = [self._of[each] for each in addresses if each in self._of]
        found: dict[int, tuple[int, int]] | None = None
        for versions in known or self._of.values():
            found = dict(versions) if found is None else _overlap(found, versions)
        return found or {}


def _overlap(some: Versions, others: Versions) -> dict[int, tuple[int, int]]:
    found = {}
    for key in some.keys() & others.keys():
        lowest = max(some[key][0], others[key][0])
        highest = min(some[key][1], others[key][1])
        if lowest <= highest:
            found[key] = lowest, highest
    return found


@dataclass(frozen=True)
class UpstreamConfig:
    """The settings of all connections to one cluster.

    Attributes:
        bootstrap: the brokers to ask first.
        tls: whether to encrypt connections.
        ca: the trusted certificates; None: the system's.
        certificate: the client's own certificate.
        key: the key of `certificate`.
        tls_context: a ready context, instead of `tls`, `ca`, `certificate` and `key`.
        mechanism: of SASL; empty: none.
        username: for SASL.
        password: for SASL.
        token_provider: for SASL OAUTHBEARER (RFC 7628).
        only_pidlease: whether to refuse brokers that are no server of pidlease.
        client_id: the name of this client in the brokers' logs.
        connect_seconds: how long connecting may take, with TLS, versions and SASL.
        request_seconds: how long a response may take; then the connection is closed.
        metadata_seconds: how often to refresh the metadata.
        refresh_backoff: the pause after a refresh, longer while the metadata stays the same.
        served: the versions of the brokers that have ever responded. If one of these brokers
            closes a new connection, the reason is not that it expects TLS or SASL.
    """

    bootstrap: tuple[Address, ...]
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    tls_context: ssl.SSLContext | None = None
    mechanism: Mechanism = ""
    username: str = ""
    password: str = field(default="", repr=False)
    token_provider: TokenProvider | None = field(default=None, repr=False)
    only_pidlease: bool = False
    client_id: str = CLIENT_ID
    connect_seconds: float = 10.0
    request_seconds: float = 30.0
    metadata_seconds: float = 30.0
    refresh_backoff: Backoff = Backoff(0.1, 2.0)  # noqa: RUF009 - immutable
    served: ServedVersions = field(default_factory=ServedVersions, repr=False, compare=False)

    @cached_property
    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context; None: connections are not encrypted.

        Raises:
            UpstreamRefusedError: a file cannot be used.
        """
        if self.tls_context is not None or not self.tls:
            return self.tls_context
        return tls_context_of(self.ca, self.certificate, self.key)


def no_password() -> str:
    """Refuse a key with a password, for which OpenSSL would ask at the terminal."""
    raise OSError("the key has a password")


def tls_context_of(
    ca: str | Path | None, certificate: str | Path | None, key: str | Path | None
) -> ssl.SSLContext:
    """Return a TLS context.

    Parameters:
        ca: the trusted certificates; None: the system's.
        certificate: the client's own certificate.
        key: the key of `certificate`; None: it is in that file.

    Raises:
        UpstreamRefusedError: a file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key, no_password)
    except OSError as error:  # ssl's own errors are OSErrors, too
        raise UpstreamRefusedError(
            f"certificates for Kafka cannot be used (ca {ca}, certificate {certificate}, key"
            f" {key}): {error}"
        ) from error
    return context


def addresses_of(servers: str | Sequence[str]) -> tuple[Address, ...]:
    """Return the addresses of HOST:PORT, or of several, in random order."""
    return tuple((host, port) for host, port, _ in collect_hosts(servers))
