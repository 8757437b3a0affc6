"""`pidlease top`: show a running server live in a terminal, as the console does in a browser."""

import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import typer
from pydantic import ValidationError
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pidlease.http_api.console_messages import (
    EventRow,
    HistoryAnswer,
    LeasesAnswer,
    OutcomesAnswer,
    PartitionStatesAnswer,
    RefusalsAnswer,
    ServersAnswer,
)
from pidlease.http_api.job_messages import JOBS_PATH, JobsAnswer, JobState
from pidlease.http_api.lease_messages import Message
from proxy.cli.client_login import CommandConfig, CommandSecurity, command_security
from proxy.cli.console import cannot_run, pairs_table, plain_table, printable, stdout
from proxy.cli.http_client import URL, ServerRefusedError, UnreachableError, ask
from proxy.cli.servers_command import servers_table

#: Rows of each table: the page is to fit a terminal.
_ROWS: Final = 8
_BARS: Final = " ▁▂▃▄▅▆▇█"
#: Samples of the last hour that one bar stands for.
_SAMPLES_PER_BAR: Final = 6

_Answer = TypeVar("_Answer", bound=Message)


class _Seen(NamedTuple):
    """The responses of a server at one moment."""

    outcomes: OutcomesAnswer
    history: HistoryAnswer
    leases: LeasesAnswer
    refusals: RefusalsAnswer
    stopped: PartitionStatesAnswer
    servers: ServersAnswer
    jobs: JobsAnswer


def top(
    url: Annotated[
        str, typer.Option(envvar="PIDLEASE_URL", help="The server's HTTP address.")
    ] = URL,
    *,
    interval: Annotated[
        float, typer.Option(min=0.2, max=3600, metavar="SECONDS", help="Time between two looks.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one page, and end.")] = False,
    command_config: CommandConfig = None,
) -> None:
    """Show a running server live: rates, duplicates, refusals, leases, active servers. Ctrl-C ends it.

    If stdout is no terminal, one page is printed. Proxies of the environment (http_proxy) are not used.

    Exit codes:
    0: ended by Ctrl-C, or after one page
    2: not reached
    """  # noqa: E501 - a paragraph is one line in the help
    security = command_security(command_config)
    try:
        console = stdout()
        if once or not console.is_terminal:
            console.print(_page(url, _look(url, security), None))
        else:
            _watch(console, url, interval, security)
    except (UnreachableError, ServerRefusedError) as error:
        raise cannot_run(str(error)) from None
    except ValidationError:
        raise cannot_run(
            f"the server at {url} is no pidlease of this version; check --url"
        ) from None


def _watch(console: Console, url: str, interval: float, security: CommandSecurity) -> None:
    """Show pages until Ctrl-C, or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seen = _look(url, security)
    before: _Seen | None = None
    try:
        with Live(_page(url, seen, None), console=console, screen=True, auto_refresh=False) as live:
            live.refresh()
            while True:
                time.sleep(interval)
                problem = ""
                try:
                    before, seen = seen, _look(url, security)
                except (UnreachableError, ServerRefusedError) as error:
                    problem = str(error)  # the server may be starting again
                live.update(_page(url, seen, before, problem), refresh=True)
    except KeyboardInterrupt:
        pass


def _look(url: str, security: CommandSecurity) -> _Seen:
    """Ask a server.

    Raises:
        UnreachableError: no server responds, or it is no pidlease.
        ServerRefusedError: the response's status is an error, as during a start.
        ValidationError: the response is of another version.
    """

    def answer(kind: type[_Answer], path: str) -> _Answer:
        try:
            return kind.model_validate(ask(url, path, security=security))
        except ServerRefusedError as error:
            detail = error.answer.get("detail") if isinstance(error.answer, dict) else None
            raise UnreachableError(f"{url}: {printable(str(detail or error))}") from None

    return _Seen(
        answer(OutcomesAnswer, "/v1/outcomes"),
        answer(HistoryAnswer, "/v1/history"),
        answer(LeasesAnswer, "/v1/leases?limit=1"),
        answer(RefusalsAnswer, f"/v1/refusals?limit={_ROWS}"),
        answer(PartitionStatesAnswer, f"/v1/partitions?state=stopped&limit={_ROWS}"),
        answer(ServersAnswer, "/v1/servers"),
        answer(JobsAnswer, JOBS_PATH),
    )


def _page(url: str, seen: _Seen, before: _Seen | None, problem: str = "") -> RenderableType:
    parts: list[RenderableType] = []
    if problem:
        parts.append(Text(printable(problem), style="red"))
    parts += [_server(url, seen, before), _topics(seen.outcomes)]
    if seen.servers.shared:
        parts.append(_servers(seen.servers))
    if seen.jobs.jobs:
        parts.append(_jobs(seen.jobs.jobs))
    if seen.stopped.partitions:
        parts.append(_stopped(seen.stopped))
    parts.append(_groups(seen.refusals))
    if seen.refusals.refusals:
        parts.append(_refusals(seen.refusals.refusals))
    return Group(*parts)


# ---------------------------------------------------------------------- parts of the page


def _server(url: str, seen: _Seen, before: _Seen | None) -> Table:
    outcomes, leases, samples = seen.outcomes, seen.leases, seen.history.samples
    lag = f"{samples[-1].lag_seconds * 1000:.1f} ms" if samples else "not measured yet"
    state = Text("ready", "green") if outcomes.ready else Text("stopping", "red")
    table = pairs_table(escape(printable(f"pidlease {outcomes.version} at {url}")))
    table.add_row("state", state)
    table.add_row("records a second", _rate(seen, before))
    table.add_row("last hour", _bars([each.records for each in samples]))
    table.add_row("acknowledged", f"{outcomes.records:,} records in {outcomes.batches:,} batches")
    for name in ("duplicate", "gap", "fenced", "failed"):
        count = sum(row.batches for row in outcomes.outcomes if row.outcome == name)
        table.add_row(f"{name} batches", Text(f"{count:,}", "" if name == "duplicate" or not count
                                             else "red"))  # fmt: skip
    table.add_row("event-loop lag", lag)
    table.add_row("topics", f"{outcomes.topics:,} with {outcomes.partitions:,} partitions")
    share = leases.used / leases.capacity
    text = f"{leases.used:,} of {leases.capacity:,} slots ({share:.1%}), {leases.names:,} names"
    table.add_row("leases", text)
    if leases.block_error:
        table.add_row("next block", Text(printable(leases.block_error), "red"))
    for broker in outcomes.brokers:
        open_ = "" if broker.connected else ", no connection open"
        table.add_row(f"broker {broker.broker}", Text(printable(broker.address) + open_))
    return table


def _rate(seen: _Seen, before: _Seen | None) -> str:
    """Return the records a second since the page before, or in the last sample."""
    if before is not None:
        seconds = (seen.outcomes.at_ms - before.outcomes.at_ms) / 1000
        records = seen.outcomes.records - before.outcomes.records
        if seconds > 0 and records >= 0:
            return f"{records / seconds:,.0f}"
    samples = seen.history.samples
    return f"{samples[-1].records / seen.history.sample_seconds:,.0f}" if samples else "0"


def _bars(values: list[int]) -> str:
    """Return a bar for each minute, the highest one for the largest value."""
    minutes = [
        sum(values[max(end - _SAMPLES_PER_BAR, 0) : end])
        for end in range(len(values), 0, -_SAMPLES_PER_BAR)
    ][::-1]
    most = max(minutes, default=0)
    if not most:
        return ""
    steps = len(_BARS) - 1
    return "".join(_BARS[-(-value * steps // most)] for value in minutes)


def _topics(outcomes: OutcomesAnswer) -> Table:
    """Return the topics with the most duplicates and refusals, then those with most records."""
    columns = ("topic", "records", "duplicates", "gaps", "fenced", "failed", "other")
    rows = sorted(
        outcomes.by_topic,
        key=lambda row: (-(row.duplicates + row.gaps + row.fenced + row.failed + row.refused),
                         -row.records, row.topic),
    )  # fmt: skip
    table = plain_table("topics", *columns)
    for row in rows[:_ROWS]:
        counts = (row.records, row.duplicates, row.gaps, row.fenced, row.failed, row.refused)
        table.add_row(Text(printable(row.topic)), *(f"{each:,}" for each in counts))
    return table


def _servers(found: ServersAnswer) -> Table:
    table = servers_table(found)
    if found.partitions_without_owner:
        table.caption = f"{found.partitions_without_owner:,} partitions have no owner"
    return table


def _jobs(jobs: list[JobState]) -> Table:
    columns = "job", "state", "records a second", "records", "lag", "lost time"
    table = plain_table("copies and Spark queries", *columns)
    for job in jobs[:_ROWS]:
        table.add_row(
            Text(printable(f"{job.kind} {job.job}")),
            Text(job.state, "red" if job.state in ("stalled", "silent", "failed") else ""),
            f"{job.rate:,.0f}", f"{job.records:,}",
            "not known" if job.lag is None else f"{job.lag:,}", f"{job.lost_seconds:,.0f} s",
        )  # fmt: skip
    return table


def _stopped(found: PartitionStatesAnswer) -> Table:
    table = _texts("stopped partitions", "partition", "reason")
    for row in found.partitions:
        where = Text(printable(f"{row.topic}-{row.partition}"))
        table.add_row(where, Text(printable(row.reason), "red"))
    return table


def _groups(found: RefusalsAnswer) -> Table:
    table = _texts("refusals", "kind", "count", "what to do")
    for group in found.groups:
        action = Text(printable(group.action))
        table.add_row(Text(printable(group.kind)), f"{group.count:,}", action)
    return table


def _refusals(rows: list[EventRow]) -> Table:
    table = _texts("last refusals", "time (UTC)", "kind", "producer", "partition", "details")
    for row in rows:
        at = datetime.fromtimestamp(row.at_ms / 1000, UTC).strftime("%H:%M:%S")
        named = row.name or row.idempotency_key or (str(row.pid) if row.pid > 0 else "")
        where = f"{row.topic}-{row.partition}" if row.topic else ""
        texts = (row.kind, named, where, _details(row))
        table.add_row(at, *(Text(printable(each)) for each in texts))
    return table


def _details(row: EventRow) -> str:
    parts: list[str] = []
    names: tuple[tuple[str, Callable[[EventRow], Any]], ...] = (
        ("generation", lambda each: each.generation),
        ("first", lambda each: each.first_sequence),
        ("expected", lambda each: each.expected),
        ("known generation", lambda each: each.known_generation),
    )
    parts = [f"{name} {value(row)}" for name, value in names if value(row) is not None]
    return ", ".join([*parts, *([row.reason] if row.reason else [])])


def _texts(title: str, *columns: str) -> Table:
    """Make a table that has only texts."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
