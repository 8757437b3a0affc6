"""Output of the commands: results on stdout, errors and progress on stderr."""

import json
from typing import Any, Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

#: Exit codes: 0: all is well; 1: the command found something wrong; 2: it could not be run.
WRONG: Final = 1
CANNOT_RUN: Final = 2

HELP_OPTIONS: Final = frozenset(("-h", "--help"))

#: The narrowest column of folded cells.
_FOLDED_WIDTH: Final = 16
#: Wide enough for a file's name if stdout is no screen.
_PIPE_WIDTH: Final = 160


def stdout() -> Console:
    """Return the console for results."""
    console = Console(soft_wrap=False, highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def stderr() -> Console:
    """Return the console for errors and progress."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


def cannot_run(message: str) -> typer.Exit:
    """Print why the command cannot be run and what to do; return the exit to raise."""
    stderr().print(f"pidlease: {message}", style="red", markup=False)
    return typer.Exit(CANNOT_RUN)


def refused(message: str) -> typer.Exit:
    """Print why a server refused a request; return the exit to raise."""
    stderr().print(f"pidlease: {message}", style="red", markup=False)
    return typer.Exit(WRONG)


def warn_deprecated(old: str, new: str) -> None:
    """Print a warning about an old form of a command."""
    stderr().print(f"pidlease: `{old}` is deprecated; use `{new}`", style="yellow", markup=False)


def printable(text: str) -> str:
    """Replace characters that a terminal would act on: names and reasons may come from others."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def print_json(answer: Any) -> None:  # noqa: ANN401 - whatever JSON takes
    """Print a result for a script."""
    typer.echo(json.dumps(answer, indent=2))


def plain_table(title: str, *columns: str) -> Table:
    """Make a table with names in the first column and numbers in the others."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        justify = "right" if number else "left"
        # On a narrow terminal the names are folded, and no number is cut in two.
        table.add_column(column, justify=justify, overflow="fold", no_wrap=number > 0)  # type: ignore[arg-type]
    return table


def print_table(table: Table) -> None:
    """Print a table on stdout. If its numbers do not fit into the terminal, lines are longer."""
    console = stdout()
    borders = 3 * len(table.columns) + 1
    needed = sum(
        max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        if column.no_wrap
        else _FOLDED_WIDTH
        for column in table.columns
    )
    console.width = max(console.width, borders + needed)
    console.print(table)


def pairs_table(title: str) -> Table:
    """Make a table of names and values, without a heading."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    return table
