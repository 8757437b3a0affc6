"""Makes error responses, as problem documents that name the invalid field of the request."""

import math
from collections.abc import Callable, Mapping
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from pidlease.coordination.name_bindings import NamesError
from pidlease.engine.engine import Engine
from pidlease.engine.lease_service import (
    BadNameError,
    NameNeededError,
    UnknownPidError,
    WrongPolicyError,
)
from pidlease.engine.leases.leases import NoPidError, UserBoundError
from pidlease.engine.named_leases import (
    NameBusyError,
    NameConflictError,
    NameTakenError,
    UnknownNameError,
)
from pidlease.engine.partition_lookup import UnknownPartitionError
from pidlease.engine.topic_admin import (
    TopicAdmin,
    TopicForbiddenError,
    TopicsUnavailableError,
)
from pidlease.engine.topics.topic_table import (
    AwaitedTopicError,
    TopicExistsError,
    UnknownTopicError,
)
from pidlease.http_api.problems import MEDIA_TYPE, Problem, ProblemAnswer
from pidlease.storage.errors import LogStoppedError, NotOwnerError
from proxy.http.current_caller import NotAuthorizedError, QuotaExceededError

#: How long a client should wait after a 503, in seconds.
RETRY_AFTER_SECONDS: Final = 1
#: The most characters of a client's name that an error repeats.
_SHOWN: Final = 100
#: The problem of each error, and the invalid field.
_KINDS: Final[Mapping[type[Exception], tuple[Problem, str | None]]] = {
    NotAuthorizedError: (Problem.NOT_AUTHORIZED, None),
    UnknownTopicError: (Problem.UNKNOWN_TOPIC, "topic"),
    AwaitedTopicError: (Problem.TOPIC_NOT_READY, "topic"),
    UnknownPartitionError: (Problem.UNKNOWN_PARTITION, "partition"),
    WrongPolicyError: (Problem.WRONG_POLICY, "pid"),
    UnknownPidError: (Problem.UNKNOWN_PID, "pid"),
    BadNameError: (Problem.INVALID_NAME, "name"),
    NameNeededError: (Problem.NAME_REQUIRED, "name"),
    NameConflictError: (Problem.NAME_CONFLICT, "policy"),
    NameTakenError: (Problem.NAME_TAKEN, "generation"),
    UnknownNameError: (Problem.UNKNOWN_NAME, "name"),
    NameBusyError: (Problem.NAME_BUSY, "name"),
    NamesError: (Problem.NAMES_UNAVAILABLE, None),
    NoPidError: (Problem.PIDS_UNAVAILABLE, None),
    UserBoundError: (Problem.QUOTA_EXCEEDED, None),
    TopicExistsError: (Problem.TOPIC_EXISTS, "name"),
    TopicForbiddenError: (Problem.KAFKA_FORBIDDEN, None),
    TopicsUnavailableError: (Problem.KAFKA_UNAVAILABLE, None),
    LogStoppedError: (Problem.PARTITION_STOPPED, "partition"),
    NotOwnerError: (Problem.NOT_OWNER, "partition"),
}
#: The problems of requests that no route handles, by Starlette's status. Its 400 is about the body:
#: it is no text, or nested too deeply.
_BY_STATUS: Final = {
    400: Problem.INVALID_JSON,
    404: Problem.NOT_FOUND,
    405: Problem.METHOD_NOT_ALLOWED,
}
_METHODS: Final = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
#: The errors that `problem_of` knows.
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


def ready_topics(topics: Callable[[], TopicAdmin | None]) -> TopicAdmin:
    """Return what creates and deletes topics.

    Raises:
        NotReadyError: it does not exist yet.
    """
    current = topics()
    if current is None:
        raise NotReadyError("the server is recovering; try again")
    return current


def problem_of(error: Exception) -> tuple[Problem, str | None]:
    """Return the problem of a refusal, and the invalid field."""
    return _KINDS[type(error)]


def refusal(
    problem: Problem,
    detail: str,
    field: str | None = None,
    *,
    numbers: Mapping[str, int | None] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Make an error response.

    Parameters:
        numbers: the problem's own fields.
        headers: of the response.
    """
    conflict = problem in (Problem.PRODUCER_SEQ_CONFLICT, Problem.PRODUCER_FENCED)
    answer = ProblemAnswer(
        type=problem.type,
        title=problem.title,
        status=problem.status,
        detail=detail,
        code=problem.code,
        field=field,
        error=problem.code if conflict else detail,
        message=detail if conflict else None,
        **(numbers or {}),
    )
    fields = answer.model_dump().items()
    content = {name: value for name, value in fields if value is not None or name == "field"}
    found = dict(headers or {})
    if problem.status in (429, 503):
        found.setdefault("Retry-After", str(RETRY_AFTER_SECONDS))
    return JSONResponse(content, problem.status, found, media_type=MEDIA_TYPE)


async def _exceeded(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, QuotaExceededError):
        raise TypeError("the handler of another error")
    return too_much_used(error)


def too_much_used(error: QuotaExceededError) -> JSONResponse:
    """Return the response to a client that owes something."""
    seconds = max(math.ceil(error.seconds), 1)
    detail = f"{error}; try again in {seconds} s"
    return refusal(Problem.QUOTA_EXCEEDED, detail, headers={"Retry-After": str(seconds)})


def _allowed(request: Request) -> list[str]:
    """Return the methods that a path supports: each may have a route of its own."""
    return [
        method
        for method in _METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in request.app.routes
        )
    ]


#: Of a body that is not sent as JSON.
_OF_TEXT: Final = "it is read as text; send it with Content-Type: application/json"


def add_handlers(app: FastAPI) -> None:
    """Give all errors one form of response."""

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        # The first part is the source: body, query or path. The name of an unknown field comes from
        # the client and may have any length.
        field = ".".join(str(each)[:_SHOWN] for each in first["loc"][1:]) or str(first["loc"][0])
        if first["type"] == "json_invalid":
            return refusal(Problem.INVALID_JSON, "the body is no JSON", "body")
        is_text = field == "body" and isinstance(first.get("input"), bytes)
        text = _OF_TEXT if is_text else first["msg"]
        return refusal(Problem.INVALID_REQUEST, f"{field}: {text}", field)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        problem = _BY_STATUS[error.status_code]
        if problem is Problem.METHOD_NOT_ALLOWED:
            allowed = ", ".join(_allowed(request))
            detail = f"{request.method} is not supported here; supported: {allowed}"
            return refusal(problem, detail, headers={"Allow": allowed})
        if problem is Problem.NOT_FOUND:
            return refusal(problem, "there is no such path; /docs lists all")
        return refusal(problem, error.detail, "body", headers=error.headers)

    @app.exception_handler(NotReadyError)
    async def not_ready(_: Request, error: NotReadyError) -> JSONResponse:
        return refusal(Problem.NOT_READY, str(error))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - it is logged
        return refusal(Problem.INTERNAL_ERROR, "the server failed; its log says why")

    async def refused(_: Request, error: Exception) -> JSONResponse:
        problem, field = problem_of(error)
        return refusal(problem, str(error), field)

    app.add_exception_handler(QuotaExceededError, _exceeded)
    for kind in REFUSALS:
        app.add_exception_handler(kind, refused)
