"""SaslHandshake (17) and SaslAuthenticate (36): a client's login (KIP-43, KIP-152, KIP-368).

    START -- SaslHandshake --> EXCHANGE -- SaslAuthenticate, repeated --> LOGGED_IN
    LOGGED_IN -- SaslHandshake --> EXCHANGE (a new login of the same user by the same mechanism)

A failed step ends the connection, after its response.
"""

import asyncio
import enum
import time
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_SASL_AUTHENTICATE, API_SASL_HANDSHAKE
from pidlease.kafka.codec.messages import Response, read_request
from pidlease.kafka.codec.primitives import MalformedError, RequestHeader
from proxy.kafka.request_order import Answered
from proxy.security.password_check import TooManyLoginsError
from proxy.security.scram_exchange import LoginRefusedError, ScramExchange
from proxy.security.security import Security, principal_of
from proxy.security.token_validator import TOKEN_BYTES_MAX, TokenError

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
#: How long the response to a failed login waits, as connection.failed.authentication.delay.ms.
_FAILURE_SECONDS: Final = 0.1
#: After a failed OAUTHBEARER step, the client sends this, and gets the failure (RFC 7628, 3.2.3).
_ABORT: Final = b"\x01"
_REFUSED: Final = "Authentication failed"


class LoginState(enum.Enum):
    """How far a connection's login is."""

    START = enum.auto()
    EXCHANGE = enum.auto()
    LOGGED_IN = enum.auto()


class LoggedIn(NamedTuple):
    """The result of a login.

    Attributes:
        expires: when it ends, by the monotonic clock.
    """

    principal: str
    mechanism: str
    expires: float


class LoginConnection(Protocol):
    """A connection, as its login uses it.

    Attributes:
        host: the client's address, without the port.
    """

    host: str

    @property
    def wants_login(self) -> bool:
        """Whether the client must log in by SASL."""

    def begin_exchange(self) -> None:
        """Accept only the steps of a login until it is complete."""

    def logged_in(self, result: LoggedIn) -> None:
        """Accept all requests from now on."""

    def note_login(self, principal: str, mechanism: str, outcome: str) -> None:
        """Write a login into the audit log.

        Parameters:
            principal: `User:NAME`; empty: not known.
            outcome: `success`, or why the client is refused.
        """

    def hold(self) -> None:
        """Handle no further request until `release`."""

    def release(self) -> None:
        """Handle requests again."""

    def finish(self) -> None:
        """Stop reading, and close the connection when all responses are sent."""


class SaslLogin:
    """The login of one connection.

    Parameters:
        security: users, tokens and the audit log.
        connection: gets the result.
    """

    def __init__(self, security: Security, connection: LoginConnection) -> None:
        self._security: Final = security
        self._connection: Final = connection
        self.state = LoginState.START
        self._mechanism = ""
        self._scram: ScramExchange | None = None
        self._before: LoggedIn | None = None

    def handshake(self, header: RequestHeader, frame: bytearray) -> bytes:
        """Answer SaslHandshake."""
        mechanism = str(read_request(header, frame).mechanism)
        enabled = self._security.config.mechanisms
        code = ErrorCode.none
        before = self._before
        if not self._connection.wants_login:  # as in Kafka, where another listener has logins
            code, enabled = ErrorCode.illegal_sasl_state, ()
        elif mechanism not in enabled:
            code = ErrorCode.unsupported_sasl_mechanism
        elif before is not None and before.mechanism != mechanism:
            code = ErrorCode.illegal_sasl_state
        if code is ErrorCode.none:
            self.state = LoginState.EXCHANGE
            self._connection.begin_exchange()
            self._mechanism = mechanism
            self._scram = None
            if mechanism not in (PLAIN, OAUTHBEARER):
                security = self._security
                self._scram = ScramExchange(
                    mechanism, lambda: security.credentials, security.stand_ins
                )
        else:
            self._audit("", f"mechanism {mechanism[:20]!r} refused")
            self._connection.finish()
        return Response(API_SASL_HANDSHAKE, header.version).encode(
            header.correlation_id, error_code=code, mechanisms=enabled
        )

    def authenticate(self, header: RequestHeader, frame: bytearray) -> Answered:
        """Answer SaslAuthenticate.

        Raises:
            MalformedError: no SaslHandshake came before.
        """
        if self.state is not LoginState.EXCHANGE:
            raise MalformedError("SaslAuthenticate without SaslHandshake")
        message = bytes(read_request(header, frame).auth_bytes)
        if self._scram is None:
            # The next requests wait: this step takes a thread, and they may need the login.
            self._connection.hold()
            return self._in_thread(header, message)
        try:
            answer, complete = self._scram.step(message)
            if complete:
                lifetime = self._complete(principal_of(self._scram.user), None)
                return _accepted(header, answer, lifetime)
        except LoginRefusedError as error:
            return self._fail(header, principal_of(self._scram.user), str(error))
        return _accepted(header, answer, 0)

    async def _in_thread(self, header: RequestHeader, message: bytes) -> bytes | None:
        try:
            principal, expires = await self._checked(message)
            return _accepted(header, b"", self._complete(principal, expires))
        except (LoginRefusedError, TokenError) as error:
            return await self._fail(header, "", str(error))
        except TooManyLoginsError:
            # No response: clients take each error of a login for final, and the end of a connection
            # for a reason to try again.
            self._end("", "too many logins at once")
            return None
        finally:
            self._connection.release()

    async def _checked(self, message: bytes) -> tuple[str, float | None]:
        """Return the principal of a PLAIN or OAUTHBEARER message, and when its token expires.

        Raises:
            LoginRefusedError: the password is wrong, or the message is invalid.
            TokenError: the token is invalid.
            TooManyLoginsError: too many passwords are being checked.
        """
        if self._mechanism == PLAIN:
            user, password = _plain(message)
            host = self._connection.host
            if not await self._security.passwords.is_right(user, password, host):
                raise LoginRefusedError(
                    f"the password of {user!r} is wrong, or there is no such user"
                )
            return principal_of(user), None
        tokens = self._security.tokens
        if tokens is None or message == _ABORT:
            raise LoginRefusedError("the client ended the login")
        validated = await tokens.validate(_token(message))
        return principal_of(validated.user), validated.expires

    def _complete(self, principal: str, expires: float | None) -> int:
        """End a successful login; return its lifetime in ms, 0 without a limit.

        Raises:
            LoginRefusedError: the connection belongs to another user.
        """
        before = self._before
        if before is not None and before.principal != principal:
            raise LoginRefusedError("a connection cannot change its user")
        seconds = self._security.config.reauth_seconds or float("inf")
        if expires is not None:
            seconds = min(seconds, expires - time.time())
        if seconds <= 0:
            raise LoginRefusedError("the token has expired")
        self.state = LoginState.LOGGED_IN
        self._scram = None
        self._before = LoggedIn(principal, self._mechanism, time.monotonic() + seconds)
        self._connection.logged_in(self._before)
        self._audit(principal, "success")
        return 0 if seconds == float("inf") else max(int(seconds * 1000), 1)

    def _fail(
        self, header: RequestHeader, principal: str, reason: str
    ) -> Coroutine[Any, Any, bytes]:
        self._end(principal, reason)
        return _late_failure(header)

    def _end(self, principal: str, reason: str) -> None:
        self._audit(principal, reason)
        self.state = LoginState.START
        self._scram = None
        # Reading stops now: nothing after a failed login is handled.
        self._connection.finish()

    def _audit(self, principal: str, outcome: str) -> None:
        self._connection.note_login(principal, self._mechanism, outcome)


def _accepted(header: RequestHeader, answer: bytes, lifetime_ms: int) -> bytes:
    return Response(API_SASL_AUTHENTICATE, header.version).encode(
        header.correlation_id, error_code=ErrorCode.none, error_message=None, auth_bytes=answer,
        session_lifetime=timedelta(milliseconds=lifetime_ms),
    )  # fmt: skip


async def _late_failure(header: RequestHeader) -> bytes:
    await asyncio.sleep(_FAILURE_SECONDS)
    return Response(API_SASL_AUTHENTICATE, header.version).encode(
        header.correlation_id, error_code=ErrorCode.sasl_authentication_failed,
        error_message=_REFUSED, auth_bytes=b"", session_lifetime=timedelta(0),
    )  # fmt: skip


def _plain(message: bytes) -> tuple[str, str]:
    """Read user and password of a PLAIN message (RFC 4616).

    Raises:
        LoginRefusedError: it is none, or asks to act for another user.
    """
    try:
        authorised, user, password = message.decode().split("\0")
    except ValueError:
        raise LoginRefusedError("this is no PLAIN message") from None
    if not user or not password or authorised not in ("", user):
        raise LoginRefusedError("this is no PLAIN message")
    return user, password


def _token(message: bytes) -> str:
    r"""Read the token of an OAUTHBEARER message: `n,,^Aauth=Bearer TOKEN^A^A` (RFC 7628).

    Raises:
        LoginRefusedError: it is none, or asks to act for another user.
    """
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError:
        raise LoginRefusedError("this is no OAUTHBEARER message") from None
    head, _, rest = text.partition("\x01")
    if head != "n,," or not rest.endswith("\x01\x01") or len(rest) > TOKEN_BYTES_MAX:
        raise LoginRefusedError("this is no OAUTHBEARER message")
    for pair in rest[:-2].split("\x01"):
        name, _, value = pair.partition("=")
        if name == "auth" and value[:7].lower() == "bearer ":
            return value[7:].strip()
    raise LoginRefusedError("the message has no token")
