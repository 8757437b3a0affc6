"""`python -m tests.benchmarks.scale`: the figures of a full server, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.benchmarks import metadata
from tests.benchmarks.copying import turns
from tests.benchmarks.members import cost, on_kafka, simulated
from tests.benchmarks.scale import (
    fairness,
    first_start,
    growth,
    http_appends,
    http_reads,
    in_front,
    leases,
    memory,
    new_producers,
    replay,
    snapshot,
    verdicts,
)
from tests.benchmarks.scale.figure import Figure
from tests.benchmarks.spark import figures as spark_figures
from tests.benchmarks.spark import sink, source
from tests.benchmarks.streams import turns as streams
from tests.servers import kafka, spark, zookeeper

_ROOT = Path(__file__).resolve().parents[3]
_BUILD = _ROOT / "build"
_WIDTH_IN_LOGS = 130
#: As in a server, see `proxy.app.serve`.
_SWITCH_SECONDS = 0.0005
_METADATA_MS_MAX = 5.0
_METADATA_STEPS = {
    "all made anew": "cold_longest_step_ms",
    "one topic changed": "miss_longest_step_ms",
    "nothing changed": "hit_longest_step_ms",
}


def _metadata(_folder: Path) -> list[Figure]:
    """The longest step on the event loop, for 10,000 partitions."""
    return [
        Figure(f"Metadata, {shape} partitions, {what}", each[key], "ms", _METADATA_MS_MAX)
        for shape, each in metadata.measure().items()
        for what, key in _METADATA_STEPS.items()
    ]


MEASURES: dict[str, Callable[[Path], list[Figure]]] = {
    "memory-10": partial(memory.measure, partitions_each=10),
    "memory-1": partial(memory.measure, partitions_each=1),
    "verdicts": verdicts.measure,
    "snapshot": snapshot.measure,
    "replay": replay.measure,
    "metadata": _metadata,
    "growth": growth.measure,
    "leases": leases.measure,
    "new-producers": new_producers.measure,
    "fairness": fairness.measure,
    "in-front": in_front.measure,
    "http-appends": http_appends.measure,
    "http-reads": http_reads.measure,
    "streams": streams.measure,
    "first-start": first_start.measure,
    "active-servers": cost.measure,
    "members": on_kafka.measure,
    "members-simulated": simulated.measure,
    "copy": turns.measure_embedded,
    "copy-in-front": turns.measure_in_front,
    "spark-copy": sink.measure,
    "spark-source": source.measure,
    "spark-audit": spark_figures.measure_audit,
    "spark-rebuild": spark_figures.measure_rebuild,
}
#: Why a measure cannot be taken on this machine, where it needs more than Python.
_MISSING: dict[str, Callable[[], str | None]] = {
    "leases": zookeeper.unavailable_reason,
    "in-front": kafka.unavailable_reason,
    "streams": streams.missing,
    "first-start": kafka.unavailable_reason,
    "active-servers": kafka.unavailable_reason,
    "members": kafka.unavailable_reason,
    "copy": kafka.unavailable_reason,
    "copy-in-front": kafka.unavailable_reason,
    "spark-copy": lambda: kafka.unavailable_reason() or spark.spark_missing(),
    "spark-source": spark.spark_missing,
    "spark-audit": spark.spark_missing,
    "spark-rebuild": spark.spark_missing,
}


def _run_one(name: str) -> list[Figure]:
    """In a process of its own, whose memory is its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.scale", "--child", name],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [Figure(**each) for each in json.loads(done.stdout.splitlines()[-1])]


def _show(console: Console, figures: list[Figure]) -> None:
    table = Table("what", "figure", "unit", "target")
    for figure in figures:
        target = ""
        if figure.target is not None:
            met = "met" if figure.met else "missed"
            target = f"{met} ({figure.wanted} {figure.target:,g})"
        digits = 0 if abs(figure.value) >= 1000 else 2 if figure.unit == "times" else 1
        table.add_row(figure.name, f"{figure.value:,.{digits}f}", figure.unit, target)
    console.print(table)


def main(
    only: Annotated[list[str] | None, typer.Option(help="Run this one; may be repeated.")] = None,
    output: Annotated[Path, typer.Option(help="Where the JSON goes.")] = _BUILD / "scale.json",
    child: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure a server with a million producers, in front of Kafka, copies, how costs grow."""
    _BUILD.mkdir(exist_ok=True)
    if child:
        sys.setswitchinterval(_SWITCH_SECONDS)
        figures = MEASURES[child](_BUILD)
        print(json.dumps([dataclasses.asdict(figure) for figure in figures]))
        return
    names = only or list(MEASURES)
    if unknown := set(names) - set(MEASURES):
        raise typer.BadParameter(f"no measure named {unknown}; there are {list(MEASURES)}")
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_IN_LOGS)
    found: list[Figure] = []
    for name in names:
        reason = _MISSING[name]() if name in _MISSING else None
        if reason is not None:
            console.print(f"{name}: not measured: {reason}")
            continue
        found += _run_one(name)
        console.print(f"{name}: load average {os.getloadavg()[0]:.1f}")
    output.write_text(json.dumps([dataclasses.asdict(figure) for figure in found], indent=1))
    _show(console, found)


if __name__ == "__main__":
    typer.run(main)
