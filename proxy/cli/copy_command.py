"""`pidlease copy`: copy topics between clusters, each record exactly once."""

import asyncio
import logging
import os
import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from prometheus_client import CollectorRegistry, start_http_server

from pidlease.copier import Copier, CopierFencedError, CopyError, CopySettings
from pidlease.copier.comparison import Comparison, compare_all
from pidlease.copier.copy_metrics import CopyCollector
from pidlease.kafka.client.offset_requests import EARLIEST, LATEST
from proxy.cli.client_login import command_security
from proxy.cli.console import WRONG, cannot_run, plain_table, print_table, stderr, stdout
from proxy.cli.copy_progress import show_progress
from proxy.cli.stop_signals import stopped_by_signals

#: Exit code: another copier has taken over.
FENCED: Final = 3
_PASSWORD_VARIABLE: Final = "PIDLEASE_FROM_PASSWORD"  # noqa: S105 - a variable's name


def copy(  # noqa: PLR0913 - an option each
    source: Annotated[str, typer.Option("--from", help="HOST:PORT,... of the source.")],
    destination: Annotated[
        str, typer.Option("--to", help="HOST:PORT,... of a pidlease's Kafka port.")
    ],
    group: Annotated[str, typer.Option(help="Consumer group at the source; copiers share it.")],
    *,
    topics: Annotated[str, typer.Option(help="Topics, separated by commas.")] = "",
    topics_regex: Annotated[
        str | None, typer.Option(help="Or a regular expression of their names.")
    ] = None,
    leases: Annotated[
        str | None,
        typer.Option(help="URL of the destination's HTTP port; default: port 8080 of --to."),
    ] = None,
    rename: Annotated[str, typer.Option(help="The topic's name at the destination.")] = "{topic}",
    start: Annotated[
        str, typer.Option(help="Where a new copy begins: earliest, latest, or an ISO time.")
    ] = "earliest",
    once: Annotated[bool, typer.Option("--once", help="End when all is copied.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Copy nothing; compare both sides, record by record.")
    ] = False,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Continue after records that the source has deleted."),
    ] = False,
    rewind: Annotated[
        bool, typer.Option("--rewind", help="Copy again what the destination has lost.")
    ] = False,
    append: Annotated[
        bool, typer.Option("--append", help="Begin a copy into a topic that has records already.")
    ] = False,
    trust_checkpoint: Annotated[
        bool,
        typer.Option(
            "--trust-checkpoint", help="Continue from the checkpoint if nothing else proves it."
        ),
    ] = False,
    commit_seconds: Annotated[float, typer.Option(help="How often progress is saved.")] = 1.0,
    session_seconds: Annotated[
        float, typer.Option(help="A copier that is silent for this time is replaced.")
    ] = 10.0,
    give_up_seconds: Annotated[
        float, typer.Option(help="How long to retry a cluster that does not respond.")
    ] = 60.0,
    metrics_port: Annotated[
        int | None, typer.Option(help="Prometheus metrics, on this machine's loopback.")
    ] = None,
    from_tls: Annotated[
        bool, typer.Option("--from-tls", help="Connect to the source by TLS.")
    ] = False,
    from_ca: Annotated[
        str | None, typer.Option(help="File with the CA certificates to trust.")
    ] = None,
    from_sasl: Annotated[
        str | None, typer.Option(help="SASL mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.")
    ] = None,
    from_username: Annotated[str | None, typer.Option(help="SASL user.")] = None,
    from_command_config: Annotated[
        Path | None,
        typer.Option(
            envvar="PIDLEASE_FROM_COMMAND_CONFIG",
            help="File with TLS and login at the source, as Kafka's tools have it.",
        ),
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option(
            envvar="PIDLEASE_COMMAND_CONFIG",
            help="The same for the destination, and an https URL of --leases.",
        ),
    ] = None,
) -> None:
    """Copy topics, each record exactly once, over any crash.

    The password at the source is PIDLEASE_FROM_PASSWORD, user and password at the destination PIDLEASE_USER and PIDLEASE_PASSWORD. No option has a password: a list of processes would show it.

    Exit codes:
    0: done, or stopped
    1: --verify found a difference
    2: it cannot continue
    3: another copier has taken over
    """  # noqa: E501 - a paragraph is one line in the help
    login = from_username or "", os.environ.get(_PASSWORD_VARIABLE, "")
    if from_command_config is None:
        at_source = _source(from_sasl, login, tls=from_tls, ca=from_ca)
    elif from_tls or from_ca or from_sasl:
        raise cannot_run("--from-command-config has TLS and SASL; leave out --from-tls, --from-ca"
                         " and --from-sasl")  # fmt: skip
    else:
        at_source = command_security(from_command_config, login).connection.security_options()
    try:
        settings = CopySettings(
            source=source.split(","),
            destination=destination.split(","),
            leases=leases or f"http://{_host(destination)}:8080",
            group=group,
            topics=[each for each in topics.split(",") if each],
            topics_regex=topics_regex,
            rename=rename,
            start=_start(start),
            once=once,
            skip_lost=skip_lost,
            rewind=rewind,
            append=append,
            trust_checkpoint=trust_checkpoint,
            commit_interval_ms=commit_seconds * 1000,
            session_timeout_ms=int(session_seconds * 1000),
            give_up_ms=give_up_seconds * 1000,
            source_security=at_source,
            **command_security(command_config).connection.security_options(),
        )
    except ValueError as error:
        text = str(error).replace("source_security", "TLS or SASL of the source")
        raise cannot_run(text) from None
    _quiet()
    if verify:
        _verify(settings)
    else:
        _copy(settings, metrics_port)


def _copy(settings: CopySettings, metrics_port: int | None) -> None:
    copier = Copier(settings)
    if metrics_port is not None:
        registry = CollectorRegistry()
        registry.register(CopyCollector(lambda: copier.metrics))
        try:
            start_http_server(metrics_port, "127.0.0.1", registry)
        except OSError as error:
            raise cannot_run(f"--metrics-port {metrics_port}: {error}") from None
    try:
        asyncio.run(_run(copier))
    except CopierFencedError as error:
        stderr().print(f"pidlease: fenced: {error}", style="red", markup=False)
        raise typer.Exit(FENCED) from None
    except CopyError as error:
        raise cannot_run(str(error)) from None


async def _run(copier: Copier) -> None:
    with stopped_by_signals(copier.stop), show_progress(copier):
        await copier.run()
    numbers = copier.metrics
    stdout().print(
        f"copied {numbers.records:,} records, {numbers.bytes:,} bytes;"
        f" {numbers.duplicates:,} had been there before; {numbers.lag:,} are left",
        markup=False,
    )


# ---------------------------------------------------------------------- comparing


def _verify(settings: CopySettings) -> None:
    try:
        found = asyncio.run(compare_all(settings))
    except CopyError as error:
        raise cannot_run(str(error)) from None
    _show(found)
    if not all(each.same for each in found):
        raise typer.Exit(WRONG)


_COLUMNS: Final = (
    "records", "equal", "lost", "behind", "doubled", "different", "foreign", "deleted",
)  # fmt: skip


def _show(found: list[Comparison]) -> None:
    table = plain_table("comparison", "topic", "partition", *_COLUMNS)
    for each in found:
        table.add_row(each.topic, str(each.partition),
                      *(f"{getattr(each, name):,}" for name in _COLUMNS))  # fmt: skip
    print_table(table)
    for each in found:
        for finding in each.findings:
            stdout().print(f"{each.topic}-{each.partition}: {finding}", markup=False)
    sums = (f"{name} {sum(getattr(each, name) for each in found):,}" for name in _COLUMNS)
    stdout().print(", ".join(sums), markup=False)


# ---------------------------------------------------------------------- options


def _host(servers: str) -> str:
    return servers.split(",", maxsplit=1)[0].rpartition(":")[0]


def _start(text: str) -> int:
    """Parse --start into an offset code or a time in ms.

    Raises:
        ValueError: the text is neither earliest nor latest nor a time.
    """
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    if not re.match(r"\d{4}-\d\d-\d\d", text):
        raise ValueError(
            f"--start {text!r}: give earliest, latest, or a time like 2026-11-22T08:00:00Z"
        )
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _source(
    sasl: str | None, login: tuple[str, str], *, tls: bool, ca: str | None
) -> dict[str, Any]:
    """Return the options of TLS and SASL at the source."""
    found: dict[str, Any] = {
        "security_protocol": ("SASL_" if sasl else "") + ("SSL" if tls or ca else "PLAINTEXT"),
        "ssl_cafile": ca,
    }
    if tls and not ca:
        found["ssl_context"] = ssl.create_default_context()
    if sasl:
        user, password = login
        found |= {
            "sasl_mechanism": sasl, "sasl_plain_username": user or None,
            "sasl_plain_password": password or None,
        }  # fmt: skip
    return found


def _quiet() -> None:
    """Keep the client libraries' logs of each request off the console."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    for name in ("aiokafka", "httpx", "httpcore", "kafka"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
