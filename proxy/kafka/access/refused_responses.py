"""Makes responses to requests that are refused, as a whole or in part, for every API and version.

A response to a refused request repeats what the request names, with an error code for each: Kafka's
`getErrorResponse`. Requests and responses call the same thing by the same name, with the
exceptions below; all other fields get the value for "nothing". A request may name very much, so
other tasks run in between.
"""

import asyncio
import dataclasses
import types
import typing
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_ALTER_USER_SCRAM_CREDENTIALS
from pidlease.kafka.codec.messages import Request, Response, response_class
from pidlease.kafka.codec.primitives import RequestHeader
from pidlease.kafka.codec.time_slices import TimeSlices

_CODES: Final = frozenset(("error_code", "partition_error_code"))
_MESSAGE: Final = "error_message"
#: Fields of responses, by the request's names for the same, in order of preference.
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "responses": ("topics", "resources", "topic_names"),
    "results": ("resources", "topics", "groups_names", "creations"),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_partition": ("partitions",),
    "partitions": ("partitions", "partition_indexes"),
    "partition_index": ("partition_index", "partition"),
    "coordinators": ("coordinator_keys",),
    "transaction_states": ("transactional_ids",),
    "filter_results": ("filters",),
    "groups": ("groups", "group_ids"),
}
#: What is not repeated although the request has a field of this name.
_LEFT_OUT: Final = frozenset(("configs", "members", "producer_id", "producer_epoch"))
#: The fields of a row that are the whole element of the request: a name, an id, or a number.
_ELEMENT: Final = frozenset(
    ("name", "user", "group_id", "key", "transactional_id", "partition_index")
)
#: What a row takes, in steps of `TimeSlices`.
_ROW_STEPS: Final = 10
#: Stands for the schema's default.
_DEFAULT: Final = object()
_NOTHING: Final[Mapping[type, object]] = {
    bool: False,
    str: "",
    bytes: b"",
    int: -1,
    timedelta: timedelta(0),
    datetime: datetime.fromtimestamp(0, UTC),
    uuid.UUID: uuid.UUID(int=0),
}


async def refused_response(
    header: RequestHeader,
    request: Any,
    code: ErrorCode,
) -> bytes:
    """Return the response to a request that is refused as a whole."""
    if header.api_key == API_ALTER_USER_SCRAM_CREDENTIALS:
        # Its rows come from two arrays of the request.
        named = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
        return await refused_rows(header, "results", [(name, code) for name in named])
    response = Response(header.api_key, header.version)
    kind = response_class(header.api_key, header.version)
    entity = await _mirrored(kind, request, code, TimeSlices())
    return await response.encode_slowly(header.correlation_id, entity)


async def with_refused(
    header: RequestHeader,
    answer: bytes,
    field: str,
    refused: Iterable[tuple[Any, ErrorCode]],
) -> bytes:
    """Return a response with more rows, for the items of the request that were refused.

    Parameters:
        answer: the response to the rest of the request.
        field: the response's array.
        refused: the request's items, and their errors.
    """
    entity = await Request(header.api_key, header.version).decode_slowly(bytearray(answer))
    return await _encoded(header, entity, field, refused)


async def refused_rows(
    header: RequestHeader, field: str, refused: Iterable[tuple[Any, ErrorCode]]
) -> bytes:
    """Return a response that has nothing but rows for refused items."""
    kind = response_class(header.api_key, header.version)
    entity = await _mirrored(kind, None, ErrorCode.none, TimeSlices())
    return await _encoded(header, entity, field, refused)


async def _encoded(
    header: RequestHeader, entity: Any, field: str, refused: Iterable[tuple[Any, ErrorCode]]
) -> bytes:
    """Encode a response, with more rows for refused items."""
    row, turns = element_class(type(entity), field), TimeSlices()
    rows = [await _mirrored(row, item, code, turns) for item, code in refused]
    changed = dataclasses.replace(entity, **{field: (*getattr(entity, field), *rows)})
    response = Response(header.api_key, header.version)
    return await response.encode_slowly(header.correlation_id, changed)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def element_class(kind: type, field: str) -> Any:
    """Return the class of an array's elements."""
    return _element(_hints(kind)[field])


@cache
def _element(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        found = (_element(each) for each in typing.get_args(hint))
        return next((each for each in found if each is not None), None)
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0]
    return None


async def _mirrored(kind: Any, source: Any, code: ErrorCode, turns: TimeSlices) -> Any:
    if turns.due(_ROW_STEPS):
        await asyncio.sleep(0)
    hints = _hints(kind)
    is_entity = dataclasses.is_dataclass(source)
    values: dict[str, object] = {}
    for field in dataclasses.fields(kind):
        name, hint = field.name, hints[field.name]
        if name in _CODES:
            values[name] = code
        elif name == _MESSAGE:
            values[name] = None if type(None) in typing.get_args(hint) else ""
        elif not is_entity and source is not None and name in _ELEMENT:
            values[name] = source
        else:
            value = await _value(name, hint, source if is_entity else None, code, turns)
            if value is not _DEFAULT or field.default is dataclasses.MISSING:
                values[name] = await _nothing(hint) if value is _DEFAULT else value
    return kind(**values)


async def _value(name: str, hint: Any, source: Any, code: ErrorCode, turns: TimeSlices) -> object:
    names = (each for each in _NAMES.get(name, (name,)) if hasattr(source, each))
    own = next(names, None)
    element = _element(hint)
    if own is None or name in _LEFT_OUT:
        return _DEFAULT
    found = getattr(source, own)
    if element is None:
        return found
    if not dataclasses.is_dataclass(element):
        return found or ()
    return tuple([await _mirrored(element, each, code, turns) for each in found or ()])


async def _nothing(hint: Any) -> object:
    if type(None) in typing.get_args(hint):
        return None
    if _element(hint) is not None:
        return ()
    if dataclasses.is_dataclass(hint):
        return await _mirrored(hint, None, ErrorCode.none, TimeSlices())
    kind = getattr(hint, "__supertype__", hint)
    while not isinstance(kind, type):
        kind = kind.__supertype__
    if issubclass(kind, Enum):
        return ErrorCode.none
    return next(value for each, value in _NOTHING.items() if issubclass(kind, each))
