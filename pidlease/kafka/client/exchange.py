"""Requests of our own and their responses. An invalid response closes its connection.

Nothing that follows an invalid response on a connection can be trusted.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from pidlease.core.buffer import Buffer
from pidlease.kafka.client.broker_connection import BrokerConnection, version_for
from pidlease.kafka.codec.messages import Request
from pidlease.kafka.errors import UpstreamNonsenseError
from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import LINES

Answer = TypeVar("Answer")

_log = Logger(__name__)


def request_for(connection: BrokerConnection, api_key: int) -> Request:
    """Return the builder of requests of an API, in the highest version of both sides.

    Raises:
        UpstreamRefusedError: there is no such version.
    """
    return Request(api_key, version_for(connection, api_key), connection.client_id)


async def ask(connection: BrokerConnection, request: Request, body: Buffer) -> Any:  # noqa: ANN401 - one of kio's classes
    """Send a request, and return the response.

    Raises:
        UpstreamError: there is no response, or it is invalid.
    """
    return await ask_for(connection, body, request.decode)


async def ask_for(
    connection: BrokerConnection,
    body: Buffer,
    reader: Callable[[bytearray], Answer],
    seconds: float = 0.0,
) -> Answer:
    """Send a request, and decode the response with `reader`.

    Parameters:
        connection: to the broker.
        body: the encoded request.
        reader: decodes the response.
        seconds: how long the response may take; 0: as long as the connection allows.

    Raises:
        UpstreamError: there is no response, or it is invalid.
    """
    try:
        frame = await connection.ask(body, seconds)
    except UpstreamNonsenseError as error:
        _end(connection, error)
        raise
    return read(connection, frame, reader)


async def ask_slowly(connection: BrokerConnection, request: Request, body: Buffer) -> Any:  # noqa: ANN401 - one of kio's
    """Send a request, and decode a response that may be long, in time slices.

    Raises:
        UpstreamError: there is no response, or it is invalid.
    """
    return await read_slowly(
        connection, request, await ask_for(connection, body, lambda frame: frame)
    )


async def read_slowly(connection: BrokerConnection, request: Request, frame: bytearray) -> Any:  # noqa: ANN401 - one of kio's
    """Decode a response that may be long, in time slices.

    Raises:
        UpstreamNonsenseError: it is invalid; the connection is closed.
    """
    try:
        return await request.decode_slowly(frame)
    except UpstreamNonsenseError as error:
        _end(connection, error)
        raise


def read(
    connection: BrokerConnection, frame: bytearray, reader: Callable[[bytearray], Answer]
) -> Answer:
    """Decode a response.

    Parameters:
        connection: its connection.
        frame: the response.
        reader: decodes it.

    Raises:
        UpstreamNonsenseError: it is invalid; the connection is closed.
    """
    try:
        return reader(frame)
    except UpstreamNonsenseError as error:
        _end(connection, error)
        raise


def _end(connection: BrokerConnection, error: UpstreamNonsenseError) -> None:
    connection.close(error)
    LINES.write(_log, "error", "a response of Kafka is invalid", str(connection),
                broker=str(connection), error=str(error))  # fmt: skip
