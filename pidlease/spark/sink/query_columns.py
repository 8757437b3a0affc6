"""Which columns of a query are what."""

from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pidlease.spark.errors import SinkError

_BYTES: Final = (BinaryType, StringType)
_WHOLE: Final = (IntegerType, LongType, ShortType)
#: What each column may be.
_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "key": _BYTES,
    "value": _BYTES,
    "headers": (ArrayType,),
    "timestamp": (TimestampType, TimestampNTZType),
    "topic": (StringType,),
    "partition": _WHOLE,
    "offset": _WHOLE,
    "source_topic": (StringType,),
    "source_partition": _WHOLE,
    "source_offset": _WHOLE,
}
_SOURCE: Final = ("source_topic", "source_partition", "source_offset")
_PLAIN: Final = ("topic", "partition", "offset")
_HELP: Final = (
    "keep the source's columns topic, partition and offset; or name them source_topic,"
    " source_partition and source_offset, and partition is the destination's"
)


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of columns.

    Attributes:
        source: those of the source's topic, partition and offset.
        partition: of the destination's partition; empty: it is the source's.
        value: of the value.
        key, headers, timestamp: empty: there is none.
    """

    source: tuple[str, str, str]
    partition: str
    value: str
    key: str
    headers: str
    timestamp: str


def find_columns(schema: StructType) -> Columns:
    """Tell a query's columns by their names.

    Raises:
        SinkError: one is missing, or of a type that makes no sense.
    """
    kinds = {field.name.lower(): (field.name, field.dataType) for field in schema}
    names = {lower: name for lower, (name, _) in kinds.items()}
    for lower, (name, kind) in kinds.items():
        allowed = _TYPES.get(lower)
        if allowed is not None and not isinstance(kind, allowed):
            wanted = " or ".join(each.typeName() for each in allowed)
            raise SinkError(f"column {name} is {kind.simpleString()}; it must be {wanted}")
    if "headers" in kinds and not _are_headers(kinds["headers"][1]):
        raise SinkError(
            f"column {names['headers']} is {kinds['headers'][1].simpleString()}; it must be"
            " array<struct<key:string,value:binary>>"
        )
    if "value" not in names:
        raise SinkError(f"there is no column value, but {', '.join(names.values())}")
    own = [each for each in _SOURCE if each in names]
    if own and len(own) < len(_SOURCE):
        missing = ", ".join(each for each in _SOURCE if each not in names)
        raise SinkError(f"there is no column {missing}: {_HELP}")
    if not own and any(each not in names for each in _PLAIN):
        missing = ", ".join(each for each in _PLAIN if each not in names)
        raise SinkError(
            f"rows do not say which record of the source they come from (no {missing}), so nothing"
            f" would tell a retry from a new row: {_HELP}"
        )
    if own and "topic" in names:
        raise SinkError(
            "column topic is not used: rows go where option topic says. Leave it out; rows for"
            " several topics want a query for each"
        )
    source = _SOURCE if own else _PLAIN
    return Columns(
        source=(names[source[0]], names[source[1]], names[source[2]]),
        partition=names.get("partition", "") if own else "",
        value=names["value"],
        key=names.get("key", ""),
        headers=names.get("headers", ""),
        timestamp=names.get("timestamp", ""),
    )


def _are_headers(kind: DataType) -> bool:
    element = kind.elementType if isinstance(kind, ArrayType) else kind
    if not isinstance(element, StructType):
        return False
    types = {field.name: field.dataType for field in element}
    return isinstance(types.get("key"), StringType) and isinstance(types.get("value"), BinaryType)
