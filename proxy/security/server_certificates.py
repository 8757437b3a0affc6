"""The TLS contexts of the listeners, and of connections to other active servers.

They are made anew when a file of them changes.

The listeners keep one context for good. For each connection its `sni_callback`, which runs with and
without SNI, puts in the newest one. So a new certificate counts for new connections without a
restart, and a certificate authority that was removed is no longer trusted. No session is resumed:
a resumed one would not be verified again.
"""

import ssl
from pathlib import Path
from typing import Any, Final

import structlog

from proxy.security.alerted_handshake import AlertedHandshake
from proxy.security.certificate_names import PrincipalMapper
from proxy.security.member_certificates import MemberContext, make_member_context
from proxy.security.security_config import MemberSecurity, SecurityError, TlsFiles

_log = structlog.get_logger(__name__)

_VERIFY: Final = {
    "none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED,
}  # fmt: skip


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """Make a context from the files. Blocks.

    Raises:
        SecurityError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0

    # A function, so that openssl never asks for the password on a terminal.
    try:
        context.load_cert_chain(files.certificate, files.key, lambda: files.key_password)
    except (OSError, ValueError) as error:
        raise SecurityError(
            f"{files.certificate} with {files.key} cannot be used: {error}; both are PEM files, the"
            " key belongs to the certificate, and an encrypted key needs ssl-key-password"
        ) from error
    if files.ca is not None:
        try:
            context.load_verify_locations(files.ca)
        except (OSError, ValueError) as error:
            raise SecurityError(f"{files.ca} cannot be used: {error}") from error
        context.verify_mode = _VERIFY[files.client_auth]
    return context


class ServerCertificates:
    """The context of the listeners, and the one for connections to other active servers.

    Parameters:
        files: the files of TLS.
        members: how active servers know one another; None: there are no others.
        mapper: makes users of certificates.

    Attributes:
        to_members: for connections to other active servers; None: there are none.

    Raises:
        SecurityError: a file cannot be used.
    """

    def __init__(
        self, files: TlsFiles, members: MemberSecurity | None, mapper: PrincipalMapper
    ) -> None:
        self._files: Final = files
        self._members: Final = members
        self._mapper: Final = mapper
        self.to_members: Final = None if members is None else MemberContext(ssl.PROTOCOL_TLS_CLIENT)
        self._renew()
        #: For `create_server`.
        self.context: Final = make_context(files)
        self.context.sni_callback = self._put_newest
        self.context.sslobject_class = AlertedHandshake

    @property
    def paths(self) -> list[Path]:
        """The files, to watch for changes."""
        files = self._files
        return [each for each in (files.certificate, files.key, files.ca) if each is not None]

    def reload(self) -> None:
        """Read the files again. Blocks.

        Raises:
            SecurityError: one cannot be used; the previous contexts stay.
        """
        self._renew()
        _log.info("certificates reloaded", certificate=str(self._files.certificate))

    def _renew(self) -> None:
        """Make both contexts of the files, or change nothing.

        Raises:
            SecurityError: a file cannot be used.
        """
        newest = make_context(self._files)
        if self.to_members is not None and self._members is not None:
            self.to_members.newest = make_member_context(
                self._files, newest, self._members, self._mapper
            )
        self._newest = newest

    def _put_newest(self, connection: Any, name: str | None, context: Any) -> None:  # noqa: ANN401, ARG002 - ssl's callback
        connection.context = self._newest
