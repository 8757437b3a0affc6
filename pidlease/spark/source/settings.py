"""The source's options, validated, and the columns that they ask for."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.kafka_options import NAMES as SECURITY
from pidlease.kafka.client.kafka_options import Security, read_security, refuse_unmapped
from pidlease.spark.errors import OptionError
from pidlease.spark.partition_offsets import Offsets, offsets_from_json
from pidlease.spark.spark_options import check_names, number, truth

SERVERS: Final = "kafka.bootstrap.servers"
EARLIEST: Final = -2
LATEST: Final = -1
RECORDS: Final = "records"
SENDS: Final = "sends"

_CHOICES: Final = ("subscribe", "subscribePattern", "assign")
#: All options.
NAMES: Final = (
    "path", SERVERS, *(f"kafka.{name}" for name in SECURITY), *_CHOICES, "startingOffsets",
    "endingOffsets", "maxOffsetsPerTrigger", "failOnDataLoss", "includeHeaders", "rows",
    "timeoutSeconds",
)  # fmt: skip
_TIMEOUT_S: Final = 60
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}

_Columns = tuple[tuple[str, DataType], ...]
_BINARY, _INT, _LONG, _TEXT = BinaryType(), IntegerType(), LongType(), StringType()
_HEADER: Final = StructType([StructField("key", _TEXT), StructField("value", _BINARY)])
#: As Spark's Kafka source has them.
_KAFKA: Final[_Columns] = (
    ("key", _BINARY), ("value", _BINARY), ("topic", _TEXT), ("partition", _INT),
    ("offset", _LONG), ("timestamp", TimestampType()), ("timestampType", _INT),
)  # fmt: skip
_HEADERS: Final[_Columns] = (("headers", ArrayType(_HEADER)),)
_IDENTITY: Final[_Columns] = (("pid", _LONG), ("generation", _LONG), ("sequence", _LONG))
_SENDS: Final[_Columns] = (
    ("topic", _TEXT), ("partition", _INT), ("offset", _LONG), ("last_offset", _LONG),
    ("records", _INT), ("pid", _LONG), ("producer_id", _TEXT), ("generation", _LONG),
    ("first", _LONG), ("last", _LONG), ("crc", _LONG), ("timestamp", _LONG), ("bytes", _INT),
    ("position", _LONG), ("segment", _TEXT), ("previous_generation", _LONG),
    ("previous_first", _LONG), ("previous_last", _LONG), ("begins", BooleanType()),
    ("damage", _TEXT), ("read_from", _LONG),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """The partitions to read; one of the attributes is set.

    Attributes:
        topics: all partitions of these topics.
        pattern: all partitions of each topic with a match of it in the name.
        partitions: these partitions.
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What to read.

    Attributes:
        path: the data directory; empty: the log is read from the servers.
        servers: HOST:PORT, or several with commas; empty: the directory is read.
        starting: where to begin: EARLIEST, LATEST, or an offset for each partition.
        ending: where to end.
        max_per_trigger: the most offsets of a micro-batch; None: no limit.
        fail_on_data_loss: whether missing or damaged records end the job.
        include_headers: whether rows of records have the headers.
        rows: RECORDS or SENDS.
        seconds: how long requests to the servers are retried.
    """

    path: str
    servers: str
    security: Security
    choice: PartitionChoice
    starting: int | Offsets
    ending: int | Offsets
    max_per_trigger: int | None
    fail_on_data_loss: bool
    include_headers: bool
    rows: str
    seconds: float


def rows_of(options: Mapping[str, str]) -> str:
    """Return the kind of the rows: RECORDS or SENDS.

    Raises:
        OptionError: the kind is neither, or an option is unknown.
    """
    refuse_unmapped(options)
    check_names(options, NAMES)
    rows = options.get("rows", RECORDS).strip().lower()
    if rows not in (RECORDS, SENDS):
        raise OptionError(f"rows is {RECORDS} or {SENDS}, not {options['rows']!r}")
    return rows


def schema_of(options: Mapping[str, str]) -> StructType:
    """Return the columns that options ask for.

    Raises:
        OptionError: an option is invalid.
    """
    columns = _SENDS
    if rows_of(options) == RECORDS:
        headers = _HEADERS if truth(options, "includeHeaders", default=False) else ()
        columns = _KAFKA + headers + _IDENTITY
    return StructType([StructField(name, kind) for name, kind in columns])


def read_settings(options: Mapping[str, str], *, streaming: bool) -> SourceSettings:
    """Validate the options of a source.

    Raises:
        OptionError: an option is invalid.
    """
    rows = rows_of(options)
    path, servers = options.get("path", "").strip(), options.get(SERVERS, "").strip()
    if bool(path) == bool(servers):
        raise OptionError(f"either path, a data directory, or {SERVERS}")
    headers = truth(options, "includeHeaders", default=False)
    if headers and rows == SENDS:
        raise OptionError("includeHeaders goes with rows of records: sends have none")
    timeout = number(options, "timeoutSeconds", least=1)
    return SourceSettings(
        path=path,
        servers=servers,
        security=_security(options, servers),
        choice=_choice(options),
        starting=_starting(options, streaming=streaming),
        ending=_ending(options, streaming=streaming),
        max_per_trigger=number(options, "maxOffsetsPerTrigger", least=1),
        fail_on_data_loss=truth(options, "failOnDataLoss", default=True),
        include_headers=headers,
        rows=rows,
        seconds=float(timeout or _TIMEOUT_S),
    )


def _security(options: Mapping[str, str], servers: str) -> Security:
    security = read_security(options)
    if security and not servers:
        raise OptionError(f"kafka.{security[0][0]} goes with {SERVERS}")
    return security


def _choice(options: Mapping[str, str]) -> PartitionChoice:
    given = [name for name in _CHOICES if options.get(name, "").strip()]
    if len(given) != 1:
        raise OptionError(f"one of {', '.join(_CHOICES)}, not {len(given)} of them")
    (name,) = given
    text = options[name].strip()
    if name == "assign":
        return PartitionChoice(partitions=_parse_assign(text))
    if name == "subscribe":
        topics = sorted({each.strip() for each in text.split(",") if each.strip()})
        if not topics:
            raise OptionError(f"subscribe is names of topics, separated by commas, not {text!r}")
        return PartitionChoice(topics=tuple(topics))
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern {text!r}: {error}") from None
    return PartitionChoice(pattern=text)


def _starting(options: Mapping[str, str], *, streaming: bool) -> int | Offsets:
    default = "latest" if streaming else "earliest"
    text = options.get("startingOffsets", default).strip()
    refused = {} if streaming else {LATEST: "latest"}
    return _offsets("startingOffsets", text, refused)


def _ending(options: Mapping[str, str], *, streaming: bool) -> int | Offsets:
    if streaming and "endingOffsets" in options:
        raise OptionError("endingOffsets goes with spark.read: a stream does not end")
    return _offsets("endingOffsets", options.get("endingOffsets", "latest").strip(),
                    {EARLIEST: "earliest"})  # fmt: skip


def _offsets(name: str, text: str, refused: Mapping[int, str]) -> int | Offsets:
    word = _WORDS.get(text.lower())
    if word is None:
        return _parse_offsets(name, text, refused)
    if word in refused:
        raise OptionError(f"{name} may not be {refused[word]} here")
    return word


def _parse_offsets(name: str, text: str, refused: Mapping[int, str]) -> Offsets:
    """Parse the offsets that an option gives as JSON.

    Parameters:
        name: of the option.
        refused: of EARLIEST and LATEST those that are not allowed, with their names.

    Raises:
        OptionError: the option is invalid.
    """
    example = '{"topic": {"0": 23, "1": -2}}'
    found = _json(name, text, example)
    try:
        offsets = offsets_from_json(found)
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f"{name} is JSON such as {example}, not {text!r}") from None
    for (topic, partition), offset in offsets.items():
        if offset < EARLIEST:
            raise OptionError(f"{name}: {offset} is no offset of {topic}-{partition}")
        if offset in refused:
            raise OptionError(f"{name}: {topic}-{partition} may not be {refused[offset]} there")
    return offsets


def _parse_assign(text: str) -> tuple[TopicPartition, ...]:
    """Parse the partitions that option `assign` gives.

    Raises:
        OptionError: the option is invalid.
    """
    example = '{"topic": [0, 1]}'
    found = _json("assign", text, example)
    try:
        partitions = [
            TopicPartition(topic, int(number))
            for topic, numbers in found.items()
            for number in numbers
        ]
    except (ValueError, TypeError, AttributeError):
        partitions = []
    if not partitions or any(each.partition < 0 for each in partitions):
        raise OptionError(f"assign is JSON such as {example}, not {text!r}")
    return tuple(sorted(set(partitions)))


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name} is JSON such as {example}; {text!r} is none: {error}") from None
    if not isinstance(found, dict):
        raise OptionError(f"{name} is JSON such as {example}, not {text!r}")
    return found
