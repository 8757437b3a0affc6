"""Makes JSON error responses, which name the invalid field of the request."""

from collections.abc import Callable, Mapping
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from pidlease.coordination.name_bindings import NamesError
from pidlease.engine.engine import Engine
from pidlease.engine.lease_service import (
    BadNameError,
    NameNeededError,
    UnknownPidError,
    WrongPolicyError,
)
from pidlease.engine.leases.leases import NoPidError
from pidlease.engine.named_leases import (
    NameBusyError,
    NameConflictError,
    NameTakenError,
    UnknownNameError,
)
from pidlease.engine.partition_lookup import UnknownPartitionError
from pidlease.engine.topics.topic_table import AwaitedTopicError, UnknownTopicError
from pidlease.http_api.lease_messages import ErrorAnswer
from pidlease.storage.errors import LogStoppedError

#: How long a client should wait after a 503, in seconds.
RETRY_AFTER_SECONDS: Final = 1
#: The most characters of a client's name that an error repeats.
_SHOWN: Final = 100
#: The HTTP status of each error, and the invalid field.
_KINDS: Final[Mapping[type[Exception], tuple[int, str | None]]] = {
    UnknownTopicError: (404, "topic"),
    AwaitedTopicError: (503, "topic"),
    UnknownPartitionError: (404, "partition"),
    WrongPolicyError: (400, "pid"),
    UnknownPidError: (410, "pid"),
    BadNameError: (400, "name"),
    NameNeededError: (400, "name"),
    NameConflictError: (409, "policy"),
    NameTakenError: (409, "generation"),
    UnknownNameError: (404, "name"),
    NameBusyError: (503, "name"),
    NamesError: (503, None),
    NoPidError: (503, None),
    LogStoppedError: (503, "partition"),
}
#: The errors that `status_of` knows.
REFUSALS: Final = tuple(_KINDS)


class NotReadyError(Exception):
    """The server is recovering or stopping."""


def ready_engine(engine: Callable[[], Engine | None]) -> Engine:
    """Return the engine when it is ready.

    Raises:
        NotReadyError: it does not exist yet, or is recovering or stopping.
    """
    current = engine()
    if current is None or not current.ready:
        raise NotReadyError("the server is recovering or stopping; try again")
    return current


def status_of(error: Exception) -> tuple[int, str | None]:
    """Return the HTTP status of a refusal, and the invalid field."""
    return _KINDS[type(error)]


def refusal(status: int, text: str, field: str | None = None) -> JSONResponse:
    """Make an error response."""
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 503 else None
    content = ErrorAnswer(error=text, field=field).model_dump()
    return JSONResponse(content, status_code=status, headers=headers)


def add_handlers(app: FastAPI) -> None:
    """Give all errors one form of response."""

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        # The first part is the source: body, query or path. The name of an unknown field comes from
        # the client and may have any length.
        field = ".".join(str(each)[:_SHOWN] for each in first["loc"][1:]) or str(first["loc"][0])
        if first["type"] == "json_invalid":
            return refusal(400, "the body is no JSON", "body")
        return refusal(400, f"{field}: {first['msg']}", field)

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> JSONResponse:
        # Starlette's 400 is about the body: it is no text, or nested too deeply.
        return refusal(
            error.status_code, error.detail, "body" if error.status_code == 400 else None
        )

    @app.exception_handler(NotReadyError)
    async def not_ready(_: Request, error: NotReadyError) -> JSONResponse:
        return refusal(503, str(error))

    async def refused(_: Request, error: Exception) -> JSONResponse:
        status, field = status_of(error)
        return refusal(status, str(error), field)

    for kind in REFUSALS:
        app.add_exception_handler(kind, refused)
