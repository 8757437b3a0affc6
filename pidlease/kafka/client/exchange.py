"""Requests of our own, and answers that are none: those end the connection they came on.

What comes behind an answer that makes no sense is not to be believed, either.
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
    """Ask something, and read the answer.

    Raises:
        UpstreamError: there is none, or it makes no sense.
    """
    return await ask_for(connection, body, request.decode)


async def ask_for(
    connection: BrokerConnection, body: Buffer, reader: Callable[[bytearray], Answer]
) -> Answer:
    """The same with an answer that is read another way.

    Raises:
        UpstreamError: there is none, or it makes no sense.
    """
    try:
        frame = await connection.ask(body)
    except UpstreamNonsenseError as error:
        _end(connection, error)
        raise
    return read(connection, frame, reader)


async def ask_slowly(connection: BrokerConnection, request: Request, body: Buffer) -> Any:  # noqa: ANN401 - one of kio's
    """The same as `ask` with an answer that may be long: others get their turn in between.

    Raises:
        UpstreamError: there is none, or it makes no sense.
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
    """Read an answer.

    Parameters:
        connection: where it came from.
        frame: what came.
        reader: takes it apart.

    Raises:
        UpstreamNonsenseError: it makes no sense; the connection is closed.
    """
    try:
        return reader(frame)
    except UpstreamNonsenseError as error:
        _end(connection, error)
        raise


def _end(connection: BrokerConnection, error: UpstreamNonsenseError) -> None:
    connection.close(error)
    LINES.write(_log, "error", "an answer of Kafka makes no sense", str(connection),
                broker=str(connection), error=str(error))  # fmt: skip
