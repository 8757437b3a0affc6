"""Lets only known clients with the needed rights through to the HTTP application, within quotas.

The decision is made again while a response goes out: a stream that was revoked ends.
"""

from contextlib import suppress
from typing import Final

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pidlease.http_api.ping_messages import PING_PATH
from pidlease.http_api.problems import Problem
from proxy.http.access.request_access import (
    Admission,
    RequestAccess,
    Sender,
    Unknown,
    host_of,
)
from proxy.http.access.route_rights import RouteRights
from proxy.http.current_caller import QuotaExceededError, no_right_to
from proxy.http.errors import refusal, too_much_used
from proxy.security.authorizer import Caller
from proxy.security.password_check import TooManyLoginsError
from proxy.security.security import Security

#: Public paths with bodies that have no names.
_WHOLE: Final = ("/healthz", PING_PATH)


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
        self._security: Final = security
        self._rights: Final = rights
        self._access: Final = RequestAccess(security, rights, login=login)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http" or scope["method"] == "OPTIONS":
            # OPTIONS has no route; browsers ask by it what they may send, without a login.
            await self._app(scope, receive, send)
            return
        found = self._rights.find(scope)
        if found is not None and found[0].public and not self._access.is_of_server(scope):
            await self._public(scope, receive, send)
            return
        try:
            known = await self._access.known(scope)
        except TooManyLoginsError:
            text = "too many passwords are being checked; try again"
            await refusal(Problem.OVERLOADED, text)(scope, receive, send)
            return
        if isinstance(known, Unknown):
            await self._unknown(scope, known)(scope, receive, send)
            return
        if found is None or (known.sender is Sender.SERVER and not found[0].of_servers):
            # A path or method that no rule is about, whether it exists or not.
            await self._refused(scope, known.caller, "no rule")(scope, receive, send)
            return
        rule, match = found
        admission = Admission(self._security, known, rule, rule.needs(match, scope), scope)
        await self._serve(scope, receive, send, admission)

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
        self, scope: Scope, receive: Receive, send: Send, admission: Admission
    ) -> None:
        authorizer, meter = self._security.authorizer, admission.meter
        try:
            meter.begin()
        except QuotaExceededError as error:
            await too_much_used(error)(scope, receive, send)
            return
        if authorizer is not None and authorizer.is_undecided(admission.caller):
            # Not 403: a client would give up, and the request may be allowed in a moment.
            refused = refusal(Problem.NOT_READY, "Kafka's ACLs are not read yet; try again")
            await refused(scope, receive, send)
            return
        if authorizer is not None:
            for alternatives in admission.needs:
                if not authorizer.permits(admission.caller, *alternatives):
                    refused = refusal(Problem.NOT_AUTHORIZED, no_right_to(alternatives[0]))
                    await refused(scope, receive, send)
                    return

        def check() -> None:
            if admission.is_revoked():
                raise _RevokedError

        async def checked(message: Message) -> None:
            check()
            await send(message)

        with admission.acting(), suppress(_RevokedError):
            # uvicorn closes the connection if the response is not complete.
            counted = meter.send(scope, receive, checked, check)
            await self._app(scope, meter.receive(receive), counted)

    def _unknown(self, scope: Scope, unknown: Unknown) -> Response:
        principal, reason, detail = unknown
        self._security.audit.write("login", principal, host_of(scope), "HTTP", "http", reason)
        schemes = 'Basic realm="pidlease", charset="UTF-8"'
        if self._security.tokens is not None:
            schemes += ', Bearer realm="pidlease"'
        headers = {"WWW-Authenticate": schemes}
        if self._access.is_of_server(scope):
            headers["Connection"] = "close"  # or it would be kept as another active server's
        return refusal(Problem.LOGIN_REQUIRED, detail, headers=headers)

    def _refused(self, scope: Scope, caller: Caller, reason: str) -> Response:
        if self._security.authorizer is None:
            return refusal(Problem.NOT_FOUND, "there is no such path; /docs lists all")
        what = f"{scope['method']} {scope['path']}"
        self._security.audit.write("refused", *caller, "HTTP", what, reason)
        return refusal(Problem.NOT_AUTHORIZED, "the client has no right to this path")
