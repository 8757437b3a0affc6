"""The server's side of a SCRAM login (RFC 5802), with bounds on what a client sends."""

from collections.abc import Callable
from typing import Final

from scramp import ScramException, ScramMechanism

from proxy.security.scram_credentials import Credential, Credentials, StandIns

#: The longest message: a name of 249 characters, escaped, a nonce and the rest.
_MESSAGE_BYTES_MAX: Final = 4096


class LoginRefusedError(Exception):
    """A login is refused. The message says nothing about whether the user exists."""


class ScramExchange:
    """One login.

    Parameters:
        mechanism: SCRAM-SHA-256 or SCRAM-SHA-512.
        credentials: returns the credentials in force.
    """

    def __init__(
        self, mechanism: str, credentials: Callable[[], Credentials], stand_ins: StandIns
    ) -> None:
        self._mechanism: Final = mechanism
        self._credentials: Final = credentials
        self._stand_ins: Final = stand_ins
        self._server: Final = ScramMechanism(mechanism).make_server(self._auth)
        self._known: Credential | None = None
        self._begun = False
        #: The user; empty until the first message.
        self.user = ""

    def _auth(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self.user = user
        self._known = self._credentials().get((user, self._mechanism))
        used = self._known or self._stand_ins.of(user, self._mechanism)
        return used.salt, used.stored_key, used.server_key, used.iterations

    def step(self, message: bytes) -> tuple[bytes, bool]:
        """Return the response to a message, and whether the login is complete.

        Raises:
            LoginRefusedError: the login is refused.
        """
        if len(message) > _MESSAGE_BYTES_MAX:
            raise LoginRefusedError("the message is too long")
        try:
            text = message.decode()
            if not self._begun:
                self._begun = True
                self._server.set_client_first(text)
                return self._server.get_server_first().encode(), False
            self._server.set_client_final(text)
            final: bytes = self._server.get_server_final().encode()
        except (ScramException, ValueError, LookupError, TypeError, AttributeError) as error:
            # A wrong password, an unknown user and a malformed message alike.
            raise LoginRefusedError("the user or the password is wrong") from error
        # The credential of an unknown user fits no proof; and one that was removed since the first
        # message counts no more.
        if (
            self._known is None
            or self._credentials().get((self.user, self._mechanism)) != self._known
        ):
            raise LoginRefusedError("the user or the password is wrong")
        return final, True
