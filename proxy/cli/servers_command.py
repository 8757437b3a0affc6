"""`pidlease servers`: show the active servers that share a Kafka cluster."""

from typing import Annotated

import typer
from pydantic import BaseModel, ValidationError
from rich.text import Text

from proxy.cli.client_login import CommandConfig, command_security
from proxy.cli.console import WRONG, cannot_run, plain_table, print_json, print_table, refused
from proxy.cli.http_client import URL, ServerRefusedError, UnreachableError, ask


class _Server(BaseModel):
    node_id: int
    server: str
    kafka: str
    http: str
    slots: int
    partitions: int
    draining: bool
    decides: bool
    responds: bool


class _Servers(BaseModel):
    """The response of /v1/servers, as proxy/ops/status_response.py makes it."""

    shared: bool
    partitions_without_owner: int
    servers: list[_Server]


def servers(
    url: Annotated[
        str, typer.Option(envvar="PIDLEASE_URL", help="The HTTP address of any of the servers.")
    ] = URL,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the server's response as JSON.")
    ] = False,
    command_config: CommandConfig = None,
) -> None:
    """Show the active servers that share a Kafka cluster (`pidlease serve --shared`).

    Exit codes:
    0: every partition has an owner
    1: partitions without an owner, or the server shares no cluster
    2: not reached
    """
    try:
        answer = ask(url, "/v1/servers", security=command_security(command_config))
        found = _Servers.model_validate(answer)
    except (UnreachableError, ServerRefusedError) as error:
        raise cannot_run(str(error)) from None
    except ValidationError:
        raise cannot_run(
            f"the server at {url} is no pidlease of this version; check --url"
        ) from None
    if as_json:
        print_json(answer)
    elif found.shared:
        _show(found)
    if not found.shared:
        raise refused(f"the server at {url} shares no cluster; it runs without --shared")
    if found.partitions_without_owner:
        raise typer.Exit(WRONG)


def _show(found: _Servers) -> None:
    columns = ("server", "node", "kafka", "http", "slots", "partitions", "state")
    table = plain_table("servers", *columns)
    for each in found.servers:
        state = "draining" if each.draining else "decides" if each.decides else ""
        table.add_row(
            Text(each.server), str(each.node_id), each.kafka, each.http, f"{each.slots:,}",
            f"{each.partitions:,}", state, style="bold" if each.responds else None,
        )  # fmt: skip
    print_table(table)
    if found.partitions_without_owner:
        typer.echo(f"{found.partitions_without_owner:,} partitions have no owner")
