"""`python -m deploy.demo`; see the package."""

import asyncio
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from deploy.demo.behind import behind
from deploy.demo.copied.story import run_copied
from deploy.demo.kept import keep_up, name_metrics
from deploy.demo.leased.story import run_leased
from deploy.demo.proxy_process import DemoError
from deploy.demo.story import run_demo

_DIRECTORY: Final = Path(__file__).resolve().parents[2] / "build" / "demo"
#: Without a terminal there is no width to keep to, and a wrapped table is hard to read.
_PLAIN_WIDTH: Final = 130


def main(
    seconds: Annotated[float, typer.Option(min=1, help="How long sending lasts.")] = 40.0,
    directory: Annotated[
        Path, typer.Option(help="Data and logs; what an earlier run left is removed.")
    ] = _DIRECTORY,
    *,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="With a real Kafka behind, that is killed as well.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave a server up in the end, until Ctrl-C.")
    ] = False,
) -> None:
    """Send 20,894 real rows through a server that is killed six times, and count them all.

    Then 10,000 records by a producer that remembers nothing but its name, and is killed as well.
    Then a copy of topics from one server to another, whose copier is killed again and again.
    """
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    code = 1
    try:
        code = asyncio.run(_until_stopped(console, directory.resolve(), seconds, kafka=kafka))
        if keep and not kafka:
            asyncio.run(_kept(console, directory.resolve()))
    except* DemoError as group:
        for error in group.exceptions:
            console.print(f"demo: failed: {error}", style="red", markup=False, highlight=False)
    except* (KeyboardInterrupt, asyncio.CancelledError):
        console.print("demo: failed: stopped before its end", markup=False, highlight=False)
    raise typer.Exit(code)


async def _kept(console: Console, directory: Path) -> None:
    _cancel_at_sigterm()
    await keep_up(console, directory)


def _cancel_at_sigterm() -> None:
    """SIGTERM ends it as Ctrl-C does: the proxy must not be left behind."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def _until_stopped(console: Console, directory: Path, seconds: float, *, kafka: bool) -> int:
    _cancel_at_sigterm()
    if kafka:
        return await _in_front(console, directory / "in-front", seconds)
    codes = [
        await run_demo(console, directory, seconds),
        await run_leased(console, directory / "leased"),
        await run_copied(console, directory / "copied"),
    ]
    name_metrics(console, directory)
    return max(codes)


async def _in_front(console: Console, directory: Path, seconds: float) -> int:
    await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
    async with behind(directory) as real:
        console.print(f"a real Kafka behind the proxy: {real.bootstrap}", highlight=False)
        code = await run_demo(console, directory / "first", seconds, real)
        return await run_leased(console, directory / "leased", real) or code


if __name__ == "__main__":
    typer.run(main)
