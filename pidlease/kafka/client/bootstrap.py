"""Connects to a broker: TCP, TLS, ApiVersions, SASL."""

import asyncio
import random
import ssl
import struct
from typing import Final, NoReturn

from aiokafka.conn import OAuthAuthenticator, SaslPlainAuthenticator, ScramAuthenticator

from pidlease import __version__
from pidlease.kafka.api import (
    API_API_VERSIONS,
    API_SASL_AUTHENTICATE,
    API_SASL_HANDSHAKE,
    CLIENT_ID,
    FEATURE,
    SENT_VERSIONS,
)
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.settings import OAUTHBEARER, Address, TokenProvider, UpstreamConfig
from pidlease.kafka.codec.messages import Request
from pidlease.kafka.error_codes import UNSUPPORTED_SASL_MECHANISM
from pidlease.kafka.errors import (
    NotPidleaseError,
    UpstreamAwayError,
    UpstreamError,
    UpstreamLoginError,
    UpstreamLostError,
    UpstreamNonsenseError,
    UpstreamRefusedError,
)
from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import LINES

#: Correlation id, error code, number of APIs; then the key and versions of each.
_VERSIONS: Final = struct.Struct(">ihi")
_VERSION: Final = struct.Struct(">hhh")
#: The version of ApiVersions that brings the features of a broker.
_FEATURES_SINCE: Final = 3
#: How long the look may take whether a port has TLS.
_LOOK_SECONDS: Final = 2.0
#: How often a port must close the connection, so that it is no server that is ending.
_LOOKS: Final = 3
_LOOK_PAUSE_SECONDS: Final = 0.1
#: Occurs in OpenSSL's text of an alert that the other side has sent.
_ALERT: Final = "_ALERT_"
#: The part of a login's time after which the next one begins, as in Kafka's Java client.
_LOGIN_PART: Final = (0.85, 0.95)
#: Kafka refuses two logins of a connection within a second.
_LOGIN_EVERY_S: Final = 1.1
#: The client has seen the failure (RFC 7628, section 3.2.3).
_FAILURE_SEEN: Final = b"\x01"

_log = Logger(__name__)


async def connect(config: UpstreamConfig, address: Address) -> BrokerConnection:
    """Connect to a broker.

    Raises:
        UpstreamAwayError: it does not respond.
        UpstreamLoginError: TLS or the login does not fit.
        NotPidleaseError: it is no server of pidlease, and the configuration asks for one.
        UpstreamRefusedError: it closes the connection at the first request, or during the login.
        UpstreamNonsenseError: its response is not Kafka's.
    """
    connection = BrokerConnection(address, config.request_seconds, config.client_id)
    try:
        async with asyncio.timeout(config.connect_seconds):
            await _open(connection, config)
            connection.versions = await _versions(connection, config)
            if config.mechanism:
                lifetime_s = await _authenticate(connection, config)
                if lifetime_s:
                    connection.run_beside(_stay_logged_in(connection, config, lifetime_s))
    except TimeoutError:
        connection.close()
        raise UpstreamAwayError(
            f"{connection}: no connection within {config.connect_seconds} s"
        ) from None
    except BaseException:
        connection.close()
        raise
    return connection


async def _open(connection: BrokerConnection, config: UpstreamConfig) -> None:
    host, port = connection.address
    loop = asyncio.get_running_loop()
    context = config.ssl_context
    try:
        await loop.create_connection(
            lambda: connection, host, port, ssl=context, server_hostname=host if context else None
        )
    except ssl.SSLEOFError as error:  # it may be ending
        raise UpstreamAwayError(f"{connection}: {error}") from error
    except ssl.SSLError as error:
        hint = ""
        if isinstance(error, ssl.SSLCertVerificationError):
            hint = "; trust the authority that signed the certificate of this address"
        raise UpstreamLoginError(f"{connection}: TLS failed: {error}{hint}") from error
    except OSError as error:
        raise UpstreamAwayError(f"{connection}: {error}") from error


async def _has_no_tls(address: Address, config: UpstreamConfig) -> bool:
    """Return whether a broker answers without TLS. Nothing secret is sent."""
    connection = BrokerConnection(address, _LOOK_SECONDS, config.client_id)
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            await asyncio.get_running_loop().create_connection(lambda: connection, *address)
            frame = await connection.ask(Request(API_API_VERSIONS, 0, config.client_id).encode())
        return len(frame) >= _VERSIONS.size
    except (OSError, UpstreamError):  # also a timeout
        return False
    finally:
        connection.close()


async def _has_tls(address: Address) -> bool:
    """Return whether a port answers a TLS handshake. Nothing is sent over that connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            _, writer = await asyncio.open_connection(*address, ssl=context)
    except ssl.SSLError as error:
        return _ALERT in str(error)  # it wants a certificate, for example
    except OSError:  # also a timeout
        return False
    writer.transport.abort()
    return True


async def _wants_certificate(address: Address, context: ssl.SSLContext) -> bool:
    """Return whether a port closes each connection after the handshake, before a request.

    By TLS 1.3 a missing certificate is refused after the handshake; some servers send no alert.
    """
    for _ in range(_LOOKS):
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                reader, writer = await asyncio.open_connection(*address, ssl=context)
                try:
                    if await reader.read(1):
                        return False
                finally:
                    writer.transport.abort()
        except ssl.SSLEOFError:
            pass  # it closed the connection
        except ssl.SSLError as error:
            return _ALERT in str(error)
        except ConnectionRefusedError:
            return False  # a server that has just ended is away now
        except TimeoutError:
            return False  # it waits for a request
        except OSError:
            pass  # it closed the connection
        await asyncio.sleep(_LOOK_PAUSE_SECONDS)
    return True


async def wrong_settings(
    config: UpstreamConfig, error: UpstreamError
) -> UpstreamRefusedError | None:
    """Return why trying again does not help after an error; None: it may help.

    A look shows whether a port has TLS. A broker that wants a login answers ApiVersions, and closes
    the connection at the next request; asked by SaslHandshake, it names its mechanisms. Others do
    not know SaslHandshake, or refuse it (KIP-43).
    """
    if isinstance(error, UpstreamLoginError | NotPidleaseError):
        return error
    for address in config.bootstrap:
        if why := await _wrong_settings(config, address, error):
            return UpstreamLoginError(f"Kafka at {address[0]}:{address[1]} {why}")
    return None


async def _wrong_settings(config: UpstreamConfig, address: Address, error: UpstreamError) -> str:
    context = config.ssl_context
    if context is not None:
        if isinstance(error, UpstreamAwayError) and await _has_no_tls(address, config):
            return "has no TLS: the security protocol is PLAINTEXT or SASL_PLAINTEXT"
        is_closed = isinstance(error, UpstreamRefusedError)
        if is_closed and await _wants_certificate(address, context):
            return "wants a certificate of the client, or does not trust it: see ssl_certfile"
    elif isinstance(error, UpstreamRefusedError) and await _has_tls(address):
        return "has TLS: the security protocol is SSL or SASL_SSL"
    if config.mechanism or not isinstance(error, UpstreamLostError):
        return ""
    mechanisms = await _mechanisms(config, address)
    return mechanisms and (
        "wants a login: the security protocol is SASL_SSL or SASL_PLAINTEXT, and the mechanism one"
        f" of {mechanisms}"
    )


async def _mechanisms(config: UpstreamConfig, address: Address) -> str:
    """Return the mechanisms of a broker that wants a login; empty: it does not, or is away."""
    connection = BrokerConnection(address, _LOOK_SECONDS, config.client_id)
    request = Request(API_SASL_HANDSHAKE, 1, config.client_id)
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            await _open(connection, config)
            response = request.decode(await connection.ask(request.encode(mechanism="none")))
    except (TimeoutError, UpstreamError):
        return ""
    finally:
        connection.close()
    is_known = response.error_code.value == UNSUPPORTED_SASL_MECHANISM
    return ", ".join(response.mechanisms) if is_known else ""


async def _versions(
    connection: BrokerConnection, config: UpstreamConfig
) -> dict[int, tuple[int, int]]:
    request = Request(API_API_VERSIONS, _FEATURES_SINCE if config.only_pidlease else 0,
                      config.client_id)  # fmt: skip
    software: dict[str, object] = {}
    if config.only_pidlease:
        software = {"client_software_name": CLIENT_ID, "client_software_version": __version__}
    try:
        frame = await connection.ask(request.encode(**software))
    except UpstreamLostError as error:
        if connection.address in config.served:
            # It stops, or has just started. The request had no effect.
            raise UpstreamAwayError(str(error)) from error
        if _ALERT in str(error):  # TLS 1.3: a missing certificate is refused after the handshake
            raise UpstreamLoginError(f"{connection}: TLS failed: {error}") from error
        hint = "TLS, or SASL" if config.ssl_context is None else "a certificate, or SASL"
        raise UpstreamRefusedError(
            f"{connection} closes the connection at the first request: does it want {hint}?"
        ) from error
    if config.only_pidlease:
        found = _versions_of_pidlease(connection, request, frame)
    else:
        found = _versions_of_any(connection, frame)
    versions = {key: (lowest, highest) for key, lowest, highest in found}
    config.served.note(connection.address, versions)
    return versions


def _versions_of_pidlease(
    connection: BrokerConnection, request: Request, frame: bytearray
) -> list[tuple[int, int, int]]:
    """Read ApiVersions of a server of pidlease: it has its feature (KIP-584)."""
    try:
        response = request.decode(frame)
        names = [each.name for each in response.supported_features]
    except UpstreamNonsenseError:
        names = []  # Kafka before 2.4 does not know the version
    if FEATURE not in names:
        raise NotPidleaseError(
            f"{connection} is not pidlease: a record that is sent again there is stored again; give"
            " the address of pidlease's Kafka port (its --kafka-listen) as bootstrap server"
        )
    return [(each.api_key, each.min_version, each.max_version) for each in response.api_keys]


def _versions_of_any(connection: BrokerConnection, frame: bytearray) -> list[tuple[int, int, int]]:
    """Read version 0 of ApiVersions, which every broker knows."""
    try:
        _, code, count = _VERSIONS.unpack_from(frame)
        found = [_VERSION.unpack_from(frame, _VERSIONS.size + 6 * each) for each in range(count)]
    except struct.error as error:
        raise UpstreamNonsenseError(f"{connection}: its versions are invalid: {error}") from error
    if code:
        raise UpstreamNonsenseError(f"{connection}: ApiVersions returns error {code}")
    return found


async def _authenticate(connection: BrokerConnection, config: UpstreamConfig) -> float:
    """Authenticate by SASL, in Kafka's frames (KIP-43, KIP-152).

    Returns:
        After how many seconds the broker wants the next login (KIP-368); 0: it wants none.
    """
    authenticator = _authenticator(connection, config)
    try:
        # The first message may take long: a provider asks for a token.
        step = await authenticator.step(None)
        with connection.exclusive():
            await _handshake(connection, config)
            while step is not None:
                payload, lifetime_s = await _exchange(connection, config, step[0])
                step = await authenticator.step(payload)
            if config.mechanism == OAUTHBEARER and payload:
                await _refused_token(connection, config)
    except UpstreamLostError as error:
        raise UpstreamRefusedError(f"{connection} refuses {_login_name(config)}") from error
    except UpstreamError:
        raise
    except Exception as error:  # the library's errors for an invalid response
        raise UpstreamRefusedError(f"{connection}: {config.mechanism} failed: {error!r}") from error
    return lifetime_s


async def _handshake(connection: BrokerConnection, config: UpstreamConfig) -> None:
    request = Request(API_SASL_HANDSHAKE, 1, config.client_id)
    message = request.encode(mechanism=config.mechanism)
    response = request.decode(await connection.ask_first(message))
    if response.error_code.value:
        raise UpstreamLoginError(
            f"{connection} does not know SASL mechanism {config.mechanism}, but"
            f" {', '.join(response.mechanisms) or 'none'}"
        )


async def _refused_token(connection: BrokerConnection, config: UpstreamConfig) -> NoReturn:
    """Get the error after a message that refuses the token (RFC 7628, section 3.2.3)."""
    await _exchange(connection, config, _FAILURE_SEEN)
    raise UpstreamLoginError(f"{connection} refuses the token")


async def _stay_logged_in(
    connection: BrokerConnection, config: UpstreamConfig, lifetime_s: float
) -> None:
    """Log in again before each login ends (KIP-368); if that fails, end the connection."""
    try:
        while lifetime_s:
            part = random.uniform(*_LOGIN_PART)  # noqa: S311 - no secret
            await asyncio.sleep(max(_LOGIN_EVERY_S, lifetime_s * part))
            lifetime_s = await _authenticate(connection, config)
    except UpstreamError as error:
        LINES.write(_log, "warning", "a login could not be renewed", str(connection),
                    broker=str(connection), error=str(error))  # fmt: skip
        connection.close(UpstreamLostError(str(error)))


def _login_name(config: UpstreamConfig) -> str:
    return "the token" if config.mechanism == OAUTHBEARER else f"user {config.username!r}"


async def _exchange(
    connection: BrokerConnection, config: UpstreamConfig, token: bytes | str
) -> tuple[bytes, float]:
    """Send one message of a login; return the response's, and how many seconds the login counts."""
    _, highest = connection.versions.get(API_SASL_AUTHENTICATE, (0, 0))
    version = min(highest, SENT_VERSIONS[API_SASL_AUTHENTICATE][1])
    request = Request(API_SASL_AUTHENTICATE, version, config.client_id)
    message = token.encode() if isinstance(token, str) else token
    response = request.decode(await connection.ask_first(request.encode(auth_bytes=message)))
    if response.error_code.value:
        raise UpstreamLoginError(
            f"{connection} refuses {_login_name(config)}: {response.error_message}"
        )
    lifetime_s = response.session_lifetime.total_seconds() if version else 0.0
    return bytes(response.auth_bytes), lifetime_s


class _Tokens:
    """A provider of tokens that raises UpstreamAwayError only: its service may be away."""

    def __init__(self, connection: BrokerConnection, provider: TokenProvider) -> None:
        self._connection: Final = connection
        self._provider: Final = provider

    async def token(self) -> str:
        try:
            return await self._provider.token()
        except Exception as error:
            # Its text may have a part of the token.
            kind = type(error).__name__
            raise UpstreamAwayError(
                f"{self._connection}: the provider of tokens failed: {kind}"
            ) from error

    def extensions(self) -> dict[str, str]:
        found = getattr(self._provider, "extensions", None)
        return dict(found()) if callable(found) else {}


def _authenticator(
    connection: BrokerConnection, config: UpstreamConfig
) -> SaslPlainAuthenticator | ScramAuthenticator | OAuthAuthenticator:
    loop = asyncio.get_running_loop()
    if config.mechanism == OAUTHBEARER and config.token_provider is not None:
        tokens = _Tokens(connection, config.token_provider)
        return OAuthAuthenticator(sasl_oauth_token_provider=tokens)
    if config.mechanism == "PLAIN":
        return SaslPlainAuthenticator(
            loop=loop, sasl_plain_username=config.username, sasl_plain_password=config.password
        )
    return ScramAuthenticator(
        loop=loop,
        sasl_plain_username=config.username,
        sasl_plain_password=config.password,
        sasl_mechanism=config.mechanism,
    )
