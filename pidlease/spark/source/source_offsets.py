"""Offsets as Spark's Kafka source writes them: {"topic": {"0": 5}}; -2 is earliest, -1 latest."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pidlease.spark.spark_options import OptionError

EARLIEST: Final = -2
LATEST: Final = -1
#: Partitions, by topic and number.
Place = tuple[str, int]
Offsets = dict[Place, int]
#: Offsets as JSON has them.
Plain = dict[str, dict[str, int]]


def plain(offsets: Mapping[Place, int]) -> Plain:
    """Offsets as they are written."""
    found: Plain = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_plain(found: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Offsets as they were written."""
    return {
        (topic, int(partition)): int(offset)
        for topic, offsets in found.items()
        for partition, offset in offsets.items()
    }


def parse(name: str, text: str, refused: Mapping[int, str]) -> Offsets:
    """The offsets that an option gives.

    Parameters:
        name: of the option.
        text: JSON.
        refused: of -2 and -1 what is not allowed there, and what it is called.

    Raises:
        OptionError: it does not say any.
    """
    example = '{"topic": {"0": 23, "1": -2}}'
    found = _json(name, text, example)
    try:
        offsets = from_plain(found)
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f"{name} is JSON such as {example}, not {text!r}") from None
    for (topic, partition), offset in offsets.items():
        if offset < EARLIEST:
            raise OptionError(f"{name}: {offset} is no offset of {topic}-{partition}")
        if offset in refused:
            raise OptionError(f"{name}: {topic}-{partition} may not be {refused[offset]} there")
    return offsets


def parse_assign(text: str) -> tuple[Place, ...]:
    """The partitions that option `assign` gives.

    Raises:
        OptionError: it does not say any.
    """
    example = '{"topic": [0, 1]}'
    found = _json("assign", text, example)
    try:
        places = [(topic, int(number)) for topic, numbers in found.items() for number in numbers]
    except (ValueError, TypeError, AttributeError):
        places = []
    if not places or any(number < 0 for _, number in places):
        raise OptionError(f"assign is JSON such as {example}, not {text!r}")
    return tuple(sorted(set(places)))


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name} is JSON such as {example}; {text!r} is none: {error}") from None
    if not isinstance(found, dict):
        raise OptionError(f"{name} is JSON such as {example}, not {text!r}")
    return found
