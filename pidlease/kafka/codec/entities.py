"""Reads kio's entities from untrusted bytes, and writes large ones in steps.

kio describes every message. But kio's own reader trusts a length before it checks how many bytes
there are: a message of twenty bytes can make it allocate gigabytes. And it rejects unknown tags.
This reader uses the same descriptions, compares each length with the bytes that are there, and
skips unknown tags.
"""

import asyncio
import dataclasses
import io
import types
import typing
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from pidlease.kafka.codec.primitives import FLOAT64, MalformedError, Reader, write_array
from pidlease.kafka.codec.time_slices import TimeSlices

_Read = Callable[[Reader], Any]
#: Array elements that are read before other tasks run.
_AT_ONCE: Final = 256
#: A longer array of entities is written in steps, each of about so many bytes.
_ROWS_AT_ONCE: Final = 16
_STEP_BYTES: Final = 8 << 10
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class _Field(typing.NamedTuple):
    """How to read one field; `tag` is -1 if the field is not tagged.

    For an array, `element` reads one element; `kind` is the elements' class if that contains arrays
    itself.
    """

    name: str
    read: _Read
    tag: int
    element: _Read | None = None
    kind: type | None = None


def read_entity(kind: type, reader: Reader) -> Any:  # noqa: ANN401 - one of kio's classes
    """Read one entity, with all that is nested in it.

    Parameters:
        kind: kio's class of the entity.

    Raises:
        MalformedError: the bytes are not such an entity.
    """
    values: dict[str, Any] = {}
    tagged: dict[int, _Field] = {}
    for field in _fields(kind):
        if field.tag < 0:
            values[field.name] = field.read(reader)
        else:
            tagged[field.tag] = field
    return _finish(kind, reader, tagged, values)


async def read_entity_slowly(kind: type, reader: Reader) -> Any:  # noqa: ANN401 - one of kio's
    """Read one entity, with all that is nested in it; let other tasks run in between.

    Parameters:
        kind: kio's class of the entity.

    Raises:
        MalformedError: the bytes are not such an entity.
    """
    return await _read_slowly(kind, reader, TimeSlices(_AT_ONCE))


async def _read_slowly(kind: type, reader: Reader, turns: TimeSlices) -> Any:  # noqa: ANN401 - one of kio's
    values: dict[str, Any] = {}
    tagged: dict[int, _Field] = {}
    for field in _fields(kind):
        if field.tag >= 0:
            tagged[field.tag] = field
        elif field.element is not None:
            values[field.name] = await _read_array_slowly(field, field.element, reader, turns)
        else:
            values[field.name] = field.read(reader)
    return _finish(kind, reader, tagged, values)


async def _read_array_slowly(
    field: _Field, element: _Read, reader: Reader, turns: TimeSlices
) -> tuple[Any, ...] | None:
    begin = reader.at
    count = reader.nullable_array()
    if count < 0:
        reader.at = begin
        value: tuple[Any, ...] | None = field.read(reader)  # rejects null if it is not allowed
        return value
    elements = []
    for _ in range(count):
        if field.kind is not None:
            elements.append(await _read_slowly(field.kind, reader, turns))
        else:
            elements.append(element(reader))
        if turns.due():
            await asyncio.sleep(0)
    return tuple(elements)


_Entity = Any  # one of kio's classes


def _finish(
    kind: type, reader: Reader, tagged: dict[int, _Field], values: dict[str, _Entity]
) -> _Entity:
    if reader.flexible:
        _read_tagged(reader, tagged, values)
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise MalformedError(f"{kind.__name__}: {error}") from error


def _read_tagged(reader: Reader, known: dict[int, _Field], values: dict[str, Any]) -> None:
    """Read known tags, and skip the others (KIP-482)."""
    for _ in range(reader.tag_count()):
        field = known.get(reader.uvarint())
        size = reader.uvarint()
        end = reader.at + size
        if end > len(reader.frame):
            raise MalformedError("a tagged field is longer than the message")
        if field is not None:
            values[field.name] = field.read(reader)
            if reader.at != end:
                raise MalformedError(f"tagged field {field.name} is not of its size")
        reader.at = end


# ---------------------------------------------------------------------- writing


async def write_entity_slowly(entity: _Entity) -> bytes:
    """Encode one entity, with all that is nested in it; let other tasks run in between."""
    return await _write_slowly(entity, TimeSlices(_STEP_BYTES))


async def _write_slowly(entity: _Entity, turns: TimeSlices) -> bytes:
    name = next((each for each in _row_arrays(entity) if _is_long(entity, each)), "")
    if not name:
        return write_entity(entity)
    rows = getattr(entity, name)
    row = dataclasses.replace(rows[0], **dict.fromkeys(_row_arrays(rows[0]), ()))
    none, one = [
        await _write_slowly(dataclasses.replace(entity, **{name: some}), turns)
        for some in ((), (row,))
    ]
    # Without rows, the array is only its count. There, at its last byte, the two differ first.
    size = len(write_array(0, flexible=entity.__flexible__))
    at = next(each for each in range(len(none)) if none[each] != one[each])
    parts = [none[: at + 1 - size], write_array(len(rows), flexible=entity.__flexible__)]
    for row in rows:
        parts.append(await _write_slowly(row, turns))
        if turns.due(len(parts[-1])):
            await asyncio.sleep(0)
    return b"".join((*parts, none[at + 1 :]))


def _is_long(entity: _Entity, array: str) -> bool:
    rows = getattr(entity, array) or ()
    return len(rows) > _ROWS_AT_ONCE or any(
        _is_long(row, each) for row in rows for each in _row_arrays(row)
    )


def write_entity(entity: _Entity) -> bytes:
    """Encode one entity, with all that is nested in it."""
    stream = io.BytesIO()
    entity_writer(type(entity))(stream, entity)
    return stream.getvalue()


def _row_arrays(entity: _Entity) -> tuple[str, ...]:
    """Return the names of an entity's arrays of entities."""
    kind: Any = type(entity)
    return _row_arrays_of(kind)


@cache
def _row_arrays_of(kind: type) -> tuple[str, ...]:
    hints = typing.get_type_hints(kind)
    arrays = ((each, _array_hint(hints[each.name])) for each in dataclasses.fields(kind))
    return tuple(
        field.name
        for field, hint in arrays
        if hint is not None
        and dataclasses.is_dataclass(typing.get_args(hint)[0])
        and "tag" not in field.metadata
    )


@cache
def _fields(kind: type) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(kind)
    return tuple(_field(each, hints[each.name]) for each in dataclasses.fields(kind))


def _field(field: dataclasses.Field[Any], hint: Any) -> _Field:  # noqa: ANN401 - a type
    kafka_type, tag = field.metadata.get("kafka_type", ""), field.metadata.get("tag", -1)
    read = _reader_of(hint, kafka_type)
    array = _array_hint(hint)
    if array is None:
        return _Field(field.name, read, tag)
    (inner, *_) = typing.get_args(array)
    kind = inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None
    if kind is not None and all(each.element is None for each in _fields(kind)):
        kind = None  # elements without arrays are read in one step
    return _Field(field.name, read, tag, _reader_of(inner, kafka_type), kind)


def _array_hint(hint: Any) -> Any | None:  # noqa: ANN401 - a type
    """Return the type of an array, nullable or not; None: it is not an array."""
    each = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((some for some in each if typing.get_origin(some) is tuple), None)


def _reader_of(hint: Any, kafka_type: str) -> _Read:  # noqa: ANN401 - a type
    """Return the reader of a field, by its Python type and Kafka's type."""
    nullable = isinstance(hint, types.UnionType)
    if nullable:
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is tuple:
        element = _reader_of(typing.get_args(hint)[0], kafka_type)
        return partial(_array, element, nullable=nullable)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return partial(read_entity, hint)
    if kafka_type == "string":
        return partial(_string, nullable=nullable)
    if kafka_type in ("bytes", "records"):
        return partial(_bytes, nullable=nullable)
    if kafka_type == "datetime_i64":
        return partial(_moment, nullable=nullable)
    return _PRIMITIVES[kafka_type]


def _array(element: _Read, reader: Reader, *, nullable: bool) -> tuple[Any, ...] | None:
    count = reader.nullable_array()
    if count < 0:
        if not nullable:
            raise MalformedError("a null array where there must be one")
        return None
    return tuple([element(reader) for _ in range(count)])


def _string(reader: Reader, *, nullable: bool) -> str | None:
    text = reader.string()
    if text is None and not nullable:
        raise MalformedError("a null string where there must be one")
    return text


def _uuid(reader: Reader) -> uuid.UUID | None:
    """Read a UUID; all zero means none."""
    value = int.from_bytes(reader.take(16), "big")
    return uuid.UUID(int=value) if value else None


def _error_code(reader: Reader) -> ErrorCode:
    try:
        return ErrorCode(reader.int16())
    except ValueError as error:
        raise MalformedError(str(error)) from None


def _bytes(reader: Reader, *, nullable: bool) -> bytes | None:
    data = reader.data()
    if data is None and not nullable:
        raise MalformedError("null bytes where there must be some")
    return None if data is None else bytes(data)


def _milliseconds(size: int, reader: Reader) -> timedelta:
    """Read a duration, limited to the longest that Python can represent."""
    value = _signed(size, reader)
    try:
        return timedelta(milliseconds=value)
    except OverflowError:
        return timedelta.max if value > 0 else timedelta.min


def _moment(reader: Reader, *, nullable: bool) -> datetime | None:
    """Read a time in ms since 1970; -1: none."""
    value = _signed(8, reader)
    if value == -1 and nullable:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        raise MalformedError(f"a time of {value} ms since 1970") from None


def _signed(size: int, reader: Reader) -> int:
    return int.from_bytes(reader.take(size), "big", signed=True)


_PRIMITIVES: Final[dict[str, _Read]] = {
    "int8": partial(_signed, 1),
    "int16": partial(_signed, 2),
    "int32": partial(_signed, 4),
    "int64": partial(_signed, 8),
    "float64": lambda reader: FLOAT64.unpack(reader.take(8))[0],
    "uint16": lambda reader: int.from_bytes(reader.take(2), "big"),
    "bool": lambda reader: reader.take(1) != b"\0",
    "uuid": _uuid,
    "error_code": _error_code,
    "timedelta_i32": partial(_milliseconds, 4),
    "timedelta_i64": partial(_milliseconds, 8),
}
