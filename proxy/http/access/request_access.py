"""Knows the clients of the HTTP listener, and decides what their requests may do.

A client is known by Basic (RFC 7617), by Bearer (RFC 6750), or by its certificate. Most decisions
need no wait: the password was right a moment ago, or the key of the token is known.

A request of another active server is marked, and the server is known by its certificate alone. It
has the client of a request that it sends on, or asks for itself.
"""

import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final, NamedTuple

from starlette.types import Scope

from pidlease.coordination.journal.put_request import PUT_PATH
from pidlease.engine.leases.lease_owners import USER
from proxy.http.access.request_meter import RequestMeter
from proxy.http.access.route_rights import Needs, RouteRights, RouteRule
from proxy.http.current_caller import CALLER, HttpCaller, name_right
from proxy.http.forwarding_headers import CLIENT, FORWARDED, client_of
from proxy.http.http_protocol import PEER_CERTIFICATE
from proxy.security.authorizer import Caller
from proxy.security.certificate_names import distinguished_name
from proxy.security.security import ANONYMOUS, Security, principal_of, user_of
from proxy.security.token_validator import TokenError, TokenValidator, Validated

_FOREVER: Final = float("inf")
_CREDENTIALS_BYTES_MAX: Final = 40_000


_FOR_SERVERS: Final = "only an active server may send this, with its certificate"
#: Only other active servers send these headers.
_OF_SERVERS: Final = (FORWARDED.encode(), CLIENT.encode())


class Sender(Enum):
    """The sender of a request."""

    CLIENT = auto()
    #: Another active server, for the client that has sent it to that server.
    SERVER_FOR_CLIENT = auto()
    #: Another active server, for itself.
    SERVER = auto()


class Known(NamedTuple):
    """A known client.

    Attributes:
        user: the user that gave a password; empty: the client is known otherwise.
        expires: when the login ends, in s since 1970.
        sender: of the request. The login of a client is checked by the server that it has sent the
            request to.
    """

    caller: Caller
    user: str = ""
    expires: float = _FOREVER
    sender: Sender = Sender.CLIENT


class Unknown(NamedTuple):
    """A client that is not known; the audit log gets the reason, the client gets the detail."""

    principal: str
    reason: str
    detail: str = "the request needs a valid login"


class _Password(NamedTuple):
    """A password that a thread must check."""

    user: str
    password: str


class _Token(NamedTuple):
    """A token of which the issuer's keys must be read first."""

    token: str
    tokens: TokenValidator


class Admission:
    """A request of a known client, under a rule of the matrix.

    Attributes:
        needs: the rights that it needs.
        meter: counts it for the client's quotas.
    """

    __slots__ = ("_authorizer", "_known", "_scope", "_security", "meter", "needs")

    def __init__(
        self, security: Security, known: Known, rule: RouteRule, needs: Needs, scope: Scope
    ) -> None:
        self._security: Final = security
        self._scope: Final = scope
        self._known: Final = known
        for_itself = known.sender is Sender.SERVER
        self._authorizer: Final = None if for_itself else security.authorizer
        self.needs: Final = () if for_itself else needs
        self.meter: Final = RequestMeter(
            security.quotas, self.user, rule.traffic, sent_on=known.sender is not Sender.CLIENT
        )

    @property
    def caller(self) -> Caller:
        """The client."""
        return self._known.caller

    @property
    def user(self) -> str:
        """The client's user."""
        return user_of(self._known.caller.principal)

    def is_valid(self) -> bool:
        """Whether the client still has its login and its rights. A refusal is not audited."""
        known, authorizer = self._known, self._authorizer
        if known.expires < time.time() or (known.user and not self._exists(known.user)):
            return False
        return authorizer is None or all(
            any(authorizer.allows(known.caller, each) for each in alternatives)
            for alternatives in self.needs
        )

    def _exists(self, user: str) -> bool:
        return any((user, each) in self._security.credentials
                   for each in ("SCRAM-SHA-512", "SCRAM-SHA-256"))  # fmt: skip

    def may_append(self, size: int, name: str | None) -> bool:
        """Whether the client's quotas let it append so many bytes, and its rights under a name.

        Parameters:
            name: that the PID of the batch was leased by; None: it has none.
        """
        authorizer = self._authorizer
        if name is None or authorizer is None or authorizer.allows(self.caller, name_right(name)):
            return self.meter.fits(size)
        return False

    def count(self, size: int) -> None:
        """Count a request that was submitted."""
        self.meter.count_whole(size)

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Let code that runs meanwhile know the client."""
        caller = HttpCaller(
            self.caller, self._authorizer, self.meter.count_produced, self._note_change
        )
        token = CALLER.set(caller)
        user = USER.set(self.user)
        try:
            yield
        finally:
            USER.reset(user)
            CALLER.reset(token)

    def _note_change(self, operation: str, resource: str) -> None:
        self._security.audit.write("change", *self.caller, operation, resource, "success")

    def is_revoked(self) -> bool:
        """Whether the client has lost its login or its rights since; this is audited then."""
        if self.is_valid():
            return False
        what = f"{self._scope['method']} {self._scope['path']}"
        self._security.audit.write("refused", *self.caller, "HTTP", what, "revoked")
        return True


class RequestAccess:
    """Decides about requests.

    Parameters:
        security: what the listeners share.
        rights: the matrix.
        login: whether clients of this listener log in.
    """

    def __init__(self, security: Security, rights: RouteRights, *, login: bool) -> None:
        self._security: Final = security
        self._rights: Final = rights
        self._login: Final = login
        members = security.config.members
        #: The users of other active servers; none: servers do not know one another.
        self._servers: Final[frozenset[str]] = frozenset() if members is None else members.users

    def is_of_server(self, scope: Scope) -> bool:
        """Whether only another active server may send a request: it is marked so, or puts rows."""
        return bool(self._servers) and (
            scope["path"] == PUT_PATH or any(name in _OF_SERVERS for name, _ in scope["headers"])
        )

    def admit_now(self, scope: Scope) -> Admission | None:
        """Admit a request; None: it is refused, or this needs a wait. Nothing is counted yet."""
        found = self._rights.find(scope)
        if found is None or found[0].public or self.is_of_server(scope):
            return None
        known = self._known_now(scope)
        if not isinstance(known, Known):
            return None
        rule, match = found
        admission = Admission(self._security, known, rule, rule.needs(match, scope), scope)
        return admission if admission.is_valid() else None

    async def known(self, scope: Scope) -> Known | Unknown:
        """Return the client of a request.

        Raises:
            TooManyLoginsError: too many passwords are being checked.
        """
        found = self._known_now(scope)
        if isinstance(found, _Password):
            right = await self._security.passwords.is_right(*found, host_of(scope))
            return _of_password(scope, found.user, right=right)
        if isinstance(found, _Token):
            try:
                return _of_token(scope, await found.tokens.validate(found.token), found.tokens)
            except (TokenError, ValueError) as error:
                return _refused(error)
        return found

    def _known_now(self, scope: Scope) -> Known | Unknown | _Password | _Token:
        """Return the client, or the part of the login that needs a wait."""
        if self.is_of_server(scope):
            return self._by_server(scope)
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) > 1 or any(len(each) > _CREDENTIALS_BYTES_MAX for each in given):
            return Unknown("", "more than one Authorization, or a long one")
        if given and self._login:
            return self._by_header(scope, given[0].decode("latin-1"))
        name = _certificate_name(scope)
        if name is not None:
            user = self._security.mapper.user(name)
            if user is None:
                return Unknown("", f"no rule for the certificate of {name}")
            return Known(Caller(principal_of(user), host_of(scope)))
        if self._login:
            return Unknown("", "no Authorization")
        return Known(Caller(ANONYMOUS, host_of(scope)))

    def _by_server(self, scope: Scope) -> Known | Unknown:
        """Return the client of a marked request: another active server, or the client of that."""
        name = _certificate_name(scope)
        user = None if name is None else self._security.mapper.user(name)
        if user not in self._servers or user is None:
            reason = f"no active server: {name or 'no certificate'}"
            return Unknown("", reason, _FOR_SERVERS)
        named = [value for header, value in scope["headers"] if header == CLIENT.encode()]
        if not named:
            server = Caller(principal_of(user), host_of(scope))
            return Known(server, sender=Sender.SERVER)
        client = client_of(named[0]) if len(named) == 1 else None
        if client is None:
            reason = f"{CLIENT} names no client"
            return Unknown(principal_of(user), reason, _FOR_SERVERS)
        return Known(client, sender=Sender.SERVER_FOR_CLIENT)

    def _by_header(self, scope: Scope, given: str) -> Known | Unknown | _Password | _Token:
        scheme, _, value = given.partition(" ")
        tokens = self._security.tokens
        try:
            if scheme.lower() == "basic":
                user, colon, password = b64decode(value, validate=True).decode().partition(":")
                if not colon:
                    return _of_password(scope, user, right=False)
                if not self._security.passwords.was_right(user, password):
                    return _Password(user, password)
                return _of_password(scope, user, right=True)
            if scheme.lower() == "bearer" and tokens is not None:
                token = value.strip()
                validated = tokens.validate_now(token)
                if validated is None:
                    return _Token(token, tokens)
                return _of_token(scope, validated, tokens)
        except (TokenError, ValueError) as error:
            return _refused(error)
        return Unknown("", "another scheme of Authorization")


def _certificate_name(scope: Scope) -> str | None:
    certificate = scope.get("state", {}).get(PEER_CERTIFICATE)
    return distinguished_name(certificate) if certificate else None


def _of_password(scope: Scope, user: str, *, right: bool) -> Known | Unknown:
    if not right:
        return Unknown(principal_of(user), "wrong user or password")
    return Known(Caller(principal_of(user), host_of(scope)), user)


def _of_token(scope: Scope, validated: Validated, tokens: TokenValidator) -> Known:
    caller = Caller(principal_of(validated.user), host_of(scope))
    return Known(caller, "", validated.expires + tokens.skew_seconds)


def _refused(error: TokenError | ValueError) -> Unknown:
    return Unknown("", str(error) if isinstance(error, TokenError) else "no valid Authorization")


def host_of(scope: Scope) -> str:
    """Return the address of a request's client, without the port; empty: it is not known."""
    return scope["client"][0] if scope.get("client") else ""
