"""`pidlease coordination`: move what servers share from ZooKeeper to Kafka."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from proxy.cli.console import cannot_run, refused, stderr
from proxy.configuration.settings import SettingsError, load_settings

coordination_cli = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Move PIDs, names and topics' policies from one coordinator to another.",
)


@coordination_cli.callback()
def _program() -> None:
    """Move PIDs, names and topics' policies from one coordinator to another."""


@coordination_cli.command("migrate")
def migrate(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The TOML file of the servers' settings.")
    ] = None,
    *,
    upstream: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="Brokers of the Kafka cluster.")
    ] = None,
    zookeeper: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,.../PATH", help="The servers' ZooKeeper.")
    ] = None,
) -> None:
    """Move from ZooKeeper to Kafka itself: then servers run without `--zookeeper`.

    Stop all servers before. Other settings, such as logins at Kafka, are those of `pidlease serve`:
    from the file, or from PIDLEASE_ variables. After an error, or a crash, run it again.

    Exit codes:
    0: moved
    1: refused, or not completed
    2: it cannot be run
    """
    # Only now: the help needs none of it.
    from proxy.backends.coordination_move import MoveError, move_to_kafka  # noqa: PLC0415

    given = {"log": "kafka", "upstream": upstream, "zookeeper": zookeeper}
    try:
        settings = load_settings(config, given)
    except SettingsError as error:
        raise cannot_run(str(error)) from None
    report = stderr().print
    try:
        moved = asyncio.run(move_to_kafka(settings, lambda text: report(text, markup=False)))
    except MoveError as error:
        raise refused(str(error)) from None
    typer.echo(
        f"moved to Kafka: {moved.blocks} blocks of PIDs, {moved.names} names, {moved.writers} ids"
        f" of writers, policies of {moved.topics} topics; start the servers without --zookeeper"
    )
