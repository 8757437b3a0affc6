"""The arithmetic of the benchmarks; the measuring itself is `make bench`."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.benchmarks.comparison import Comparison, Latency, Result, Sample, Spread
from tests.benchmarks.paced_producer import due
from tests.benchmarks.report import print_table
from tests.benchmarks.scale.in_front import CONNECTIONS, PARTITIONS, partitions_of
from tests.benchmarks.suite import SUITE


def _comparison(name: str = "produce-1k") -> Comparison:
    return next(one for one in SUITE if one.name == name)


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


def _paced(p50_ms: float, p99_ms: float) -> Sample:
    return Sample(20_000, (2.0,), 1.0, server_cpu_s=1.0, latency=Latency(p50_ms, p99_ms))


def test_of_latencies_the_shorter_one_is_the_better_one() -> None:
    # The rates are equal, and so would be their ratio.
    ours, theirs = [_paced(5, 14), _paced(5, 16), _paced(5, 40)], [_paced(4, 10)] * 3
    result = Result(_comparison("front-latency"), ours=ours, theirs=theirs)
    assert result.ratio == Spread(1.4, 1.6, 4.0)
    assert result.burst_ratio is None
    assert result.met is False
    ours[1] = _paced(5, 15)
    assert result.met is True


def test_a_round_that_timed_nothing_is_not_papered_over() -> None:
    result = Result(_comparison("front-latency"), ours=[_paced(5, 14)], theirs=[_sample(1, 1)])
    with pytest.raises(ValueError, match="1 of 1 rounds timed no record"):
        _ = result.ratio


def test_percentiles_are_of_all_that_was_timed() -> None:
    found = Latency.of([float(number) for number in range(1, 1000)])
    assert found == Latency(p50_ms=500.0, p99_ms=990.0)
    assert Latency.of([]) is None


def test_the_pace_is_even_and_ends() -> None:
    assert due(0.0, 20_000, 40_000) == 1
    assert [due(n / 1000, 20_000, 40_000) for n in (1, 2, 3)] == [21, 41, 61]
    assert due(60.0, 20_000, 40_000) == 40_000
    assert due(0.0, 20_000, 1) == 1


@pytest.mark.parametrize(
    ("name", "unit", "units_of_a_round"),
    [("front-1k", "ms a MB", 160), ("front-single", "us a request", 20_000)],
)
def test_cpu_is_told_for_each_megabyte_or_request(
    name: str, unit: str, units_of_a_round: int
) -> None:
    scale = 1e3 if unit.startswith("ms") else 1e6
    ours = Sample(1.0, (1.0,), 1.0, server_cpu_s=2.0, behind_cpu_s=3.0)
    each = Result(_comparison(name), ours=[ours], theirs=[_sample(1, 1)]).cpu_each
    assert each is not None
    assert each.unit == unit
    assert each.front == pytest.approx(2 * scale / units_of_a_round)
    assert each.behind == pytest.approx(3 * scale / units_of_a_round)
    assert each.straight == pytest.approx(1 * scale / units_of_a_round)


def test_cpu_of_one_server_alone_is_not_told_that_way() -> None:
    assert Result(_comparison(), ours=[_sample(1, 1)], theirs=[_sample(1, 1)]).cpu_each is None


def test_the_table_tells_which_way_a_target_points() -> None:
    results = [
        Result(_comparison("front-latency"), ours=[_paced(5, 14)], theirs=[_paced(4, 10)]),
        Result(_comparison("front-1k"), ours=[_sample(80, 1)], theirs=[_sample(100, 1)]),
    ]
    console = Console(file=io.StringIO(), width=200)
    print_table(console, {"cores": 2}, results)
    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    assert "met (≤ 1.5)" in told
    assert "missed (≥ 0.9)" in told
    assert "p50 5.0; 20,000 records/s" in told
    assert "Kafka behind" in told


def test_connections_cover_all_partitions_evenly() -> None:
    written = [each for number in range(CONNECTIONS) for each in partitions_of(number)]
    assert sorted(written) == sorted(list(range(PARTITIONS)) * (len(written) // PARTITIONS))


def test_names_are_unique_and_make_legal_topics() -> None:
    names = [comparison.name for comparison in SUITE]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() for name in names)
