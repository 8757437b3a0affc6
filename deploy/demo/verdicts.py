"""How a part of the demo ends."""

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table


class Found(Protocol):
    """What a part has found."""

    def problems(self) -> Sequence[str]:
        """Why it is a failure; empty where it is none."""

    def summary(self) -> str:
        """The figures in one line."""


class Verdict(Found, Protocol):
    """The same with its figures."""

    def table(self) -> Table:
        """For a person."""


def conclude(console: Console, verdict: Verdict) -> int:
    """Show what was found; the exit code."""
    console.print(verdict.table())
    return sum_up(console, verdict)


def sum_up(console: Console, verdict: Found) -> int:
    """Show what is wrong, if something is, and the figures in the last line; the exit code."""
    problems = verdict.problems()
    for problem in problems:
        console.print(f"failed: {problem}", style="red", markup=False, highlight=False)
    console.print(verdict.summary(), markup=False, highlight=False, soft_wrap=True)
    return 1 if problems else 0
