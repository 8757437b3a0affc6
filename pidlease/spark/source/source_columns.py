"""The columns of what is read."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pidlease.spark.source.settings import RECORDS, rows_of
from pidlease.spark.spark_options import truth

_Columns = tuple[tuple[str, DataType], ...]

_BINARY, _INT, _LONG, _TEXT = BinaryType(), IntegerType(), LongType(), StringType()
_HEADER: Final = StructType([StructField("key", _TEXT), StructField("value", _BINARY)])
#: As Spark's Kafka source has them.
_KAFKA: Final[_Columns] = (
    ("key", _BINARY), ("value", _BINARY), ("topic", _TEXT), ("partition", _INT),
    ("offset", _LONG), ("timestamp", TimestampType()), ("timestampType", _INT),
)  # fmt: skip
_HEADERS: Final[_Columns] = (("headers", ArrayType(_HEADER)),)
_NUMBERS: Final[_Columns] = (("pid", _LONG), ("generation", _LONG), ("sequence", _LONG))
_SENDS: Final[_Columns] = (
    ("topic", _TEXT), ("partition", _INT), ("offset", _LONG), ("last_offset", _LONG),
    ("records", _INT), ("pid", _LONG), ("producer_id", _TEXT), ("generation", _LONG),
    ("first", _LONG), ("last", _LONG), ("crc", _LONG), ("timestamp", _LONG), ("bytes", _INT),
    ("position", _LONG), ("segment", _TEXT), ("previous_generation", _LONG),
    ("previous_first", _LONG), ("previous_last", _LONG), ("begins", BooleanType()),
    ("damage", _TEXT),
)  # fmt: skip


def schema_of(options: Mapping[str, str]) -> StructType:
    """The columns that some options ask for.

    Raises:
        OptionError: one of them makes no sense.
    """
    columns = _SENDS
    if rows_of(options) == RECORDS:
        headers = _HEADERS if truth(options, "includeHeaders", default=False) else ()
        columns = _KAFKA + headers + _NUMBERS
    return StructType([StructField(name, kind) for name, kind in columns])
