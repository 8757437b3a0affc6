"""The command line: `pidlease serve`, and the commands of `proxy/cli`."""

from typing import Annotated, ClassVar

import typer

from pidlease import __version__
from proxy.cli.console import HELP_OPTIONS
from proxy.cli.lazy_commands import LazyCommands
from proxy.cli.standard_streams import one_line_for_output_errors


class _Commands(LazyCommands):
    """All commands; `version` is in this module."""

    modules: ClassVar = {
        "serve": "proxy.serve_command:serve",
        "produce": "proxy.cli.produce_command:produce",
        "consume": "proxy.cli.consume_command:consume",
        "coordination": "proxy.cli.coordination_command:coordination_cli",
        "copy": "proxy.cli.copy_command:copy",
        "repair": "proxy.cli.repair_command:repair",
        "servers": "proxy.cli.servers_command:servers_cli",
        "skip-pids": "proxy.cli.skip_pids_command:skip_pids",
        "status": "proxy.cli.status_command:status",
        "top": "proxy.cli.top_command:top",
        "verify": "proxy.cli.verify_command:verify",
        "users": "proxy.cli.users_command:users_cli",
        "version": "",
        "topics": "proxy.cli.topics_command:topics_cli",
        "spark": "proxy.cli.spark:spark_cli",
    }


cli = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": sorted(HELP_OPTIONS)},
)


def _print_version(given: bool) -> None:  # noqa: FBT001 - the option
    if given:
        typer.echo(__version__)
        raise typer.Exit


@cli.callback()
def _program(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Append each record exactly once: a server, its tools and its copier."""


@cli.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Run the command line."""
    with one_line_for_output_errors():
        cli()


if __name__ == "__main__":
    main()
