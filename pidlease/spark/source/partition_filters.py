"""Spark's filters, as far as they say which parts of a log need not be read."""

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from pidlease.spark.reader.read_parts import OFFSET_MAX
from pidlease.spark.source.source_offsets import Place

_PLACE: Final = ("topic", "partition")
_OFFSET: Final = "offset"


class Wanted:
    """What filters ask for.

    Attributes:
        start: the first offset that may be wanted,
        end: and the first behind the last.
    """

    def __init__(self) -> None:
        self.start = 0
        self.end = OFFSET_MAX
        self._places: list[Filter] = []

    def push(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Take filters into account.

        Yields:
            Those that Spark has to apply itself: by offsets as well, as rows of sends that begin
            before an offset are read to find those that begin at it.
        """
        for each in filters:
            column = _column(each)
            if column in _PLACE:
                self._places.append(each)
                continue
            if column == _OFFSET:
                self._narrow(each)
            yield each

    def takes(self, place: Place) -> bool:
        """Whether anything of a partition may be wanted."""
        values = dict(zip(_PLACE, place, strict=True))
        return all(_holds(each, values[_column(each)]) for each in self._places)

    def _narrow(self, asked: Any) -> None:  # noqa: ANN401 - one of several classes
        values = [value for value in _values(asked) if value is not None]
        if isinstance(asked, EqualTo | In | GreaterThanOrEqual):
            self.start = max(self.start, min(values, default=OFFSET_MAX))
        elif isinstance(asked, GreaterThan):
            self.start = max(self.start, values[0] + 1)
        if isinstance(asked, EqualTo | In | LessThanOrEqual):
            self.end = min(self.end, max(values, default=-1) + 1)
        elif isinstance(asked, LessThan):
            self.end = min(self.end, values[0])


def _column(asked: Any) -> str:  # noqa: ANN401 - one of several classes
    """The column that a filter we understand is about; empty for any other."""
    known = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual | In
    if not isinstance(asked, known) or len(asked.attribute) != 1:
        return ""
    if not isinstance(asked, In) and asked.value is None:
        return ""
    return asked.attribute[0]


def _values(asked: Any) -> tuple[Any, ...]:  # noqa: ANN401 - one of several classes
    return tuple(asked.value) if isinstance(asked, In) else (asked.value,)


def _holds(asked: Any, value: Any) -> bool:  # noqa: ANN401 - one of several classes
    """Whether a filter lets a value through."""
    if isinstance(asked, EqualTo | In):
        return value in _values(asked)
    if isinstance(asked, GreaterThan):
        return bool(value > asked.value)
    if isinstance(asked, GreaterThanOrEqual):
        return bool(value >= asked.value)
    if isinstance(asked, LessThan):
        return bool(value < asked.value)
    return bool(value <= asked.value)
