"""The command line: `pidlease serve`, and the commands of `proxy/cli`."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pidlease import __version__
from proxy.app import StartError
from proxy.app import serve as run_server
from proxy.cli.consume_command import consume
from proxy.cli.copy_command import copy
from proxy.cli.produce_command import produce
from proxy.cli.repair_command import repair
from proxy.cli.skip_pids_command import skip_pids
from proxy.cli.spark import spark_cli
from proxy.cli.status_command import status
from proxy.cli.topics_command import topics_cli
from proxy.cli.verify_command import verify
from proxy.configuration.settings import Settings, SettingsError, load_settings
from proxy.log_output import configure_logs

#: The exit code for a wrong option, and for a server that cannot start.
USAGE_ERROR = 2

cli = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
_errors = Console(stderr=True, soft_wrap=True)


def _serve(config: Path | None, **given: Any) -> None:  # noqa: ANN401 - a setting each
    """Run the server. Each option is also PIDLEASE_..., or a line of the TOML file."""
    try:
        settings = load_settings(config, given)
        configure_logs(settings)
        run_server(settings, lambda: load_settings(config, given))
    except (SettingsError, StartError) as error:
        _errors.print(f"pidlease: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(USAGE_ERROR) from None


def _options() -> inspect.Signature:
    """Return a signature with an option for each setting."""
    parameters = [
        inspect.Parameter(
            "config",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[Path | None, typer.Option(help="A TOML file of settings.")],
        )
    ]
    for name, field in Settings.model_fields.items():
        kind = bool | None if field.annotation is bool else str | None
        default = "" if field.is_required() else f" (default: {field.default})"
        option = typer.Option(help=f"{field.description}{default}", show_default=False)
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind, option],
            )
        )
    return inspect.Signature(parameters)


_signature = _options()
_serve.__signature__ = _signature  # type: ignore[attr-defined]
_serve.__annotations__ = {each.name: each.annotation for each in _signature.parameters.values()}
cli.command("serve")(_serve)
cli.command()(produce)
cli.command()(consume)
cli.command()(copy)
cli.command()(repair)
cli.command()(skip_pids)
cli.command()(status)
cli.command()(verify)
cli.add_typer(topics_cli, name="topics")
cli.add_typer(spark_cli, name="spark")


@cli.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Run the command line."""
    cli()


if __name__ == "__main__":
    main()
