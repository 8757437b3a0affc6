"""Validates every response of an HTTP client against the application's OpenAPI document."""

import functools
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import httpx
from fastapi import FastAPI
from jsonschema import Draft202012Validator

from pidlease.http_api.problems import Problem, ProblemAnswer
from proxy.http.http_listener import add_http_api

_Hooks = dict[str, list[Callable[..., Coroutine[Any, Any, None]]]]


class OpenApiCheck:
    """Validates responses: their status, content type and content."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document: Final = document
        self._validators: Final[dict[tuple[str, str, str], Draft202012Validator]] = {}
        self._paths: Final = {
            re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))): operations
            for path, operations in document["paths"].items()
        }

    def _validator(self, key: tuple[str, str, str], schema: dict[str, Any]) -> Draft202012Validator:
        if key not in self._validators:
            whole = {**schema, "components": self._document["components"]}
            self._validators[key] = Draft202012Validator(whole)
        return self._validators[key]

    async def response(self, response: httpx.Response) -> None:
        """Validate a response; an `httpx` event hook."""
        await response.aread()
        self.check(response.request.method, response.request.url.path, response)

    def check(self, method: str, path: str, response: httpx.Response) -> None:
        """Validate a response."""
        operations = next((o for p, o in self._paths.items() if p.fullmatch(path)), None)
        if operations is None or method.lower() not in operations:
            problem = Problem.NOT_FOUND if operations is None else Problem.METHOD_NOT_ALLOWED
            code = ProblemAnswer.model_validate_json(response.content).code
            assert (code, response.status_code) == (problem.code, problem.status), response.text
            return
        described = operations[method.lower()]["responses"].get(str(response.status_code))
        assert described, (method, path, response.status_code, response.text)
        if "content" not in described:
            assert not response.content
            return
        kind = response.headers["content-type"].partition(";")[0]
        assert kind in described["content"], (method, path, kind)
        if kind.endswith("json"):
            schema = described["content"][kind]["schema"]
            key = operations[method.lower()]["operationId"], str(response.status_code), kind
            self._validator(key, schema).validate(response.json())
        for name in described.get("headers", ()):
            assert name in response.headers


@functools.cache
def _check() -> OpenApiCheck:
    app = FastAPI()
    add_http_api(app, lambda: None, lambda: None)
    return OpenApiCheck(app.openapi())


def openapi_hooks() -> _Hooks:
    """Event hooks for an `httpx.AsyncClient` of the HTTP API."""
    return {"response": [_check().response]}
