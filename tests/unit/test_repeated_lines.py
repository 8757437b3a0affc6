"""Log lines that repeat: the first at once, then counts, none of which is lost."""

import threading
from random import Random
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from pidlease.observability.repeated_lines import RepeatedLines, kind_of
from tests.crash.seeds import new_random

_log = structlog.get_logger(__name__)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(causes_max: int = 1000) -> tuple[RepeatedLines, Clock]:
    clock = Clock()
    return RepeatedLines(10.0, causes_max, clock), clock


def told(found: list[Any]) -> list[tuple[str, int, int]]:
    return [(each["event"], each["number"], each.get("repeated", 0)) for each in found]


def test_the_first_is_written_at_once_and_repeats_are_counted() -> None:
    repeated, clock = lines()
    with capture_logs() as found:
        for number in range(5):
            repeated.write(_log, "error", "broke", "disk", number=number)
        assert told(found) == [("broke", 0, 0)]
        assert found[0]["log_level"] == "error"
        clock.now = 10
        repeated.write(_log, "error", "broke", "disk", number=5)
        assert told(found)[1:] == [("broke", 5, 5)]
        clock.now = 19
        repeated.write(_log, "error", "broke", "disk", number=6)
        assert len(found) == 2, "at most one line in an interval"


def test_the_last_count_is_written_when_it_is_quiet() -> None:
    repeated, clock = lines()
    with capture_logs() as found:
        for number in range(3):
            repeated.write(_log, "warning", "broke", number=number)
        clock.now = 9
        repeated.flush()
        assert len(found) == 1
        clock.now = 10
        repeated.flush()
        repeated.flush()
        assert told(found)[1:] == [("broke", 2, 2)]
        clock.now = 20
        repeated.flush()
        assert (len(found), len(repeated)) == (2, 0), "a quiet cause is forgotten"
        repeated.write(_log, "warning", "broke", number=3)
        assert told(found)[2:] == [("broke", 3, 0)]


def test_all_counts_are_written_at_a_stop() -> None:
    repeated, _ = lines()
    with capture_logs() as found:
        for number in range(4):
            repeated.write(_log, "info", "broke", number % 2, number=number)
        repeated.flush(everything=True)
        repeated.flush(everything=True)
    assert told(found) == [("broke", 0, 0), ("broke", 1, 0), ("broke", 2, 1), ("broke", 3, 1)]


def test_causes_are_bounded_and_no_count_is_lost() -> None:
    repeated, _ = lines(causes_max=3)
    with capture_logs() as found:
        for number in range(5):
            repeated.write(_log, "info", "broke", number, number=number)
            repeated.write(_log, "info", "broke", number, number=number)
            assert len(repeated) <= 3
        assert told(found)[-1] == ("broke", 1, 1)
        repeated.flush(everything=True)
    assert sum(1 if not each.get("repeated") else each["repeated"] for each in found) == 10


def test_a_traceback_comes_with_the_first_only() -> None:
    repeated, _ = lines()
    with capture_logs() as found:
        for _ in range(2):
            repeated.write(_log, "error", "broke", "", ValueError("x"), number=0)
        repeated.flush(everything=True)
    assert ["exc_info" in each for each in found] == [True, False]


@pytest.mark.parametrize("number", range(20))
def test_nothing_is_lost_whatever_comes(number: int) -> None:
    """Lines of three causes at any times, from several threads: the sum is what happened."""
    random: Random = new_random(f"repeated-{number}")
    repeated, clock = lines(causes_max=random.choice([1, 2, 1000]))
    count = 0
    with capture_logs() as found:
        for _ in range(200):
            clock.now += random.choice([0, 0, 1, 5, 30])
            cause = random.choice("abc")
            if random.random() < 0.2:
                repeated.flush()
            many = [
                threading.Thread(
                    target=repeated.write, args=(_log, "info", "broke", cause), kwargs={"number": 1}
                )
                for _ in range(random.choice([1, 1, 3]))
            ]
            for each in many:
                each.start()
            for each in many:
                each.join()
            count += len(many)
        repeated.flush(everything=True)
    assert sum(1 if not each.get("repeated") else each["repeated"] for each in found) == count


def test_the_kind_of_an_error_holds_no_text() -> None:
    assert kind_of(OSError(28, "No space left on device", "/data/t-0")) == "OSError ENOSPC"
    assert kind_of(ValueError("x")) == "ValueError"
