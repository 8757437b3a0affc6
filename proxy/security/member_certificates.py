"""TLS among active servers: each has one certificate, as a server and as a client of the others.

A certificate of the authority is not enough, since clients have such ones too. It counts as a
server's only if its user is one of `--server-principals`, on both sides of a connection.
"""

import ssl
from contextlib import suppress
from typing import Any, Final

from typing_extensions import override

from proxy.security.certificate_names import PrincipalMapper, distinguished_name
from proxy.security.security_config import MemberSecurity, SecurityError, TlsFiles


class MemberContext(ssl.SSLContext):
    """The context of all connections to other active servers, also after a reload.

    Attributes:
        newest: what new connections use.
    """

    newest: ssl.SSLContext

    @override
    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*args, **kwargs)


def make_member_context(
    files: TlsFiles, listener: ssl.SSLContext, members: MemberSecurity, mapper: PrincipalMapper
) -> ssl.SSLContext:
    """Make a context for connections to other active servers. Blocks.

    Parameters:
        files: those that `listener` was made of.

    Raises:
        SecurityError: a file cannot be used, or another server would not accept the certificate.
    """

    class MemberHandshake(ssl.SSLObject):
        """The client's side of a connection to an active server."""

        @override
        def do_handshake(self) -> None:
            super().do_handshake()
            name = distinguished_name(self.getpeercert() or {})
            if mapper.user(name) not in members.users:
                text = f"the certificate of {name} is of none of --server-principals"
                raise ssl.SSLError(ssl.SSLErrorNumber.SSL_ERROR_SSL, text)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key, lambda: files.key_password)
        context.load_verify_locations(files.ca)
    except (OSError, ValueError) as error:
        raise SecurityError(
            f"{files.certificate}, {files.key} and {files.ca} cannot be used: {error}"
        ) from error
    context.sslobject_class = MemberHandshake
    try:
        _connect_to_self(listener, context, members.host)
    except ssl.SSLError as error:
        raise SecurityError(
            f"other active servers would not accept {files.certificate}: {error}. It needs to be of"
            f" --ssl-client-ca, for the host {members.host}, valid for servers and for clients"
            " (extendedKeyUsage), and of a user in --server-principals"
        ) from error
    return context


def _connect_to_self(listener: ssl.SSLContext, context: ssl.SSLContext, host: str) -> None:
    """Do the handshake that another server with the same settings would do with this one.

    Raises:
        ssl.SSLError: one of its sides refuses the certificate of the other one.
    """
    to_listener, from_listener = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides: Final = [
        context.wrap_bio(from_listener, to_listener, server_hostname=host),
        listener.wrap_bio(to_listener, from_listener, server_side=True),
    ]
    while sides:
        side = sides.pop(0)
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
            continue
        sides.append(side)
