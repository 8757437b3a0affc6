"""`python -m deploy.demo.spark`; see the package."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from deploy.demo.proxy_process import DemoError
from deploy.demo.spark.story import Story
from deploy.demo.verdicts import conclude

_DIRECTORY: Final = Path(__file__).resolve().parents[3] / "build" / "demo-spark"
_PLAIN_WIDTH: Final = 130


def main(
    directory: Annotated[
        Path, typer.Option(help="Data and logs; what an earlier run left is removed.")
    ] = _DIRECTORY,
) -> None:
    """Copy 83,576 real rows out of a real Kafka by Spark, kill all of it, and audit the result."""
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    try:
        code = conclude(console, Story(console, directory.resolve()).run())
    except DemoError as error:
        console.print(f"demo: failed: {error}", style="red", markup=False, highlight=False)
        code = 1
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(main)
