"""`pidlease servers`: show the active servers that share a Kafka cluster, drain them, rebalance."""

from typing import Annotated, Any, Final, NoReturn

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from pidlease.http_api.console_messages import ServersAnswer, SharingServer
from pidlease.http_api.server_messages import Rebalanced, ServerSlots
from proxy.cli.client_login import CommandConfig, CommandSecurity, command_security
from proxy.cli.console import (
    WRONG,
    cannot_run,
    plain_table,
    print_json,
    print_table,
    printable,
    refused,
)
from proxy.cli.http_client import URL, ServerRefusedError, UnreachableError, ask

_PATH: Final = "/v1/servers"
_LOWEST_ERROR: Final = 500

servers_cli = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    help="Show the active servers that share a Kafka cluster, drain them, and divide their slots.",
)

_Url = Annotated[
    str, typer.Option(envvar="PIDLEASE_URL", help="The HTTP address of any of the servers.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print the server's response as JSON.")]
_Server = Annotated[
    str, typer.Argument(help="The server's node id, or its name, as `pidlease servers` shows them.")
]


@servers_cli.callback()
def show(
    context: typer.Context,
    url: _Url = URL,
    *,
    as_json: _Json = False,
    command_config: CommandConfig = None,
) -> None:
    """Show the active servers that share a Kafka cluster (`pidlease serve --shared`).

    Exit codes:
    0: every partition has an owner
    1: partitions without an owner, or the server shares no cluster
    2: not reached
    """
    if context.invoked_subcommand is not None:
        return
    answer, found = _servers(url, command_security(command_config))
    if as_json:
        print_json(answer)
    elif found.shared:
        _show(found)
    _require_shared(found, url)
    if found.partitions_without_owner:
        raise typer.Exit(WRONG)


@servers_cli.command()
def drain(
    server: _Server,
    url: _Url = URL,
    *,
    as_json: _Json = False,
    command_config: CommandConfig = None,
) -> None:
    """Move all partitions of a server to the others. It gets none until `undrain` or its restart.

    The server serves on, and sends requests on to the owners; clients see no error.

    Exit codes:
    0: it owns no slot
    1: it still owns some, or the request was refused
    2: not reached
    """
    found = _change(url, command_security(command_config), server, draining=True)
    if as_json:
        print_json(found.model_dump())
    elif not found.slots:
        typer.echo(f"{found.server} is drained: it owns no slot")
    if found.slots:
        raise refused(
            f"{found.server} still owns {found.slots} slots; look at `pidlease servers`: another"
            " server must be there that is not drained"
        )


@servers_cli.command()
def undrain(
    server: _Server,
    url: _Url = URL,
    *,
    as_json: _Json = False,
    command_config: CommandConfig = None,
) -> None:
    """Let a drained server own partitions again.

    Exit codes:
    0: it will own some in a moment
    1: the request was refused
    2: not reached
    """
    found = _change(url, command_security(command_config), server, draining=False)
    if as_json:
        print_json(found.model_dump())
    else:
        typer.echo(f"{found.server} is not drained any more")


@servers_cli.command()
def rebalance(
    url: _Url = URL, *, as_json: _Json = False, command_config: CommandConfig = None
) -> None:
    """Divide the slots anew, by the partitions that there are now. The fewest slots move.

    While the servers stay the same, new topics move nothing; so some servers may own more
    partitions than others after a while.

    Exit codes:
    0: done
    1: the request was refused
    2: not reached
    """
    security = command_security(command_config)
    try:
        answer = ask(url, f"{_PATH}/rebalance", {}, security, method="POST")
        found = Rebalanced.model_validate(answer)
    except (UnreachableError, ServerRefusedError, ValidationError) as error:
        _fail(error, url)
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"{found.moved:,} slots have another owner now")


def _servers(url: str, security: CommandSecurity) -> tuple[Any, ServersAnswer]:
    try:
        answer = ask(url, _PATH, security=security)
        return answer, ServersAnswer.model_validate(answer)
    except (UnreachableError, ServerRefusedError) as error:
        raise cannot_run(str(error)) from None
    except ValidationError as error:
        _fail(error, url)


def _change(url: str, security: CommandSecurity, name: str, *, draining: bool) -> ServerSlots:
    _, found = _servers(url, security)
    _require_shared(found, url)
    node_id = next(
        (each.node_id for each in found.servers if name in (str(each.node_id), each.server)), None
    )
    if node_id is None:
        known = ", ".join(f"{each.node_id} ({each.server})" for each in found.servers)
        raise refused(f"there is no active server {name!r}; there are {known}")
    try:
        answer = ask(url, f"{_PATH}/{node_id}", {"draining": draining}, security)
        return ServerSlots.model_validate(answer)
    except (UnreachableError, ServerRefusedError, ValidationError) as error:
        _fail(error, url)


def _fail(error: Exception, url: str) -> NoReturn:
    """End the command: the server was not reached, or has refused."""
    if isinstance(error, ServerRefusedError) and isinstance(error.answer, dict):
        text = str(error.answer.get("detail") or error)
        raise (cannot_run if error.code >= _LOWEST_ERROR else refused)(text) from None
    if isinstance(error, ValidationError):
        text = f"the server at {url} is no pidlease of this version; check --url"
        raise cannot_run(text) from None
    raise cannot_run(str(error)) from None


def _require_shared(found: ServersAnswer, url: str) -> None:
    if not found.shared:
        raise refused(f"the server at {url} shares no cluster; it runs without --shared")


def _show(found: ServersAnswer) -> None:
    print_table(servers_table(found))
    if found.partitions_without_owner:
        typer.echo(f"{found.partitions_without_owner:,} partitions have no owner")


def _followed(server: SharingServer) -> str:
    """Return how many of a server's partitions the responding one follows, and how closely."""
    lag = server.follower_lag_seconds
    if not server.followed or lag is None:
        return ""
    return f"{server.followed:,}, {lag:.1f} s old"


def servers_table(found: ServersAnswer) -> Table:
    """Return a table of the active servers; the one that responds is bold."""
    columns = ("server", "node", "kafka", "http", "slots", "partitions", "followed", "state")
    table = plain_table("servers", *columns)
    for each in found.servers:
        drained = "draining" if each.slots else "drained"
        states = {
            drained: each.draining, "decides": each.decides, "registrar": each.registrar,
            "does not answer": each.silent, "answers again": each.returning,
        }  # fmt: skip
        state = ", ".join(name for name, holds in states.items() if holds)
        texts = (each.server, str(each.node_id), each.kafka, each.http, f"{each.slots:,}",
                 f"{each.partitions:,}", _followed(each), state)  # fmt: skip
        table.add_row(
            *(Text(printable(text)) for text in texts), style="bold" if each.responds else None
        )
    return table
