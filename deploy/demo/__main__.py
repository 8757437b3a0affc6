"""`python -m deploy.demo`: runs all parts, or those with a real Kafka as the log."""

import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from deploy.demo import DemoError
from deploy.demo.copied import run_copied
from deploy.demo.leased import run_leased
from deploy.demo.members import run_members
from deploy.demo.orders import run_orders
from deploy.demo.secured import run_secured
from deploy.demo.story import METRICS, SETTINGS, run_demo
from deploy.demo.upstream import real_upstream
from tests.servers.pidlease import not_started
from tests.servers.process import ServerError

_DIRECTORY: Final = Path(__file__).resolve().parents[2] / "build" / "demo"
#: The width without a terminal: wide enough that no table is wrapped.
_PLAIN_WIDTH: Final = 130
_LOOK_S: Final = 0.5


def main(
    seconds: Annotated[float, typer.Option(min=1, help="How long sending lasts.")] = 40.0,
    directory: Annotated[
        Path, typer.Option(help="Data and logs; those of an earlier run are removed.")
    ] = _DIRECTORY,
    *,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="In front of a real Kafka, that is killed as well.")
    ] = False,
    zookeeper: Annotated[
        bool, typer.Option("--zookeeper", help="With --kafka: a ZooKeeper is the coordinator.")
    ] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Only: TLS, logins and rights, and an intruder.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave a server up in the end, until Ctrl-C.")
    ] = False,
) -> None:
    """Send 20,894 real rows through a server that is killed six times, and count them all.

    Then 10,000 records by a producer that remembers nothing but its name, and is killed as well.
    Then a copy of topics from one server to another; the copier is killed again and again.
    Then orders over HTTP by idempotency keys, while the server is killed.

    In front of Kafka: the first two parts, then three servers that share the cluster.
    """
    console = new_console()

    def run() -> int:
        if secure:
            return run_secured(console, directory.resolve() / "secured")
        if kafka:
            folder = directory.resolve() / "in-front"
            return _in_front(console, folder, seconds, with_zookeeper=zookeeper)
        code = _alone(console, directory.resolve(), seconds)
        if keep:
            _keep_up(console, directory.resolve())
        return code

    raise typer.Exit(exit_code(console, run))


def new_console() -> Console:
    """Return the console; let SIGTERM end the demo as Ctrl-C does, which also ends the servers."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)


def exit_code(console: Console, run: Callable[[], int]) -> int:
    """Run a demo; if it fails, show why; return the exit code."""
    try:
        return run()
    except (DemoError, ServerError, AssertionError) as error:
        failed = str(error)
    except KeyboardInterrupt:
        failed = "stopped before its end"
    console.print(f"demo: failed: {failed}", style="red", markup=False, highlight=False)
    return 1


def _alone(console: Console, directory: Path, seconds: float) -> int:
    code = max(
        run_demo(console, directory, seconds),
        run_leased(console, directory / "leased"),
        run_copied(console, directory / "copied"),
        run_orders(console, directory / "orders"),
    )
    console.print(
        f"metrics: a running server has them at /metrics of its HTTP port; those of part one are in"
        f" {directory / METRICS}; `make demo KEEP=1` leaves the server up",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    return code


def _in_front(console: Console, directory: Path, seconds: float, *, with_zookeeper: bool) -> int:
    shutil.rmtree(directory, ignore_errors=True)
    with real_upstream(directory, with_zookeeper=with_zookeeper) as upstream:
        console.print(f"the upstream is a real Kafka: {upstream.kafka.bootstrap}", highlight=False)
        code = run_demo(console, directory / "first", seconds, upstream)
        code = run_leased(console, directory / "leased", upstream) or code
        return run_members(console, directory / "members", upstream) or code


def _keep_up(console: Console, directory: Path) -> None:
    """Start the server of part one again on its data, and keep it running until Ctrl-C."""
    with not_started(directory, **SETTINGS) as server:
        server.start()
        console.print(
            f"the server is up until Ctrl-C: metrics {server.http_url}/metrics, status"
            f" {server.http_url}/v1/status, Kafka clients {server.bootstrap}\n"
            f"console: {server.http_url}/",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        try:
            while server.alive:
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            server.stop()


if __name__ == "__main__":
    typer.run(main)
