"""The responses to appends and reads of records, and the errors for refused requests.

RefusedError
|-- ProducerFieldError  a field that identifies the producer is invalid
|-- IdempotencyKeyError the header Idempotency-Key is invalid
|-- KeyFieldError       the keys of the records do not say their partition
|-- WrongTypeError      the type of the body is not supported
|-- BodyTooLongError    the body, or the batch made of it, is longer than a batch may be
|-- CodedBodyError      the body is not what its Content-Encoding says
|-- BodyTooSlowError    the body, or a part of it, did not arrive in time
`-- NoRoomError         requests in flight hold all memory for them

UnreadableError         a batch of the log cannot be read as records
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from pidlease.core.idempotency_keys import is_key_name
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.keys_in_flight import KeyInFlightError
from pidlease.http_api.problems import Problem
from pidlease.http_api.record_messages import (
    IDEMPOTENCY_KEY,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
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
from proxy.http.errors import RETRY_AFTER_SECONDS, refusal
from proxy.http.openapi import JSON_BODY, refusals


class RefusedError(Exception):
    """A request is refused before it reaches the log.

    Attributes:
        problem: the kind of error.
        field: the invalid part of the request; None: no part is invalid.
    """

    problem: ClassVar[Problem]
    field: str | None = None


class ProducerFieldError(RefusedError):
    """A field that identifies the producer is invalid."""

    problem = Problem.INVALID_PRODUCER

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field


class IdempotencyKeyError(RefusedError):
    """The header Idempotency-Key is invalid."""

    problem = Problem.INVALID_IDEMPOTENCY_KEY
    field = IDEMPOTENCY_KEY

    def __init__(self, text: str) -> None:
        super().__init__(f"{IDEMPOTENCY_KEY}: {text}")


class KeyFieldError(RefusedError):
    """The keys of the records do not say their partition."""

    problem = Problem.INVALID_REQUEST
    field = "records.0.key"


class WrongTypeError(RefusedError):
    """The type of the body is not supported."""

    problem = Problem.UNSUPPORTED_BODY

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field


class BodyTooLongError(RefusedError):
    """The body, or the batch made of it, is longer than a batch may be."""

    problem = Problem.BODY_TOO_LARGE
    field = "body"


class CodedBodyError(RefusedError):
    """The body is not what its Content-Encoding says."""

    problem = Problem.INVALID_REQUEST
    field = "body"


class BodyTooSlowError(RefusedError):
    """The body, or a part of it, did not arrive in time."""

    problem = Problem.BODY_TOO_SLOW
    field = "body"


class NoRoomError(RefusedError):
    """Requests in flight hold all memory for them."""

    problem = Problem.OVERLOADED


class BodyAtStopError(RefusedError):
    """The server stops, and waits no longer for the body."""

    problem = Problem.NOT_READY

    def __init__(self) -> None:
        super().__init__("the server is stopping, and the body has not arrived; try again")


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
        self._reason: Final = reason

    def moved(self, by: int) -> "UnreadableError":
        """Return the same error at other offsets: a stream may begin with another one's values."""
        return UnreadableError(self.offset + by, self.next_offset + by, self._reason)


#: All responses but 200, for the OpenAPI description.
APPEND_REFUSALS: Final = refusals(
    *JSON_BODY,
    Problem.INVALID_TOPIC,
    Problem.INVALID_PRODUCER,
    Problem.INVALID_IDEMPOTENCY_KEY,
    Problem.INVALID_BATCH,
    Problem.INCOMPLETE_BODY,
    Problem.POLICY_FORBIDDEN,
    Problem.KAFKA_FORBIDDEN,
    Problem.UNKNOWN_TOPIC,
    Problem.UNKNOWN_PARTITION,
    Problem.BODY_TOO_SLOW,
    Problem.PRODUCER_SEQ_CONFLICT,
    Problem.PRODUCER_FENCED,
    Problem.IDEMPOTENCY_KEY_IN_USE,
    Problem.UNKNOWN_PID,
    Problem.UNSUPPORTED_BODY,
    Problem.NOT_OWNER,
    Problem.IDEMPOTENCY_KEY_REUSED,
    Problem.APPEND_FAILED,
    Problem.TOPIC_NOT_READY,
    Problem.PARTITION_STOPPED,
    Problem.IDEMPOTENCY_KEYS_FULL,
    Problem.OVERLOADED,
    Problem.NAMES_UNAVAILABLE,
    Problem.PIDS_UNAVAILABLE,
)
READ_REFUSALS: Final = refusals(
    Problem.INVALID_REQUEST,
    Problem.UNKNOWN_TOPIC,
    Problem.UNKNOWN_PARTITION,
    Problem.OFFSET_OUT_OF_RANGE,
    Problem.UNREADABLE_RECORDS,
    Problem.LOG_DAMAGED,
    Problem.TOPIC_NOT_READY,
    Problem.PARTITION_STOPPED,
    Problem.LOG_UNREADABLE,
    Problem.OVERLOADED,
)

_INT64_MAX: Final = 2**63 - 1

_Fields = tuple[str, str, str]
#: The fields with the producer, its generation and its sequence number, in headers and in a body.
_OF_HEADERS: Final[_Fields] = (PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQ)
_OF_BODY: Final[_Fields] = ("pid", "generation", "first_sequence")

#: The problem of other outcomes, and whether the producer's field is invalid.
_REFUSED: Final[Mapping[Status, tuple[Problem, bool]]] = {
    Status.MALFORMED: (Problem.INVALID_PRODUCER, True),
    Status.UNKNOWN: (Problem.UNKNOWN_PID, True),
    Status.FORBIDDEN: (Problem.POLICY_FORBIDDEN, True),
    Status.FAILED: (Problem.APPEND_FAILED, False),
    Status.STOPPED: (Problem.PARTITION_STOPPED, False),
    Status.NO_LEASE: (Problem.PIDS_UNAVAILABLE, False),
    Status.SESSION_ENDED: (Problem.APPEND_FAILED, False),
    Status.REFUSED: (Problem.APPEND_FAILED, False),
    Status.NOT_OWNER: (Problem.NOT_OWNER, False),
}
#: With Kafka as the log: the problems of Kafka's error codes; of all others: the append failed.
_BY_KAFKA: Final[Mapping[int, Problem]] = {
    **dict.fromkeys(CONTENT, Problem.INVALID_BATCH),
    MESSAGE_TOO_LARGE: Problem.BODY_TOO_LARGE,
    RECORD_LIST_TOO_LARGE: Problem.BODY_TOO_LARGE,
    UNSUPPORTED_FOR_MESSAGE_FORMAT: Problem.INVALID_BATCH,
    UNKNOWN_TOPIC_OR_PARTITION: Problem.UNKNOWN_TOPIC,
    INVALID_TOPIC_EXCEPTION: Problem.UNKNOWN_TOPIC,
    CLUSTER_AUTHORIZATION_FAILED: Problem.KAFKA_FORBIDDEN,
    **dict.fromkeys(NO_RIGHT, Problem.KAFKA_FORBIDDEN),
}


class AppendedResponse(Response):
    """An `AppendAnswer`, or an `AppendByKeyAnswer`, made by hand: half the time of an append.

    Parameters:
        offset: of the first record; -1: unknown.
        partition: the one that the server has chosen; None: the request names it.
        duplicate: whether the records were in the log already.
    """

    def __init__(self, offset: int, partition: int | None, *, duplicate: bool) -> None:
        chosen = b"" if partition is None else b',"partition":%d' % partition
        self.body = b'{"offset":%s,"duplicate":%s%s}' % (
            b"%d" % offset if offset >= 0 else b"null", b"true" if duplicate else b"false", chosen,
        )  # fmt: skip
        self.status_code = 200
        self.background = None
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
        ]


def appended(outcome: Outcome, identity: Identity | None, partition: int | None = None) -> Response:
    """Make the response to an append.

    Parameters:
        identity: the producer; None: the request does not identify it.
        partition: the one that the server has chosen; None: the request names it.
    """
    status = outcome.status
    if identity is not None and is_key_name(identity.name):
        refused = _refused_key(outcome)
        if refused is not None:
            return refused
    if status in (Status.APPENDED, Status.DUPLICATE):
        return AppendedResponse(outcome.offset, partition, duplicate=status is Status.DUPLICATE)
    producer, epoch, seq = _OF_HEADERS if identity is None or identity.name else _OF_BODY
    if status in (Status.GAP, Status.OVERLAP):
        text = f"sequence {outcome.expected} is expected here"
        if status is Status.OVERLAP:
            text += "; what is below it is in the log, send the rest"
        expected = {"expected_seq": outcome.expected}
        return refusal(Problem.PRODUCER_SEQ_CONFLICT, text, seq, numbers=expected)
    if status is Status.FENCED:
        known, text = None, outcome.reason
        if 0 <= outcome.generation <= _INT64_MAX:  # not if its name has another PID
            known, text = outcome.generation, f"{epoch} {outcome.generation} has been here"
        return refusal(Problem.PRODUCER_FENCED, text, epoch, numbers={"current_epoch": known})
    problem, is_of_producer = _REFUSED[status]
    if status is Status.REFUSED:
        problem = _BY_KAFKA.get(outcome.code, problem)
    return refusal(problem, outcome.reason or status.value, producer if is_of_producer else None)


def _refused_key(outcome: Outcome) -> Response | None:
    """Return the refusal of an append with an idempotency key; None: it is not one of its own."""
    status = outcome.status
    if status is Status.KEY_REUSED:
        return refusal(Problem.IDEMPOTENCY_KEY_REUSED, outcome.reason, IDEMPOTENCY_KEY)
    if status is Status.NO_LEASE:
        text = "as many keys are in use as --idempotency-keys-max allows; try again when some have"
        return refusal(Problem.IDEMPOTENCY_KEYS_FULL, f"{text} ended", IDEMPOTENCY_KEY)
    if status is Status.FORBIDDEN:
        return refusal(Problem.POLICY_FORBIDDEN, outcome.reason, IDEMPOTENCY_KEY)
    return None


def incomplete_body() -> JSONResponse:
    """Return the response to a body that is cut off; a client that has closed does not get it."""
    return refusal(Problem.INCOMPLETE_BODY, "the body ended too early", "body")


def add_record_handlers(app: FastAPI) -> None:
    """Give the errors of these routes the common form."""

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> JSONResponse:
        return refusal(error.problem, str(error), error.field)

    @app.exception_handler(KeyInFlightError)
    async def in_flight(_: Request, error: KeyInFlightError) -> JSONResponse:
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        return refusal(Problem.IDEMPOTENCY_KEY_IN_USE, str(error), IDEMPOTENCY_KEY, headers=headers)

    @app.exception_handler(ClientDisconnect)
    async def cut(_: Request, error: ClientDisconnect) -> JSONResponse:  # noqa: ARG001
        return incomplete_body()

    @app.exception_handler(OffsetRangeError)
    async def outside(_: Request, error: OffsetRangeError) -> JSONResponse:
        numbers = {"log_start": error.start, "log_end": error.end}
        return refusal(Problem.OFFSET_OUT_OF_RANGE, str(error), "offset", numbers=numbers)

    @app.exception_handler(UnreadableError)
    async def unreadable(_: Request, error: UnreadableError) -> JSONResponse:
        numbers = {"offset": error.offset, "next_offset": error.next_offset}
        return refusal(Problem.UNREADABLE_RECORDS, str(error), "offset", numbers=numbers)

    @app.exception_handler(DamagedLogError)
    async def damaged(_: Request, error: DamagedLogError) -> JSONResponse:
        text = f"the log is damaged there, at byte {error.position}"
        return refusal(Problem.LOG_DAMAGED, text, "offset")

    @app.exception_handler(LogError)
    async def unread(_: Request, error: LogError) -> JSONResponse:
        text = f"the log cannot be read: {reason_for_clients(error)}"
        return refusal(Problem.LOG_UNREADABLE, text)
