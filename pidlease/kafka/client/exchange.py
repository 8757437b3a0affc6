"""pidlease's own requests. An invalid response ends the connection that it came on.

Whatever follows an invalid response cannot be believed, either.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from pidlease.core.buffer import Buffer
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.codec.messages import Request
from pidlease.kafka.errors import UpstreamNonsenseError
from pidlease.observability.repeated_lines import LINES

Answer = TypeVar("Answer")

_log = structlog.get_logger(__name__)


async def ask(connection: BrokerConnection, request: Request, body: Buffer) -> Any:  # noqa: ANN401 - one of kio's classes
    """Send a request, and read the response.

    Raises:
        UpstreamError: there is no response, or it is invalid.
    """
    return await ask_for(connection, body, request.decode)


async def ask_for(
    connection: BrokerConnection, body: Buffer, reader: Callable[[bytearray], Answer]
) -> Answer:
    """Send a request, and read the response with `reader`.

    Raises:
        UpstreamError: there is no response, or it is invalid.
    """
    try:
        frame = await connection.ask(body)
    except UpstreamNonsenseError as error:
        _end(connection, error)
        raise
    return read(connection, frame, reader)


async def ask_slowly(connection: BrokerConnection, request: Request, body: Buffer) -> Any:  # noqa: ANN401 - one of kio's
    """Send a request, and read a response that may be long, giving way to others meanwhile.

    Raises:
        UpstreamError: there is no response, or it is invalid.
    """
    frame = await ask_for(connection, body, lambda frame: frame)
    try:
        return await request.decode_slowly(frame)
    except UpstreamNonsenseError as error:
        _end(connection, error)
        raise


def read(
    connection: BrokerConnection, frame: bytearray, reader: Callable[[bytearray], Answer]
) -> Answer:
    """Read a response.

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
