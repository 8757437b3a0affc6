"""How a part of the demo ends."""

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table


class Verdict(Protocol):
    """What a part has found."""

    def table(self) -> Table:
        """For a person."""

    def problems(self) -> Sequence[str]:
        """Why it is a failure; empty where it is none."""

    def summary(self) -> str:
        """The figures in one line."""


def conclude(console: Console, verdict: Verdict) -> int:
    """Show what was found; the exit code."""
    console.print(verdict.table())
    problems = verdict.problems()
    for problem in problems:
        console.print(f"failed: {problem}", style="red", markup=False, highlight=False)
    console.print(verdict.summary(), markup=False, highlight=False, soft_wrap=True)
    return 1 if problems else 0
