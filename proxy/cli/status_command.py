"""`pidlease status`: show a running server, with its health as the exit code."""

from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.text import Text

from proxy.cli.client_login import CommandConfig, CommandSecurity, command_security
from proxy.cli.console import (
    WRONG,
    cannot_run,
    pairs_table,
    plain_table,
    print_json,
    print_table,
    stdout,
)
from proxy.cli.http_client import URL, ServerRefusedError, UnreachableError, ask


class _Partition(BaseModel):
    topic: str
    partition: int
    start_offset: int
    #: None: acknowledged records cannot be read, so the end of the log is unknown.
    end_offset: int | None
    producers: int
    in_flight: int
    stopped: str
    #: Which server serves it instead; empty: this one does.
    elsewhere: str = ""


class _Stopped(BaseModel):
    topic: str
    partition: int
    reason: str


class _Leases(BaseModel):
    ring_used: int
    ring_capacity: int
    lease_seconds: float
    granted: int
    refused: dict[str, int]
    expired: int
    block_left: int
    prefetch_error: str


class _Snapshot(BaseModel):
    number: int
    age_seconds: float
    rows: dict[str, int]
    seconds: float


class _Replay(BaseModel):
    done: int
    total: int
    offsets_left: int = 0


class _Status(BaseModel):
    """The response of /v1/status, as proxy/ops/status_response.py makes it."""

    version: str
    ready: bool
    uptime_seconds: float
    replay: _Replay
    topics: int
    partition_count: int
    producers: int
    in_flight: int
    partitions: list[_Partition]
    stopped_count: int
    stopped: list[_Stopped]
    leases: _Leases
    snapshot: _Snapshot | None
    snapshot_failures: int


def status(
    url: Annotated[
        str, typer.Option(envvar="PIDLEASE_URL", help="The server's HTTP address.")
    ] = URL,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the server's response as JSON.")
    ] = False,
    command_config: CommandConfig = None,
) -> None:
    """Show a running server.

    At most 1,000 partitions are listed; the totals count all. Proxies of the environment (http_proxy) are not used.

    Exit codes:
    0: ready
    1: not ready, or partitions stopped
    2: not reached
    """  # noqa: E501 - a paragraph is one line in the help
    try:
        code, answer = _ask(url, command_security(command_config))
        found = _Status.model_validate(answer) if code == HTTPStatus.OK else None
    except UnreachableError as error:
        raise cannot_run(str(error)) from None
    except ValidationError:
        raise cannot_run(
            f"the server at {url} is no pidlease of this version; check --url"
        ) from None
    if as_json:
        print_json(answer)
    else:
        _show(stdout(), url, found, answer)
    if found is None or not found.ready or found.stopped_count:
        raise typer.Exit(WRONG)


def _ask(url: str, security: CommandSecurity) -> tuple[int, Any]:
    """Return the code and the body of /v1/status.

    Raises:
        UnreachableError: no server responds, or it is no pidlease.
    """
    try:
        return HTTPStatus.OK, ask(url, "/v1/status", security=security)
    except ServerRefusedError as error:
        # A pidlease that has only just started has no status yet.
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE and isinstance(error.answer, dict):
            return error.code, error.answer
        raise UnreachableError(str(error)) from None


def _show(console: Console, url: str, found: _Status | None, answer: dict[str, Any]) -> None:
    if found is None:
        reason = answer.get("reason") or "it has only just started"
        console.print(f"{url}: not ready; {reason}", markup=False)
        return
    _show_server(console, url, found)
    _show_partitions(console, found)
    _show_leases(console, found.leases)
    _show_snapshot(console, found)


def _show_server(console: Console, url: str, found: _Status) -> None:
    table = pairs_table("server")
    state = Text("ready", style="green")
    if not found.ready:
        left = f", {found.replay.offsets_left:,} offsets left" if found.replay.offsets_left else ""
        replay = f"{found.replay.done} of {found.replay.total} partitions replayed{left}"
        state = Text(f"not ready: {replay}", style="red")
    table.add_row("address", Text(url))
    table.add_row("version", Text(found.version))
    table.add_row("state", state)
    table.add_row("running for", _duration(found.uptime_seconds))
    table.add_row("topics", f"{found.topics:,}")
    table.add_row("partitions", f"{found.partition_count:,}")
    table.add_row("stopped", Text(f"{found.stopped_count:,}", "red" if found.stopped_count else ""))
    table.add_row("producers", f"{found.producers:,}")
    table.add_row("in flight", f"{found.in_flight:,} batches")
    console.print(table)


def _show_partitions(console: Console, found: _Status) -> None:
    columns = ("topic", "partition", "start", "end", "producers", "in flight")
    table = plain_table("partitions", *columns)
    for each in found.partitions:
        end = "damaged" if each.end_offset is None else f"{each.end_offset:,}"
        if each.elsewhere:
            end = "elsewhere"
        before, after = (each.partition, each.start_offset), (each.producers, each.in_flight)
        cells = [*(f"{each:,}" for each in before), end, *(f"{each:,}" for each in after)]
        table.add_row(Text(each.topic), *cells, style="red" if each.stopped else None)
    print_table(table)
    more = found.partition_count - len(found.partitions)
    if more > 0:
        console.print(f"and {more:,} more")
    for stopped in found.stopped:
        where = f"{stopped.topic}-{stopped.partition} is stopped: "
        console.print(Text(where + stopped.reason, style="red"))
    if any(each.end_offset is None and not each.elsewhere for each in found.partitions):
        text = "acknowledged records are damaged: stop the server, then `pidlease repair`"
        console.print(Text(text, style="red"))
    if found.stopped_count > len(found.stopped):
        console.print(f"and {found.stopped_count - len(found.stopped):,} more are stopped")


def _show_leases(console: Console, leases: _Leases) -> None:
    table = pairs_table("leases")
    share = leases.ring_used / leases.ring_capacity
    used = f"{leases.ring_used:,} of {leases.ring_capacity:,} slots ({share:.1%})"
    table.add_row("lease table", used)
    table.add_row("lease length", _duration(leases.lease_seconds))
    table.add_row("granted", f"{leases.granted:,}")
    refused = ", ".join(f"{count:,} {reason}" for reason, count in leases.refused.items())
    table.add_row("refused", Text(refused or "0"))
    table.add_row("expired", f"{leases.expired:,}")
    table.add_row("left of the block", f"{leases.block_left:,}")
    if leases.prefetch_error:
        table.add_row("next block", Text(leases.prefetch_error, style="red"))
    console.print(table)


def _show_snapshot(console: Console, found: _Status) -> None:
    table = pairs_table("snapshot")
    if found.snapshot is None:
        table.add_row("newest", "none yet")
    else:
        table.add_row("newest", f"number {found.snapshot.number}")
        table.add_row("age", _duration(found.snapshot.age_seconds))
        rows = ", ".join(f"{count:,} in {name}" for name, count in found.snapshot.rows.items())
        table.add_row("rows", Text(rows))
        table.add_row("took", f"{found.snapshot.seconds:.3f} s")
    failures = found.snapshot_failures
    table.add_row("failures", Text(f"{failures:,}", "red" if failures else ""))
    console.print(table)


def _duration(seconds: float) -> str:
    """Format a duration: seconds with a decimal below a minute, otherwise h:mm:ss."""
    if abs(seconds) < 60:
        return f"{seconds:.1f} s"
    return str(timedelta(seconds=round(seconds)))
