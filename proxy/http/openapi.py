"""Describes the HTTP API for OpenAPI: the errors of each route, and nothing that never comes."""

from collections import defaultdict
from typing import Any, Final

from fastapi import FastAPI

from pidlease.http_api.problems import MEDIA_TYPE, Problem, ProblemAnswer

_SCHEMAS: Final = "#/components/schemas/"
#: FastAPI describes its own response to invalid requests, which this API replaces.
_NEVER_SENT: Final = ("HTTPValidationError", "ValidationError")
#: The problems of every route.
_ALWAYS: Final = (Problem.INTERNAL_ERROR, Problem.NOT_READY)
#: The problems of routes with a JSON body.
JSON_BODY: Final = (
    Problem.INVALID_REQUEST, Problem.INVALID_JSON, Problem.INCOMPLETE_BODY,
    Problem.BODY_TOO_LARGE, Problem.BODY_TOO_SLOW, Problem.OVERLOADED,
)  # fmt: skip

Responses = dict[int | str, dict[str, Any]]


def refusals(*problems: Problem) -> Responses:
    """Describe the error responses of a route, by status."""
    by_status: defaultdict[int, list[Problem]] = defaultdict(list)
    for each in dict.fromkeys((*problems, *_ALWAYS)):
        by_status[each.status].append(each)
    return {status: _refusal(found) for status, found in sorted(by_status.items())}


def _refusal(problems: list[Problem]) -> dict[str, Any]:
    first = problems[0]
    example = {
        "type": first.type,
        "title": first.title,
        "status": first.status,
        "detail": first.title,
        "code": first.code,
        "field": None,
        "error": first.title,
    }
    codes = {"code": {"enum": [each.code for each in problems]}}
    schema = {"$ref": _SCHEMAS + ProblemAnswer.__name__, "properties": codes}
    found: dict[str, Any] = {
        "description": "\n".join(f"- `{each.code}`: {each.title}" for each in problems),
        "content": {MEDIA_TYPE: {"schema": schema, "example": example}},
    }
    if first.status == 503:
        header = {"description": "seconds to wait", "schema": {"type": "integer"}}
        found["headers"] = {"Retry-After": header}
    return found


def add_openapi(app: FastAPI) -> None:
    """Replace the application's OpenAPI document by one that says what is really sent."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _correct(make())
        return make()

    app.openapi = openapi  # type: ignore[method-assign]


def _correct(document: dict[str, Any]) -> None:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in _NEVER_SENT:
        schemas.pop(name, None)
    schemas[ProblemAnswer.__name__] = ProblemAnswer.model_json_schema()
    for operations in document["paths"].values():
        for operation in operations.values():
            responses = operation["responses"]
            if responses.get("422", {}).get("description") == "Validation Error":
                del responses["422"]
