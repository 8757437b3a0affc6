"""How Kafka is reached."""

import ssl
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from pidlease.kafka.errors import UpstreamRefusedError

Mechanism = Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
#: A broker's address: host and port.
Address = tuple[str, int]


@dataclass(frozen=True)
class UpstreamConfig:
    """How Kafka is reached.

    Attributes:
        bootstrap: brokers to ask first.
        tls: whether connections are encrypted,
        ca: trusting these certificates (default: the system's),
        certificate: with this one of our own,
        key: and its key.
        mechanism: of SASL; empty: none.
        username: for it,
        password: and this.
        connect_seconds: a connection, with all that belongs to it, takes so long at most.
        request_seconds: an answer comes within this time, or the connection is given up.
        metadata_seconds: how often it is asked what the cluster looks like.
        answered: brokers that have answered a first request. Where one ends a later connection, it
            is not because of TLS or SASL.
    """

    bootstrap: tuple[Address, ...]
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    mechanism: Mechanism = ""
    username: str = ""
    password: str = ""
    connect_seconds: float = 10.0
    request_seconds: float = 30.0
    metadata_seconds: float = 30.0
    answered: set[Address] = field(default_factory=set, repr=False, compare=False)

    @cached_property
    def ssl_context(self) -> ssl.SSLContext | None:
        """How TLS is spoken; None: it is not.

        Raises:
            UpstreamRefusedError: a file cannot be used.
        """
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # ssl's own errors are OSErrors, too
            raise UpstreamRefusedError(
                f"certificates for Kafka cannot be used (ca {self.ca}, certificate"
                f" {self.certificate}, key {self.key}): {error}"
            ) from error
        return context
