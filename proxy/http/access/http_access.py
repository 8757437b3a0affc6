"""Lets only known clients with the needed rights through to the HTTP application, within quotas.

A client is known by Basic (RFC 7617), by Bearer (RFC 6750), or by its certificate. The decision is
made again while a response goes out: a stream that was revoked ends.
"""

import time
from base64 import b64decode
from typing import Final, NamedTuple

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pidlease.engine.leases.lease_owners import USER
from pidlease.http_api.ping_messages import PING_PATH
from pidlease.http_api.problems import Problem
from proxy.http.access.request_meter import RequestMeter
from proxy.http.access.route_rights import Needs, RouteRights
from proxy.http.current_caller import CALLER, HttpCaller, QuotaExceededError, no_right_to
from proxy.http.errors import refusal, too_much_used
from proxy.http.http_protocol import PEER_CERTIFICATE
from proxy.security.authorizer import Caller
from proxy.security.certificate_names import distinguished_name
from proxy.security.password_check import TooManyLoginsError
from proxy.security.security import ANONYMOUS, Security, principal_of, user_of
from proxy.security.token_validator import TokenError

_FOREVER: Final = float("inf")
_CREDENTIALS_BYTES_MAX: Final = 40_000
#: Public paths with bodies that have no names.
_WHOLE: Final = ("/healthz", PING_PATH)


class _Known(NamedTuple):
    """A known client.

    Attributes:
        user: the user that gave a password; empty: the client is known otherwise.
        expires: when the login ends, in s since 1970.
    """

    caller: Caller
    user: str = ""
    expires: float = _FOREVER


class _RevokedError(Exception):
    """The client has lost its right while the response went out."""


class HttpAccess:
    """Middleware that knows clients, and checks their rights.

    Parameters:
        security: what the listeners share.
        rights: the matrix.
        login: whether clients of this listener log in.
    """

    def __init__(
        self, app: ASGIApp, security: Security, rights: RouteRights, *, login: bool
    ) -> None:
        self._app: Final = app
        self._login: Final = login
        self._security: Final = security
        self._rights: Final = rights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http" or scope["method"] == "OPTIONS":
            # OPTIONS has no route; browsers ask by it what they may send, without a login.
            await self._app(scope, receive, send)
            return
        found = self._rights.find(scope)
        if found is not None and found[0].public:
            await self._public(scope, receive, send)
            return
        known = await self._known(scope)
        if isinstance(known, Response):
            await known(scope, receive, send)
            return
        if found is None:
            # A path or method that no rule is about, whether it exists or not.
            await self._refused(scope, known, "no rule")(scope, receive, send)
            return
        rule, match = found
        user = user_of(known.caller.principal)
        meter = RequestMeter(self._security.quotas, user, rule.traffic)
        await self._serve(scope, receive, send, known, rule.needs(match, scope), meter)

    async def _public(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a path for everyone: the status alone, if its body has names of topics."""
        if scope["path"] in _WHOLE:
            await self._app(scope, receive, send)
            return
        status = 503

        async def only_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]

        await self._app(scope, receive, only_status)
        state = "ready" if status == 200 else "not ready"
        await JSONResponse({"status": state}, status)(scope, receive, send)

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        known: _Known,
        needs: Needs,
        meter: RequestMeter,
    ) -> None:
        authorizer = self._security.authorizer
        try:
            meter.begin()
        except QuotaExceededError as error:
            await too_much_used(error)(scope, receive, send)
            return
        if authorizer is not None:
            for alternatives in needs:
                if not authorizer.permits(known.caller, *alternatives):
                    refused = refusal(Problem.NOT_AUTHORIZED, no_right_to(alternatives[0]))
                    await refused(scope, receive, send)
                    return
        token = CALLER.set(HttpCaller(known.caller, authorizer, meter.count_produced))
        user = USER.set(user_of(known.caller.principal))

        def check() -> None:
            if not self._is_valid(known, needs):
                raise _RevokedError

        async def checked(message: Message) -> None:
            check()
            await send(message)

        try:
            counted = meter.send(scope, receive, checked, check)
            await self._app(scope, meter.receive(receive), counted)
        except _RevokedError:
            # uvicorn closes the connection, because its response is not complete.
            self._audit(known.caller, scope, "revoked")
        finally:
            USER.reset(user)
            CALLER.reset(token)

    def _is_valid(self, known: _Known, needs: Needs) -> bool:
        """Whether a client still has its login and its rights."""
        if known.expires < time.time() or (known.user and not self._exists(known.user)):
            return False
        authorizer = self._security.authorizer
        return authorizer is None or all(
            any(authorizer.allows(known.caller, each) for each in alternatives)
            for alternatives in needs
        )

    def _exists(self, user: str) -> bool:
        return any((user, each) in self._security.credentials
                   for each in ("SCRAM-SHA-512", "SCRAM-SHA-256"))  # fmt: skip

    # ------------------------------------------------------------------ the client

    async def _known(self, scope: Scope) -> _Known | Response:
        """Return the client, or the response to one that is not known."""
        host = scope["client"][0] if scope.get("client") else ""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) > 1 or any(len(each) > _CREDENTIALS_BYTES_MAX for each in given):
            return self._unknown(host, "", "more than one Authorization, or a long one")
        if given and self._login:
            return await self._by_header(host, given[0].decode("latin-1"))
        certificate = scope.get("state", {}).get(PEER_CERTIFICATE)
        if certificate:
            name = distinguished_name(certificate)
            user = self._security.mapper.user(name)
            if user is None:
                return self._unknown(host, "", f"no rule for the certificate of {name}")
            return _Known(Caller(principal_of(user), host))
        if self._login:
            return self._unknown(host, "", "no Authorization")
        return _Known(Caller(ANONYMOUS, host))

    async def _by_header(self, host: str, given: str) -> _Known | Response:
        scheme, _, value = given.partition(" ")
        try:
            if scheme.lower() == "basic":
                user, colon, password = b64decode(value, validate=True).decode().partition(":")
                if not colon or not await self._security.passwords.is_right(user, password):
                    return self._unknown(host, principal_of(user), "wrong user or password")
                return _Known(Caller(principal_of(user), host), user)
            if scheme.lower() == "bearer" and self._security.tokens is not None:
                validated = await self._security.tokens.validate(value.strip())
                return _Known(Caller(principal_of(validated.user), host), "", validated.expires + (
                    self._security.tokens.skew_seconds))  # fmt: skip
        except TooManyLoginsError:
            return refusal(Problem.OVERLOADED, "too many passwords are being checked; try again")
        except TokenError as error:
            return self._unknown(host, "", str(error))
        except ValueError:
            return self._unknown(host, "", "no valid Authorization")
        return self._unknown(host, "", "another scheme of Authorization")

    def _unknown(self, host: str, principal: str, reason: str) -> Response:
        self._security.audit.write("login", principal, host, "HTTP", "http", reason)
        schemes = 'Basic realm="pidlease", charset="UTF-8"'
        if self._security.tokens is not None:
            schemes += ', Bearer realm="pidlease"'
        return refusal(
            Problem.LOGIN_REQUIRED, "the request needs a valid login",
            headers={"WWW-Authenticate": schemes},
        )  # fmt: skip

    def _refused(self, scope: Scope, known: _Known, reason: str) -> Response:
        if self._security.authorizer is None:
            return refusal(Problem.NOT_FOUND, "there is no such path; /docs lists all")
        self._audit(known.caller, scope, reason)
        return refusal(Problem.NOT_AUTHORIZED, "the client has no right to this path")

    def _audit(self, caller: Caller, scope: Scope, outcome: str) -> None:
        what = f"{scope['method']} {scope['path']}"
        self._security.audit.write("refused", *caller, "HTTP", what, outcome)
