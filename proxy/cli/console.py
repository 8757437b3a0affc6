"""Where the commands write: what was asked for to stdout, all the rest to stderr."""

import json
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table

#: Exit codes: 0 all is well; 1 what was looked at is wrong; 2 it could not be looked at.
WRONG: Final = 1
CANNOT_LOOK: Final = 2

#: Wide enough for a file's name where nobody looks at a screen.
_PIPE_WIDTH: Final = 160


def stdout() -> Console:
    """Where the answer goes."""
    console = Console(soft_wrap=False, highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def stderr() -> Console:
    """Where complaints and progress go."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


def cannot_look(message: str) -> typer.Exit:
    """Say, in one line, why there is no answer and what to do; the exit to raise."""
    stderr().print(f"pidlease: {message}", style="red", markup=False)
    return typer.Exit(CANNOT_LOOK)


def print_json(answer: Any) -> None:  # noqa: ANN401 - whatever JSON takes
    """Write an answer for a script."""
    typer.echo(json.dumps(answer, indent=2))


def plain_table(title: str, *columns: str) -> Table:
    """A table whose first column is names and the others, as a rule, numbers."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        justify = "right" if number else "left"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    return table


def pairs_table(title: str) -> Table:
    """A table of names and values, without a heading."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    return table
