"""What was acknowledged, held against what was read back: once each, in order, none missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

_Value = TypeVar("_Value")


class Acked(NamedTuple):
    """A record that its producer was told to be stored."""

    number: int
    partition: int
    offset: int


class Read(NamedTuple):
    """A record as a consumer found it."""

    stream: int
    number: int
    partition: int
    offset: int


def check_exactly_once(
    acked: Mapping[int, Sequence[Acked]], read: Sequence[Read], count: int
) -> None:
    """Hold what producers were told against what the log holds.

    Parameters:
        acked: for each stream, what its producer was told; all of its records must be there.
        read: what a consumer got, in its order.
        count: how many records each stream has; they are numbered from 0.

    Raises:
        AssertionError: a record is missing, doubled, out of order, or not where it was said to be.
    """
    for stream, told in acked.items():
        _check_numbers([each.number for each in told], count, f"stream {stream}, acknowledged")
    places = [(each.partition, each.offset) for each in read]
    assert len(set(places)) == len(places), f"read twice: {_doubled(places)}"
    found: dict[int, list[Read]] = defaultdict(list)
    for each in sorted(read, key=lambda each: (each.partition, each.offset)):
        found[each.stream].append(each)
    assert found.keys() == acked.keys(), f"streams {sorted(found)} are stored"
    for stream, stored in found.items():
        _check_stream(stream, acked[stream], stored, count)


def _check_stream(stream: int, told: Sequence[Acked], stored: Sequence[Read], count: int) -> None:
    _check_numbers([each.number for each in stored], count, f"stream {stream}, stored")
    for before, after in pairwise(stored):
        in_order = before.partition != after.partition or before.number < after.number
        assert in_order, f"out of order: {before} stands before {after}"
    places = {each.number: (each.partition, each.offset) for each in stored}
    # -1: the client was told of a duplicate whose offset is forgotten.
    wrong = [
        each for each in told if places[each.number] != (each.partition, each.offset)
        and not (each.offset == -1 and places[each.number][0] == each.partition)
    ]  # fmt: skip
    assert not wrong, f"stream {stream}: told other places than those of the records: {wrong[:5]}"


def _check_numbers(numbers: Sequence[int], count: int, what: str) -> None:
    doubled = _doubled(numbers)
    assert not doubled, f"{what}: doubled: {doubled[:10]} ({len(doubled)})"
    lost = sorted(set(range(count)) - set(numbers))
    assert not lost, f"{what}: lost: {lost[:10]} ({len(lost)})"
    assert len(numbers) == count, f"{what}: {len(numbers)} instead of {count}"


def _doubled(values: Sequence[_Value]) -> list[_Value]:
    return [value for value, count in Counter(values).items() if count > 1]
