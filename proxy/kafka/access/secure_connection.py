"""A client's connection that counts for nothing before its login.

Before the login only ApiVersions, SaslHandshake and SaslAuthenticate are handled, in this order and
within a small size. Anything else closes the connection.
"""

from time import monotonic
from typing import Final, Protocol

import structlog
from typing_extensions import override

from pidlease.kafka.api import API_API_VERSIONS, API_SASL_AUTHENTICATE, API_SASL_HANDSHAKE
from pidlease.kafka.codec.messages import api_name
from pidlease.kafka.codec.primitives import MalformedError, read_request_header
from pidlease.observability.repeated_lines import LINES
from proxy.kafka.access.metered_connection import MeteredConnection
from proxy.kafka.access.request_rights import create_rights
from proxy.kafka.access.sasl_login import LoggedIn, LoginState, SaslLogin
from proxy.kafka.client_connection import Handler, Slot
from proxy.security.authorizer import NOTED_NAME_MAX, Caller
from proxy.security.certificate_names import distinguished_name
from proxy.security.security import ANONYMOUS, Security, principal_of

_FOREVER: Final = float("inf")
#: Topics and ids that a connection notes; the authorizer's cache has more.
_NOTED_MAX: Final = 1000
_ALLOWED: Final = {
    LoginState.START: (API_API_VERSIONS, API_SASL_HANDSHAKE),
    LoginState.EXCHANGE: (API_SASL_AUTHENTICATE,),
    # After a login's time is over.
    LoginState.LOGGED_IN: (API_SASL_HANDSHAKE,),
}

_log = structlog.get_logger(__name__)


class LoginHandler(Handler, Protocol):
    """The listener, as its secured connections use it."""

    def known(self, connection: "SecureConnection") -> None:
        """Note that a connection's client is known now."""


class SecureConnection(MeteredConnection):
    """A connection with a login.

    Parameters:
        handler: the listener.
        security: what the listeners share.
        listener: the name of the listener that accepted it; empty: there is only one.

    Attributes:
        wants_login: whether the client must log in by SASL.
        began: when the connection began, by the monotonic clock.
    """

    def __init__(self, handler: LoginHandler, security: Security, listener: str = "") -> None:
        super().__init__(handler, security.quotas, listener)
        self.wants_login: Final = security.config.of_kafka(listener).login
        self._listener: Final = handler
        self._security: Final = security
        self.login: Final = SaslLogin(security, self)
        self.began: Final = monotonic()
        #: Whether the client logged in with a password.
        self.has_password = False
        #: Topics that the client may write and read, and transactional ids and names that it may
        #: write with, while the ACLs are of the version.
        self.may_write_to: set[str] = set()
        self.may_write_as: set[str] = set()
        self.may_read_from: set[str] = set()
        self.rights_version: object = None
        self._expires = 0.0
        self._open = False
        self._held = False
        self.request_bytes_max = security.config.login_bytes_max

    @override
    def connection_made(self, transport: object) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        if self._transport is None or self._transport.is_closing() or self.wants_login:
            return
        principal = ANONYMOUS
        has_tls = self._security.config.of_kafka(self.listener).tls
        certificate = self._transport.get_extra_info("peercert") if has_tls else None
        if certificate:
            name = distinguished_name(certificate)
            user = self._security.mapper.user(name)
            if user is None:
                self._note("", f"no rule for the certificate of {name}")
                self.abort()
                return
            principal = principal_of(user)
            self._note(principal, "success")
        self.logged_in(LoggedIn(principal, "", _FOREVER))

    def _note(self, principal: str, outcome: str) -> None:
        self.note_login(principal, "TLS", outcome)

    def note_login(self, principal: str, mechanism: str, outcome: str) -> None:
        """Write a login, or a refused one, into the audit log."""
        listener = self.listener or "kafka"
        self._security.audit.write("login", principal, self.host, mechanism, listener, outcome)

    def logged_in(self, result: LoggedIn) -> None:
        """Accept all requests from now on."""
        self.caller = Caller(result.principal, self.host)
        self.has_password = result.mechanism not in ("", "OAUTHBEARER")
        self._expires = result.expires
        self._open = True
        self.request_bytes_max = self._handler.request_bytes_max
        self._listener.known(self)

    def renew_rights(self, version: object) -> None:
        """Drop the noted rights if the ACLs have changed, or the client has very many."""
        noted = (self.may_write_to, self.may_write_as, self.may_read_from)
        if self.rights_version is not version or sum(map(len, noted)) > _NOTED_MAX:
            self.rights_version = version
            for each in noted:
                each.clear()

    @staticmethod
    def note(noted: set[str], name: str) -> None:
        """Note that the client has a right to a name, if the name is not too long."""
        if len(name) <= NOTED_NAME_MAX:
            noted.add(name)

    @override
    def may_create(self, topic: str) -> bool:
        # A topic that existed when the request arrived may be gone when it is handled.
        authorizer = self._security.authorizer
        if authorizer is None:
            return True
        return self.caller is not None and authorizer.permits(self.caller, *create_rights(topic))

    def is_expired(self, now: float) -> bool:
        """Whether the time of the login is over, by the monotonic clock."""
        return self.caller is not None and now >= self._expires

    # ------------------------------------------------------------------ requests

    @override
    def _take(self, frame: bytearray, slot: Slot | None = None) -> None:
        if not self._open or self.last_read >= self._expires:
            try:
                key = read_request_header(frame).api_key
            except MalformedError:
                key = -1
            if key not in _ALLOWED[self.login.state]:
                self._refuse_key(key)
                self.budget.release(len(frame))
                return
        super()._take(frame, slot)

    def begin_exchange(self) -> None:
        """Accept only the steps of a login until it is complete."""
        self._open = False

    def _refuse_key(self, key: int) -> None:
        again = self.login.state is LoginState.LOGGED_IN
        reason = "the login has expired" if again else "the client has not logged in"
        what = api_name(key) if key >= 0 else "a malformed request"
        LINES.write(_log, "warning", "connection closed: a request without a login",
                    (self.host, reason), peer=self.peer, api=what, reason=reason)  # fmt: skip
        principal = self.caller.principal if self.caller is not None else ""
        self._security.audit.write("refused", principal, self.host, what, "kafka", reason)
        self._start = self._end = 0
        self.finish()

    # ------------------------------------------------------------------ waiting for a login

    def hold(self) -> None:
        """Handle no further request until `release`."""
        self._held = True
        self._pause()

    def release(self) -> None:
        """Handle requests again."""
        self._held = False
        if self._transport is not None:
            self._check_load()

    @override
    def _check_load(self) -> None:
        if not self._held:
            super()._check_load()

    @override
    def flush(self) -> None:
        super().flush()
        if self._finishing and not self._slots and self._transport is not None:
            self._transport.close()

    def end_poll(self) -> None:
        """Let a request that waits for records respond now: its rights may have changed."""
        self._end_poll()
