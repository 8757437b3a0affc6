"""What a run prints and what it leaves in build/bench.json."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.comparison import Result, Sample, Spread, latencies
from tests.servers.kafka import kafka_version

_PACKAGES = ("pidlease", "confluent-kafka", "aiokafka", "uvloop")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown")


def _filesystem(path: Path) -> str:
    """Type of the file system that holds `path`: fsync costs nothing on a tmpfs."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _device, mount, kind, *_ = line.split()
        if path.resolve().is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _package_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _librdkafka_version() -> str:
    import confluent_kafka

    return str(confluent_kafka.libversion()[0])


def machine_info(data_dir: Path) -> dict[str, Any]:
    """Everything that somebody who compares two runs has to know."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "kernel": platform.release(),
        "filesystem": _filesystem(data_dir),
        "python": platform.python_version(),
        "kafka": kafka_version(),
        "librdkafka": _librdkafka_version(),
        "commit": _commit(),
        **{name: _package_version(name) for name in _PACKAGES},
    }


def _side(name: str, samples: Sequence[Sample]) -> dict[str, Any]:
    return {
        "contender": name,
        "speed": dataclasses.asdict(Spread.of([sample.speed for sample in samples])),
        "samples": [dataclasses.asdict(sample) for sample in samples],
    }


def _as_dict(result: Result) -> dict[str, Any]:
    comparison = result.comparison
    return {
        "name": comparison.name,
        "unit": comparison.unit,
        "load": dataclasses.asdict(comparison.load),
        "target": comparison.target,
        "met": result.met,
        "ratio": dataclasses.asdict(result.ratio),
        "burst_ratio": result.burst_ratio,
        "cpu_ratio": result.cpu_ratio,
        "cpu_each": result.cpu_each and dataclasses.asdict(result.cpu_each),
        "ours": _side(str(comparison.ours), result.ours),
        "theirs": _side(str(comparison.theirs), result.theirs),
    }


def write_json(path: Path, machine: dict[str, Any], results: Sequence[Result]) -> None:
    """Write all samples, after every comparison: an interrupted run leaves what it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "results": [_as_dict(result) for result in results]}
    path.write_text(json.dumps(document, indent=2) + "\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _figures(result: Result, samples: Sequence[Sample]) -> str:
    spread = Spread.of(result.figures(samples))
    told = f"{_number(spread.median)}\n[dim]{_number(spread.min)} - {_number(spread.max)}[/dim]"
    if not result.comparison.less_is_better:
        return told
    p50 = statistics.median(latency.p50_ms for latency in latencies(samples))
    pace = statistics.median(sample.speed for sample in samples)
    return f"{told}\n[dim]p50 {_number(p50)}; {_number(pace)} records/s[/dim]"


def _verdict(result: Result) -> str:
    if result.met is None:
        return ""
    word = "[green]met[/green]" if result.met else "[red]missed[/red]"
    sign = "≤" if result.comparison.less_is_better else "≥"
    return f"{word} ({sign} {result.comparison.target})"


def _cpu_table(results: Sequence[Result]) -> Table:
    """What servers take of the processor where one stands in front of the other."""
    table = Table(title="Server CPU in front of Kafka (medians)")
    table.add_column("comparison")
    for heading in ("in front", "Kafka behind", "both", "Kafka straight"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    for result in results:
        if (each := result.cpu_each) is not None:
            figures = (each.front, each.behind, each.front + each.behind, each.straight)
            told = (f"{figure:.{0 if figure >= 100 else 2}f}" for figure in figures)
            table.add_row(result.comparison.name, *told, each.unit)
    return table


def print_table(console: Console, machine: dict[str, Any], results: Sequence[Result]) -> None:
    """The medians with their spreads, one row for each comparison."""
    table = Table(
        title="Ratios above 1: the first is faster; of ms: slower (medians; min - max below)"
    )
    for heading in ("comparison", "first", "second", "unit"):
        table.add_column(heading)
    for heading in ("ratio", "by burst", "server CPU"):
        table.add_column(heading, justify="right")
    table.add_column("target")
    for result in results:
        comparison, ratio = result.comparison, result.ratio
        table.add_row(
            f"{comparison.name}\n[dim]{len(result.ours)} rounds[/dim]",
            f"{comparison.ours}\n{_figures(result, result.ours)}",
            f"{comparison.theirs}\n{_figures(result, result.theirs)}",
            comparison.unit,
            f"[bold]{ratio.median:.2f}[/bold]\n[dim]{ratio.min:.2f} - {ratio.max:.2f}[/dim]",
            "" if result.burst_ratio is None else f"{result.burst_ratio:.2f}",
            f"{result.cpu_ratio:.2f}",
            _verdict(result),
        )
    console.print(table)
    if any(result.cpu_each is not None for result in results):
        console.print(_cpu_table(results))
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
