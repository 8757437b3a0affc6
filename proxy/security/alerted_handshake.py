"""TLS handshakes that fail with a line in the log, and an alert about a client's certificate."""

import ssl
from contextvars import ContextVar
from typing import Final

import structlog
from typing_extensions import override

from pidlease.observability.repeated_lines import LINES

#: The client's address, in the context of its connection; empty: unknown.
PEER: Final[ContextVar[str]] = ContextVar("peer", default="")
_NO_CERTIFICATE: Final = "PEER_DID_NOT_RETURN_A_CERTIFICATE"

_log = structlog.get_logger(__name__)


class AlertedHandshake(ssl.SSLObject):
    """The server's side of a TLS connection; a client learns what is wrong with its certificate.

    Event loops close a connection when its handshake fails, before they send what OpenSSL has
    written for the client: the alert with the reason. So a first failure because of the certificate
    asks for more data. The loop sends the alert then. The connection ends with the client, at its
    next bytes, or when the time for the handshake is up.

    After other failures it ends at once: a client without TLS would take an alert for a response.
    """

    _failure: ssl.SSLError | None = None

    @override
    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self._failure = error
            note_failure(_reason_of(error))
            if error.reason == _NO_CERTIFICATE or isinstance(error, ssl.SSLCertVerificationError):
                raise ssl.SSLWantReadError("the alert is not sent yet") from error
            raise


def note_failure(reason: str) -> None:
    """Log that the handshake of this context's connection has failed."""
    peer = PEER.get()
    at = {"peer": peer} if peer else {}
    LINES.write(_log, "warning", "a TLS handshake failed", reason, reason=reason, **at)


def _reason_of(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not trusted: {error.verify_message}"
    if error.reason == _NO_CERTIFICATE:
        return "the client has no certificate"
    return (error.reason or type(error).__name__).replace("_", " ").lower()
