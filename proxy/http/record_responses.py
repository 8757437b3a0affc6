"""The responses to appends and reads of records, and the errors for refused requests.

RefusedError
|-- ProducerFieldError  a field that identifies the producer is invalid
|-- WrongTypeError      the type of the body is not supported
|-- BodyTooLongError    the body, or the batch made of it, is longer than a batch may be
|-- BodyTooSlowError    no part of the body arrived in time
`-- NoRoomError         requests in flight hold all memory for them

UnreadableError         a batch of the log cannot be read as records
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from pidlease.engine.append_outcome import Outcome, Status
from pidlease.http_api.lease_messages import ErrorAnswer
from pidlease.http_api.record_messages import (
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
    AppendAnswer,
    ConflictAnswer,
    OutOfRangeAnswer,
    UnreadableAnswer,
)
from pidlease.kafka.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    CONTENT,
    INVALID_TOPIC_EXCEPTION,
    MESSAGE_TOO_LARGE,
    NO_RIGHT,
    RECORD_LIST_TOO_LARGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_FOR_MESSAGE_FORMAT,
)
from pidlease.kafka.records.identity_header import Identity
from pidlease.storage.errors import (
    DamagedLogError,
    LogError,
    OffsetRangeError,
    reason_for_clients,
)
from proxy.http.errors import refusal


class RefusedError(Exception):
    """A request is refused before it reaches the log.

    Attributes:
        status: the HTTP status.
        field: the invalid part of the request; None: no part is invalid.
    """

    status: ClassVar[int]
    field: str | None = None


class ProducerFieldError(RefusedError):
    """A field that identifies the producer is invalid."""

    status = 400

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field


class WrongTypeError(RefusedError):
    """The type of the body is not supported."""

    status = 415

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field


class BodyTooLongError(RefusedError):
    """The body, or the batch made of it, is longer than a batch may be."""

    status = 413
    field = "body"


class BodyTooSlowError(RefusedError):
    """No part of the body arrived in time."""

    status = 408
    field = "body"


class NoRoomError(RefusedError):
    """Requests in flight hold all memory for them."""

    status = 503


class UnreadableError(Exception):
    """A batch of the log cannot be read as records.

    Attributes:
        offset: the first unreadable offset.
        next_offset: the offset after the batch.
    """

    def __init__(self, offset: int, next_offset: int, reason: str) -> None:
        super().__init__(
            f"offsets {offset} to {next_offset - 1} cannot be read: {reason};"
            f" go on at {next_offset}"
        )
        self.offset = offset
        self.next_offset = next_offset


#: All responses but 200, for the OpenAPI description.
APPEND_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    409: {"model": ConflictAnswer},
    **{status: {"model": ErrorAnswer} for status in (400, 403, 404, 408, 410, 413, 415, 421, 503)},
}
READ_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    416: {"model": OutOfRangeAnswer},
    422: {"model": UnreadableAnswer},
    **{status: {"model": ErrorAnswer} for status in (400, 404, 500, 503)},
}

_INT64_MAX: Final = 2**63 - 1

_Fields = tuple[str, str, str]
#: The fields with the producer, its generation and its sequence number, in headers and in a body.
_OF_HEADERS: Final[_Fields] = (PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQ)
_OF_BODY: Final[_Fields] = ("pid", "generation", "first_sequence")

#: The HTTP status of other outcomes, and whether the producer's field is invalid.
_REFUSED: Final[Mapping[Status, tuple[int, bool]]] = {
    Status.MALFORMED: (400, True),
    Status.UNKNOWN: (410, True),
    Status.FORBIDDEN: (403, True),
    Status.FAILED: (503, False),
    Status.STOPPED: (503, False),
    Status.NO_LEASE: (503, False),
    Status.SESSION_ENDED: (503, False),
    Status.REFUSED: (503, False),
    Status.NOT_OWNER: (421, False),
}
#: With Kafka as the log: the HTTP status of Kafka's error codes; of all others: 503.
_BY_KAFKA: Final[Mapping[int, int]] = {
    **dict.fromkeys(CONTENT, 400),
    MESSAGE_TOO_LARGE: 413,
    RECORD_LIST_TOO_LARGE: 413,
    UNSUPPORTED_FOR_MESSAGE_FORMAT: 400,
    UNKNOWN_TOPIC_OR_PARTITION: 404,
    INVALID_TOPIC_EXCEPTION: 404,
    CLUSTER_AUTHORIZATION_FAILED: 403,
    **dict.fromkeys(NO_RIGHT, 403),
}


def appended(outcome: Outcome, identity: Identity | None) -> Response:
    """Make the response to an append.

    Parameters:
        identity: the producer; None: the request does not identify it.
    """
    status = outcome.status
    if status in (Status.APPENDED, Status.DUPLICATE):
        offset = outcome.offset if outcome.offset >= 0 else None
        return _json(200, AppendAnswer(offset=offset, duplicate=status is Status.DUPLICATE))
    producer, epoch, seq = _OF_HEADERS if identity is None or identity.name else _OF_BODY
    if status in (Status.GAP, Status.OVERLAP):
        text = f"sequence {outcome.expected} is expected here"
        if status is Status.OVERLAP:
            text += "; what is below it is in the log, send the rest"
        conflict = ConflictAnswer(
            error="producer_seq_conflict", message=text, field=seq, expected_seq=outcome.expected
        )
        return _json(409, conflict)
    if status is Status.FENCED:
        known = outcome.generation if outcome.generation <= _INT64_MAX else None
        text = "another PID has taken this one's place"  # a name's new one
        if known is not None:
            text = f"{epoch} {known} has been here"
        conflict = ConflictAnswer(
            error="producer_fenced", message=text, field=epoch, current_epoch=known
        )
        return _json(409, conflict)
    code, is_of_producer = _REFUSED[status]
    if status is Status.REFUSED:
        code = _BY_KAFKA.get(outcome.code, code)
    return refusal(code, outcome.reason or status.value, producer if is_of_producer else None)


def _json(status: int, answer: BaseModel) -> Response:
    content = answer.model_dump_json(exclude_none=status != 200)
    return Response(content, status_code=status, media_type="application/json")


def add_record_handlers(app: FastAPI) -> None:
    """Give the errors of these routes the common form."""

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> JSONResponse:
        return refusal(error.status, str(error), error.field)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, error: ClientDisconnect) -> JSONResponse:  # noqa: ARG001
        return refusal(400, "the body ended too early", "body")  # not received: the client has gone

    @app.exception_handler(OffsetRangeError)
    async def outside(_: Request, error: OffsetRangeError) -> Response:
        answer = OutOfRangeAnswer(error=str(error), log_start=error.start, log_end=error.end)
        return _json(416, answer)

    @app.exception_handler(UnreadableError)
    async def unreadable(_: Request, error: UnreadableError) -> Response:
        answer = UnreadableAnswer(
            error=str(error), offset=error.offset, next_offset=error.next_offset
        )
        return _json(422, answer)

    @app.exception_handler(DamagedLogError)
    async def damaged(_: Request, error: DamagedLogError) -> JSONResponse:
        return refusal(500, f"the log is damaged there, at byte {error.position}", "offset")

    @app.exception_handler(LogError)
    async def unread(_: Request, error: LogError) -> JSONResponse:
        return refusal(503, f"the log cannot be read: {reason_for_clients(error)}")
