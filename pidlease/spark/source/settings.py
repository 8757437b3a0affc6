"""The source's options, checked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pidlease.spark.reader.kafka_batches import SECURITY
from pidlease.spark.reader.read_parts import Security
from pidlease.spark.source.source_offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    Place,
    parse,
    parse_assign,
)
from pidlease.spark.spark_options import OptionError, check_names, number, truth

SERVERS: Final = "kafka.bootstrap.servers"
RECORDS: Final = "records"
SENDS: Final = "sends"

_CHOICES: Final = ("subscribe", "subscribePattern", "assign")
#: All there are.
NAMES: Final = (
    "path", SERVERS, *(f"kafka.{name}" for name in SECURITY), *_CHOICES, "startingOffsets",
    "endingOffsets", "maxOffsetsPerTrigger", "failOnDataLoss", "includeHeaders", "rows",
    "timeoutSeconds",
)  # fmt: skip
_TIMEOUT_S: Final = 60
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class Choice:
    """Which partitions are read: one of these says it.

    Attributes:
        topics: all partitions of these topics,
        pattern: of those that this matches as a whole,
        places: or these.
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What is read, and how.

    Attributes:
        path: the data directory; empty: it is read from the servers.
        servers: HOST:PORT, or several with commas; empty: the path is read.
        security: how these are reached.
        choice: which partitions.
        starting: where to begin: EARLIEST, LATEST, or offsets of the partitions.
        ending: where to end.
        max_per_trigger: so many offsets a micro-batch has at most; None: as many as there are.
        fail_on_data_loss: whether what is gone, or damaged, ends the job.
        include_headers: whether rows of records have the headers.
        rows: RECORDS or SENDS.
        seconds: how long servers are asked again when they do not answer.
    """

    path: str
    servers: str
    security: Security
    choice: Choice
    starting: int | Offsets
    ending: int | Offsets
    max_per_trigger: int | None
    fail_on_data_loss: bool
    include_headers: bool
    rows: str
    seconds: float


def rows_of(options: Mapping[str, str]) -> str:
    """What a row is: RECORDS or SENDS.

    Raises:
        OptionError: it is neither, or there is an option that is not known.
    """
    check_names(options, NAMES)
    rows = options.get("rows", RECORDS).strip().lower()
    if rows not in (RECORDS, SENDS):
        raise OptionError(f"rows is {RECORDS} or {SENDS}, not {options['rows']!r}")
    return rows


def read_settings(options: Mapping[str, str], *, streaming: bool) -> SourceSettings:
    """Check the options of a source.

    Raises:
        OptionError: names one that makes no sense.
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
    found = {name: options[f"kafka.{name}"] for name in SECURITY if f"kafka.{name}" in options}
    if found and not servers:
        raise OptionError(f"kafka.{min(found)} goes with {SERVERS}")
    return tuple(sorted(found.items()))


def _choice(options: Mapping[str, str]) -> Choice:
    given = [name for name in _CHOICES if options.get(name, "").strip()]
    if len(given) != 1:
        raise OptionError(f"one of {', '.join(_CHOICES)}, not {len(given)} of them")
    (name,) = given
    text = options[name].strip()
    if name == "assign":
        return Choice(places=parse_assign(text))
    if name == "subscribe":
        topics = sorted({each.strip() for each in text.split(",") if each.strip()})
        if not topics:
            raise OptionError(f"subscribe is names of topics with commas, not {text!r}")
        return Choice(topics=tuple(topics))
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern {text!r}: {error}") from None
    return Choice(pattern=text)


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
        return parse(name, text, refused)
    if word in refused:
        raise OptionError(f"{name} may not be {refused[word]} here")
    return word
