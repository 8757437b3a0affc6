"""Refuses JSON with an object that has a key twice: parsers take the last one, and say nothing."""

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from typing_extensions import override

#: A string of JSON, as a whole.
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class _DuplicateKeyError(Exception):
    """An object has a key twice."""


def _unique(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _DuplicateKeyError(key)
        seen.add(key)


def check_unique_keys(body: bytes | bytearray, *where: str | int) -> None:
    """Check that no object of some JSON has a key twice. Slower than parsing it.

    What is no JSON passes: its parser says so.

    Parameters:
        where: the JSON is, in the body.

    Raises:
        RequestValidationError: one has.
    """
    try:
        json.loads(body, object_pairs_hook=_unique, parse_int=str, parse_float=str)
    except _DuplicateKeyError as error:
        message = "is there more than once in one object; send it once"
        raise RequestValidationError(
            [{"loc": ("body", *where, str(error)), "type": "duplicate_key", "msg": message}]
        ) from None
    except (ValueError, RecursionError):
        return


def keys_and_objects(body: bytes | bytearray) -> tuple[int, int]:
    """Count the keys of all objects in some valid JSON, and the objects. Faster than parsing it."""
    rest = _STRING.sub(b"", body)
    return rest.count(b":"), rest.count(b"{")


class UniqueKeysRoute(APIRoute):
    """A route that refuses a body with a key twice."""

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        serve = super().get_route_handler()
        if self.body_field is None:
            return serve

        async def checked(request: Request) -> Response:
            check_unique_keys(await request.body())
            return await serve(request)

        return checked
