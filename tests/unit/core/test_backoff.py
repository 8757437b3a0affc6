"""Delays between attempts."""

from random import Random

import pytest

from pidlease.core.backoff import Backoff


def test_it_doubles_up_to_the_bound() -> None:
    backoff = Backoff(0.1, 1.0)
    assert [backoff.seconds(failures) for failures in range(1, 7)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_it_stays_at_the_bound_however_often_it_fails() -> None:
    assert Backoff(0.1, 1.0).seconds(10**9) == 1.0


def test_a_bound_below_the_first_delay_holds() -> None:
    assert Backoff(2.0, 1.0).seconds(1) == 1.0


def test_jitter_stays_within_its_bounds_and_repeats_with_its_seed() -> None:
    backoff = Backoff(0.1, 1.0, jitter=0.2)
    first, second = Random(7), Random(7)
    drawn = [backoff.seconds(4, first.uniform) for _ in range(1000)]
    assert drawn == [backoff.seconds(4, second.uniform) for _ in range(1000)]
    assert 0.64 <= min(drawn) < 0.66
    assert 0.94 < max(drawn) <= 0.96


def test_jitter_needs_random_numbers() -> None:
    with pytest.raises(ValueError, match="random"):
        Backoff(0.1, 1.0, jitter=0.2).seconds(1)


@pytest.mark.parametrize("failures", [0, -1])
def test_no_failure_has_no_delay(failures: int) -> None:
    with pytest.raises(ValueError, match="no delay"):
        Backoff(0.1, 1.0).seconds(failures)
