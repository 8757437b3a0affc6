"""The chart of the benchmarks, drawn from a small run."""

import json
from pathlib import Path
from xml.etree import ElementTree

from tests.benchmarks.comparison import Result, Sample
from tests.benchmarks.ratio_chart import CHART, ratio_chart, write_chart
from tests.benchmarks.report import write_json
from tests.benchmarks.suite import SUITE

_SVG = "{http://www.w3.org/2000/svg}"


def _run(path: Path, **speeds: float) -> None:
    """Write the results of a run as `make bench` does; the other side's speed is 100."""
    found = [
        Result(each, ours=[_sample(speeds[each.name])], theirs=[_sample(100)])
        for each in SUITE if each.name in speeds
    ]  # fmt: skip
    write_json(path, {}, found)


def _sample(speed: float) -> Sample:
    return Sample(speed, (1.0, 1.0), client_cpu_s=1.0, server_cpu_s=1.0)


def test_a_bar_for_each_comparison(tmp_path: Path) -> None:
    _run(tmp_path / "bench.json", **{"produce-1k": 170, "single-record": 95})
    write_chart(tmp_path / "bench.json", tmp_path / "chart.svg")
    tree = ElementTree.parse(tmp_path / "chart.svg").getroot()
    bars = [(each.get("class"), float(each.get("width", ""))) for each in tree.iter(f"{_SVG}rect")]
    assert [kind for kind, _ in bars] == ["ahead", "short"]  # 1.7 of 0.9, and 0.95 of 1.2
    assert abs(bars[0][1] / bars[1][1] - 1.7 / 0.95) < 0.01
    texts = [each.text for each in tree.iter(f"{_SVG}text")]
    assert {"produce-1k", "1.70", "single-record", "0.95"} <= set(texts)


def test_of_latencies_less_is_better() -> None:
    slow = {"name": "front-latency", "unit": "ms, p99", "target": 1.5,
            "ratio": {"min": 1.0, "median": 2.0, "max": 3.0}}  # fmt: skip
    assert 'class="short"' in ratio_chart([slow])
    fast = {**slow, "ratio": {"min": 1.0, "median": 1.1, "max": 1.9}}
    assert 'class="short"' not in ratio_chart([fast])


def test_a_name_is_no_markup() -> None:
    odd = {
        "name": "<b>",
        "unit": "MB/s",
        "target": None,
        "ratio": {"min": 1, "median": 1, "max": 1},
    }
    ElementTree.fromstring(ratio_chart([json.loads(json.dumps(odd))]))


def test_the_chart_of_the_page_is_one() -> None:
    names = {each.text for each in ElementTree.parse(CHART).iter(f"{_SVG}text")}
    assert names & {each.name for each in SUITE}
