"""Connects to a broker: TCP, TLS, ApiVersions, SASL."""

import asyncio
import ssl
import struct
from typing import Final

from aiokafka.conn import SaslPlainAuthenticator, ScramAuthenticator

from pidlease.kafka.api import API_API_VERSIONS, API_SASL_AUTHENTICATE, API_SASL_HANDSHAKE
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.settings import Address, UpstreamConfig
from pidlease.kafka.codec.messages import Request
from pidlease.kafka.errors import (
    UpstreamAwayError,
    UpstreamError,
    UpstreamLostError,
    UpstreamNonsenseError,
    UpstreamRefusedError,
)

#: Correlation id, error code, number of APIs; then the key and versions of each.
_VERSIONS: Final = struct.Struct(">ihi")
_VERSION: Final = struct.Struct(">hhh")
#: The most addresses to remember that have responded.
_RESPONDED_MAX: Final = 10_000


async def connect(config: UpstreamConfig, address: Address) -> BrokerConnection:
    """Connect to a broker.

    Raises:
        UpstreamAwayError: it does not respond.
        UpstreamRefusedError: authentication failed, or its certificate is not trusted.
        UpstreamNonsenseError: its response is not Kafka's.
    """
    connection = BrokerConnection(address, config.request_seconds, config.client_id)
    try:
        async with asyncio.timeout(config.connect_seconds):
            await _open(connection, config)
            connection.versions = await _versions(connection, config)
            if config.mechanism:
                await _authenticate(connection, config)
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
    except ssl.SSLError as error:
        raise UpstreamRefusedError(f"{connection}: TLS failed: {error}") from error
    except OSError as error:
        raise UpstreamAwayError(f"{connection}: {error}") from error


async def _versions(
    connection: BrokerConnection, config: UpstreamConfig
) -> dict[int, tuple[int, int]]:
    try:
        frame = await connection.ask(Request(API_API_VERSIONS, 0, config.client_id).encode())
    except UpstreamLostError as error:
        if connection.address in config.responded:
            # It stops, or has just started. The request had no effect.
            raise UpstreamAwayError(str(error)) from error
        raise UpstreamRefusedError(
            f"{connection} closes the connection at the first request: does it want TLS, or SASL?"
        ) from error
    try:
        _, code, count = _VERSIONS.unpack_from(frame)
        found = [_VERSION.unpack_from(frame, _VERSIONS.size + 6 * each) for each in range(count)]
    except struct.error as error:
        raise UpstreamNonsenseError(f"{connection}: its versions are invalid: {error}") from error
    if code:
        raise UpstreamNonsenseError(f"{connection}: ApiVersions returns error {code}")
    if len(config.responded) >= _RESPONDED_MAX:
        config.responded.clear()  # the addresses of brokers may change
    config.responded.add(connection.address)
    return {key: (lowest, highest) for key, lowest, highest in found}


async def _authenticate(connection: BrokerConnection, config: UpstreamConfig) -> None:
    """Authenticate by SASL, in Kafka's frames (KIP-43, KIP-152)."""
    handshake = Request(API_SASL_HANDSHAKE, 1, config.client_id)
    response = handshake.decode(await connection.ask(handshake.encode(mechanism=config.mechanism)))
    if response.error_code.value:
        raise UpstreamRefusedError(
            f"{connection} does not know SASL mechanism {config.mechanism}, but"
            f" {', '.join(response.mechanisms) or 'none'}"
        )
    authenticator = _authenticator(config)
    payload: bytes | None = None
    try:
        while (step := await authenticator.step(payload)) is not None:
            payload = await _exchange(connection, config, step[0])
    except UpstreamLostError as error:
        raise UpstreamRefusedError(f"{connection} refuses user {config.username!r}") from error
    except UpstreamError:
        raise
    except Exception as error:  # the library's errors for an invalid response
        raise UpstreamRefusedError(f"{connection}: {config.mechanism} failed: {error!r}") from error


async def _exchange(connection: BrokerConnection, config: UpstreamConfig, token: bytes) -> bytes:
    request = Request(API_SASL_AUTHENTICATE, 0, config.client_id)
    response = request.decode(await connection.ask(request.encode(auth_bytes=token)))
    if response.error_code.value:
        raise UpstreamRefusedError(
            f"{connection} refuses user {config.username!r}: {response.error_message}"
        )
    return bytes(response.auth_bytes)


def _authenticator(config: UpstreamConfig) -> SaslPlainAuthenticator | ScramAuthenticator:
    loop = asyncio.get_running_loop()
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
