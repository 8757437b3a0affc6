"""The arithmetic of the benchmarks; the measuring itself is `make bench`."""

from __future__ import annotations

import pytest

from tests.benchmarks.comparison import Comparison, Result, Sample, Spread
from tests.benchmarks.suite import SUITE


def _comparison() -> Comparison:
    return next(one for one in SUITE if one.name == "produce-1k")


def _sample(speed: float, *bursts_s: float, server_cpu_s: float = 1.0) -> Sample:
    return Sample(speed, bursts_s, client_cpu_s=1.0, server_cpu_s=server_cpu_s)


def test_ratios_are_taken_round_by_round() -> None:
    # The machine is ten times slower in the second round: the ratio is the same.
    result = Result(
        _comparison(),
        ours=[_sample(100, 1, 1), _sample(10, 10, 10), _sample(90, 1, 1)],
        theirs=[_sample(50, 2, 2), _sample(5, 20, 20), _sample(90, 1, 1)],
    )
    assert result.ratio == Spread(1.0, 2.0, 2.0)
    assert result.burst_ratio == 2.0
    assert result.met is True


def test_less_server_cpu_is_a_ratio_above_1() -> None:
    ours, theirs = _sample(1, 1, server_cpu_s=2.0), _sample(1, 1, server_cpu_s=3.0)
    assert Result(_comparison(), ours=[ours], theirs=[theirs]).cpu_ratio == 1.5


def test_a_missing_round_is_not_papered_over() -> None:
    with pytest.raises(ValueError, match="shorter"):
        _ = Result(_comparison(), ours=[_sample(1, 1)], theirs=[]).ratio


def test_names_are_unique_and_make_legal_topics() -> None:
    names = [comparison.name for comparison in SUITE]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() for name in names)
