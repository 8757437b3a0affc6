"""The judge sees what is lost, doubled, out of order or misplaced."""

from __future__ import annotations

import pytest

from tests.clients.client import FRANZ_GO, JAVA
from tests.clients.judge import Acked, Read, check_exactly_once

_ACKED = {
    0: [Acked(0, 0, 0), Acked(1, 1, 0), Acked(2, 0, 2)],
    1: [Acked(0, 0, 1), Acked(1, 0, 3), Acked(2, 0, 5)],
}
_READ = [
    *(Read(0, 0, 0, 0), Read(1, 0, 0, 1), Read(0, 2, 0, 2), Read(1, 1, 0, 3), Read(1, 2, 0, 5)),
    Read(0, 1, 1, 0),
]


def test_what_is_right_passes() -> None:
    check_exactly_once(_ACKED, _READ, 3)
    check_exactly_once(_ACKED, _READ[::-1], 3)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (_READ[:-1], "lost: [1]"),
        ([*_READ, Read(0, 1, 1, 1)], "doubled: [1]"),
        ([*_READ, _READ[0]], "read twice"),
        ([*_READ, Read(0, 7, 1, 1)], "4 instead of 3"),
        ([Read(0, 0, 0, 9), *_READ[1:]], "out of order"),
        ([*_READ[:-1], Read(0, 1, 1, 4)], "other places"),
        ([*_READ[:-1], Read(0, 1, 2, 0)], "other places"),
        ([*_READ, Read(5, 0, 1, 1)], "are stored"),
    ],
)
def test_what_is_wrong_is_told(read: list[Read], words: str) -> None:
    with pytest.raises(AssertionError) as told:
        check_exactly_once(_ACKED, read, 3)
    assert words in str(told.value)


def test_what_was_never_acknowledged_is_missing() -> None:
    acked = {**_ACKED, 0: _ACKED[0][:2]}
    with pytest.raises(AssertionError, match="acknowledged: lost"):
        check_exactly_once(acked, _READ, 3)


def test_an_offset_that_is_forgotten_is_no_wrong_place() -> None:
    check_exactly_once({**_ACKED, 0: [*_ACKED[0][:2], Acked(2, 0, -1)]}, _READ, 3)


def test_what_programs_print_is_read() -> None:
    assert FRANZ_GO.acked("acked 5 2 77") == Acked(5, 2, 77)
    assert FRANZ_GO.read("read 3.5 2 77") == Read(3, 5, 2, 77)
    assert FRANZ_GO.acked("done") is None
    assert JAVA.acked('{"name":"startup_complete"}') is None
    assert JAVA.acked('{"name":"producer_send_error","value":"3.5"}') is None
    said = '{"name":"producer_send_success","value":"3.5","partition":2,"offset":77}'
    assert JAVA.acked(said) == Acked(5, 2, 77)
    said = '{"name":"record_data","value":"3.5 ...","partition":2,"offset":77}'
    assert JAVA.read(said) == Read(3, 5, 2, 77)
