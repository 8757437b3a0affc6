"""Kafka messages by kio, which was written by others from Kafka's own schemas: the oracle.

Requests are built by names, once for all versions: what a version lacks is left out.
"""

import dataclasses
import io
import types
import typing
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
FIND_COORDINATOR: Final = 10
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
INIT_PRODUCER_ID: Final = 22

#: What a field holds where a test does not say.
_ZEROS: Final[dict[type, object]] = {
    str: "",
    bool: False,
    int: 0,
    timedelta: timedelta(0),
    uuid.UUID: None,
}


def encode_request(
    key: int,
    version: int,
    values: Mapping[str, object],
    correlation_id: int = 1,
    client_id: str | None = "wire-test",
) -> bytes:
    """A whole request, without the length in front of it."""
    kind: Any = load_request_schema(key, version)
    header_kind = kind.__header_schema__
    header = build(
        header_kind,
        {
            "request_api_key": key,
            "request_api_version": version,
            "correlation_id": correlation_id,
            "client_id": client_id,
        },
    )
    stream = io.BytesIO()
    entity_writer(header_kind)(stream, header)
    entity_writer(kind)(stream, build(kind, values))
    return stream.getvalue()


def decode_response(key: int, version: int, frame: bytes) -> tuple[int, Any]:
    """Correlation id and body of a response; every byte of it must belong to it."""
    kind: Any = load_response_schema(key, version)
    header, header_size = entity_reader(kind.__header_schema__)(frame, 0)
    body, body_size = entity_reader(kind)(frame, header_size)
    assert header_size + body_size == len(frame), f"{len(frame)} bytes, of which {body_size} used"
    return int(header.correlation_id), body


def build(kind: Any, values: Mapping[str, object]) -> Any:
    """An entity from plain values; nested structs from mappings."""
    hints = _hints(kind)
    given: dict[str, object] = {}
    for field in dataclasses.fields(kind):
        if field.name in values:
            given[field.name] = _value(hints[field.name], values[field.name])
        elif field.default is dataclasses.MISSING:
            given[field.name] = _zero(hints[field.name])
    return kind(**given)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(hint: Any, value: object) -> object:
    nested = _element(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return build(hint, value)
    if nested is None or value is None:
        return value
    assert isinstance(value, Sequence)
    if not dataclasses.is_dataclass(nested):
        return tuple(value)
    return tuple(build(nested, each) for each in value)


def _element(hint: Any) -> type | None:
    """What a tuple field holds; None for other fields."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        found = [_element(each) for each in typing.get_args(hint)]
        return next((each for each in found if each is not None), None)
    if typing.get_origin(hint) is tuple:
        element: type = typing.get_args(hint)[0]
        return element
    return None


def _zero(hint: Any) -> object:
    if type(None) in typing.get_args(hint):
        return None
    if _element(hint) is not None:
        return ()
    return next(zero for kind, zero in _ZEROS.items() if issubclass(hint, kind))
