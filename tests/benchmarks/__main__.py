"""`python -m tests.benchmarks`: run the comparisons and report their ratios."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from tests.benchmarks.comparison import ROUNDS_MIN, Comparison, Result, compare
from tests.benchmarks.contenders import Contender, Servers
from tests.benchmarks.load import LostRecordsError
from tests.benchmarks.report import machine_info, print_table, write_json
from tests.benchmarks.suite import SUITE
from tests.servers.java import JavaUnavailableError, compiler_missing
from tests.servers.kafka import unavailable_reason
from tests.servers.process import ServerError

_BUILD = Path(__file__).resolve().parents[2] / "build"
_HEAP = "1g"  # what Kafka's own start script gives it
_WIDTH_IN_LOGS = 130
_FREE_BYTES_MIN = 20 * 10**9


def _select(only: list[str]) -> list[Comparison]:
    known = [comparison.name for comparison in SUITE]
    if unknown := [name for name in only if name not in known]:
        raise typer.BadParameter(f"no benchmark named {', '.join(unknown)}; there are {known}")
    if only:
        return [comparison for comparison in SUITE if comparison.name in only]
    return [comparison for comparison in SUITE if comparison.default]


def _measurable(comparisons: list[Comparison], console: Console) -> list[Comparison]:
    """Without those whose client cannot run here."""
    if (reason := compiler_missing()) is None:
        return comparisons
    java = [one for one in comparisons if "Java" in (one.ours.client, one.theirs.client)]
    for comparison in java:
        console.print(f"{comparison.name}: not measured: {reason}")
    return [one for one in comparisons if one not in java]


def _contenders(comparisons: list[Comparison]) -> list[Contender]:
    return [one for comparison in comparisons for one in (comparison.ours, comparison.theirs)]


def _check_machine(comparisons: list[Comparison]) -> None:
    """Say before the first measurement, not in the middle of it, what is missing."""
    if any(contender.kind == "kafka" for contender in _contenders(comparisons)):
        reason = unavailable_reason()
        if reason is not None:
            raise JavaUnavailableError(reason)
    free = shutil.disk_usage(_BUILD).free
    if free < _FREE_BYTES_MIN:
        raise ServerError(f"the logs need {_FREE_BYTES_MIN:,} bytes in {_BUILD}, free are {free:,}")


def _run(
    comparisons: list[Comparison], rounds: int, warmup: int, output: Path, console: Console
) -> list[Result]:
    results: list[Result] = []
    _BUILD.mkdir(exist_ok=True)
    _check_machine(comparisons)
    # In build/, not in /tmp: that may be a tmpfs, where fsync costs nothing.
    with tempfile.TemporaryDirectory(dir=_BUILD, prefix="bench-") as folder:
        machine = machine_info(Path(folder))
        with (
            Servers(Path(folder), kafka_heap=_HEAP) as servers,
            console.status("starting servers") as status,
        ):
            for number, comparison in enumerate(comparisons):
                servers.keep_only(_contenders(comparisons[number:]))
                result = compare(
                    comparison, servers, rounds=rounds, warmup=warmup, show=status.update
                )
                results.append(result)
                write_json(output, machine, results)
                # A line for each, for logs without a terminal, where the status is not shown.
                console.print(f"{comparison.name}: {result.ratio.median:.3f}")
        machine["load_average_after"] = machine_info(Path(folder))["load_average"]
    write_json(output, machine, results)
    print_table(console, machine, results)
    return results


def main(
    only: Annotated[list[str] | None, typer.Option(help="Run this one; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 7,
    warmup: Annotated[int, typer.Option(min=0, help="Rounds before, thrown away.")] = 3,
    output: Annotated[Path, typer.Option(help="Where the JSON goes.")] = _BUILD / "bench.json",
    *,
    strict: Annotated[bool, typer.Option(help="Exit with 1 if a target is missed.")] = False,
    list_names: Annotated[bool, typer.Option("--list", help="Only list the names.")] = False,
) -> None:
    """Compare pidlease with a real Kafka, and with itself, by turns."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_IN_LOGS)  # rich would take 80 and break every cell
    if list_names:
        for comparison in SUITE:
            console.print(f"{comparison.name}: {comparison.ours} against {comparison.theirs}")
        return
    comparisons = _measurable(_select(only or []), console)
    if rounds < ROUNDS_MIN:
        console.print(f"[yellow]fewer than {ROUNDS_MIN} rounds: good for a look, no more[/yellow]")
    try:
        results = _run(comparisons, rounds, warmup, output, console)
    except (LostRecordsError, ServerError, JavaUnavailableError) as error:
        # No markup: the end of a log may hold brackets.
        console.print(f"{type(error).__name__}: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    if strict and any(result.met is False for result in results):
        raise typer.Exit(1)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    # As an exception, so that `timeout` or a CI job that ends us leaves no servers behind.
    signal.signal(signal.SIGTERM, _end)
    typer.run(main)
