"""`pidlease topics`: list, create, describe, alter and delete the topics of a running server."""

from http import HTTPStatus
from typing import Annotated, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import typer
from pydantic import BaseModel, ValidationError
from rich.table import Table
from rich.text import Text

from pidlease.http_api.topic_messages import (
    PartitionRow,
    PartitionsAnswer,
    SettingsAnswer,
    TopicAnswer,
    TopicsAnswer,
)
from pidlease.storage.topics.topic_settings import DEDUPLICATION, INITIAL, POLICIES
from pidlease.storage.topics.topic_store import illegal_name
from proxy.cli.client_login import CommandConfig, CommandSecurity, command_security
from proxy.cli.console import (
    cannot_run,
    plain_table,
    print_json,
    print_table,
    refused,
    stdout,
    warn_deprecated,
)
from proxy.cli.http_client import URL, ServerRefusedError, UnreachableError, ask
from proxy.cli.kafka_topics import (
    BY_DEFAULT,
    SERVERS,
    KafkaListener,
    ServersOption,
    add_partitions,
    create_topic,
    delete_topic,
)

topics_cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List, create, describe, alter and delete topics.",
)

_DEFAULTS: Final = "/v1/topic-defaults"
#: The settings that `list` shows, and their headings.
_LISTED: Final = (
    (DEDUPLICATION, "deduplication"),
    (POLICIES, "policies"),
    (INITIAL, "initial"),
)

_Url = Annotated[str, typer.Option(envvar="PIDLEASE_URL", help="The server's HTTP address.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the server's response as JSON.")]
_All = Annotated[bool, typer.Option("--all", help="For all topics without settings of their own.")]
_Topic = Annotated[str, typer.Argument(help="The topic's name.")]
_Answer = TypeVar("_Answer", bound=BaseModel)
_Shown = TopicAnswer | SettingsAnswer


class _Server(NamedTuple):
    """The address of a server's HTTP port, and how to connect to it."""

    url: str
    security: CommandSecurity


@topics_cli.command("list")
def list_topics(
    url: _Url = URL, *, as_json: _Json = False, command_config: CommandConfig = None
) -> None:
    """List the topics with their policies.

    Exit codes:
    2: the server was not reached
    """
    server = _Server(url, command_security(command_config))
    found: list[TopicAnswer] = []
    more = True
    while more:
        query = urlencode({"after": found[-1].name if found else ""})
        answer = _ask(TopicsAnswer, server, f"/v1/topics?{query}")
        found += answer.topics
        more = answer.more and bool(answer.topics)
    if as_json:
        print_json([each.model_dump() for each in found])
        return
    table = _texts_table("topics", "topic", "partitions", *(heading for _, heading in _LISTED))
    table.columns[1].justify, table.columns[1].no_wrap = "right", True
    for topic in found:
        values = (Text(topic.settings[name].value) for name, _ in _LISTED)
        table.add_row(Text(topic.name), f"{topic.partitions:,}", *values)
    print_table(table)


@topics_cli.command()
def create(
    topic: _Topic,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Settings of the topic."),
    ] = None,
    *,
    partitions: Annotated[
        int, typer.Option(min=BY_DEFAULT, help="How many; -1: the server's default.")
    ] = BY_DEFAULT,
    replication_factor: Annotated[
        int, typer.Option(min=BY_DEFAULT, help="With Kafka as the log; -1: Kafka's default.")
    ] = BY_DEFAULT,
    servers: ServersOption = SERVERS,
    command_config: CommandConfig = None,
) -> None:
    """Create a topic, with settings of its own.

    With Kafka as the log, Kafka gets the settings, and refuses those that begin with `pidlease.`: set these by `topics alter`.

    Exit codes:
    1: refused
    2: the server was not reached
    """  # noqa: E501 - a paragraph is one line in the help
    create_topic(
        KafkaListener(servers, command_security(command_config)),
        _checked(topic),
        partitions,
        replication_factor,
        _assignments(settings or []),
    )
    stdout().print(f"created {topic}", markup=False)


@topics_cli.command()
def describe(
    topic: Annotated[str | None, typer.Argument(help="The topic's name.")] = None,
    *,
    for_all: _All = False,
    url: _Url = URL,
    as_json: _Json = False,
    command_config: CommandConfig = None,
) -> None:
    """Show a topic's settings, where they were set, and the offsets of its partitions.

    Exit codes:
    1: there is no such topic
    2: the server was not reached
    """
    if for_all == (topic is not None):
        raise cannot_run("name a topic, or say --all")
    server = _Server(url, command_security(command_config))
    found = _get(server, topic)
    rows = None if topic is None else _partitions(server, topic)
    if as_json:
        more = {} if rows is None else {"offsets": [each.model_dump() for each in rows]}
        print_json(found.model_dump() | more)
        return
    _print(found, as_json=False)
    if rows is not None:
        _print_partitions(rows)


@topics_cli.command()
def alter(  # noqa: PLR0913 - an option each
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC] [NAME=VALUE]...",
            help="The topic's name, without --all; then its settings to change.",
        ),
    ] = None,
    *,
    unset: Annotated[
        list[str] | None,
        typer.Option(help="NAME of a setting to remove here; may be repeated."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Add partitions up to this number.")
    ] = None,
    for_all: _All = False,
    url: _Url = URL,
    servers: ServersOption = SERVERS,
    as_json: _Json = False,
    command_config: CommandConfig = None,
) -> None:
    """Change settings of a topic, or of all, at once and durably; or add partitions.

    All named settings change, or none. Partitions are added by a separate call, and are never removed. With Kafka as the log, only settings that begin with `pidlease.` can be changed here.

    Exit codes:
    1: refused, nothing has changed
    2: the server was not reached
    """  # noqa: E501 - a paragraph is one line in the help
    topic, given = _split(words or [], for_all=for_all)
    change: dict[str, str | None] = {**_assignments(given)}
    for name in unset or ():
        if not name or "=" in name:
            raise cannot_run(f"{name!r} is no name of a setting, like {DEDUPLICATION}")
        if name in change:
            raise cannot_run(f"{name} is set and unset")
        change[name] = None
    if partitions is None:
        if not change:
            raise cannot_run("say what to change: NAME=VALUE, --unset NAME or --partitions")
        server = _Server(url, command_security(command_config))
        _print(_change(server, topic, change), as_json=as_json)
        return
    # Kafka has no request for both: one could succeed, and the other fail.
    if change or topic is None:
        raise cannot_run("--partitions is for one topic, and changes no settings")
    add_partitions(
        KafkaListener(servers, command_security(command_config)), _checked(topic), partitions
    )
    stdout().print(f"{topic} has {partitions:,} partitions", markup=False)


@topics_cli.command()
def delete(
    topic: _Topic, *, servers: ServersOption = SERVERS, command_config: CommandConfig = None
) -> None:
    """Delete a topic with all its records.

    There is no confirmation.

    Exit codes:
    1: refused
    2: the server was not reached
    """
    delete_topic(KafkaListener(servers, command_security(command_config)), _checked(topic))
    stdout().print(f"deleted {topic}", markup=False)


# ---------------------------------------------------------------------- old forms


@topics_cli.command(hidden=True)
def show(
    topic: Annotated[str | None, typer.Argument(help="The topic's name.")] = None,
    *,
    for_all: _All = False,
    url: _Url = URL,
    as_json: _Json = False,
) -> None:
    """Describe a topic; deprecated."""
    warn_deprecated("topics show", "topics describe")
    describe(topic, for_all=for_all, url=url, as_json=as_json)


@topics_cli.command("set", hidden=True)
def set_settings(
    words: Annotated[list[str], typer.Argument(metavar="[TOPIC] NAME=VALUE...")],
    *,
    for_all: _All = False,
    url: _Url = URL,
    as_json: _Json = False,
) -> None:
    """Change settings; deprecated."""
    warn_deprecated("topics set", "topics alter")
    alter(words, for_all=for_all, url=url, as_json=as_json)


@topics_cli.command("unset", hidden=True)
def unset_settings(
    words: Annotated[list[str], typer.Argument(metavar="[TOPIC] NAME...")],
    *,
    for_all: _All = False,
    url: _Url = URL,
    as_json: _Json = False,
) -> None:
    """Remove settings; deprecated."""
    warn_deprecated("topics unset", "topics alter --unset")
    topics, names = ([], words) if for_all else (words[:1], words[1:])
    alter(topics, unset=names, for_all=for_all, url=url, as_json=as_json)


def _split(words: list[str], *, for_all: bool) -> tuple[str | None, list[str]]:
    """Return the topic, None for all topics, and the words about settings."""
    if for_all:
        return None, words
    if not words or "=" in words[0]:
        raise cannot_run("name a topic, or say --all; NAME=VALUE follows it")
    return words[0], words[1:]


def _assignments(words: list[str]) -> dict[str, str]:
    """Return settings given as NAME=VALUE."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise cannot_run(f"{word!r} is not NAME=VALUE, like {DEDUPLICATION}=off")
        if name in found:
            raise cannot_run(f"{name} is given twice")
        found[name] = value
    return found


# ---------------------------------------------------------------------- requests


def _get(server: _Server, topic: str | None) -> _Shown:
    """Return the settings of a topic; None: of all topics without their own."""
    if topic is None:
        return _ask(SettingsAnswer, server, _DEFAULTS)
    return _ask(TopicAnswer, server, _path(topic))


def _partitions(server: _Server, topic: str) -> list[PartitionRow]:
    """Return the partitions of a topic, with their offsets."""
    found: list[PartitionRow] = []
    more = True
    while more:
        after = found[-1].partition if found else -1
        answer = _ask(PartitionsAnswer, server, f"{_path(topic)}/partitions?after={after}")
        found += answer.partitions
        more = answer.more and bool(answer.partitions)
    return found


def _change(server: _Server, topic: str | None, change: dict[str, str | None]) -> _Shown:
    """Change settings; return the new ones."""
    if topic is None:
        return _ask(SettingsAnswer, server, _DEFAULTS, change)
    return _ask(TopicAnswer, server, f"{_path(topic)}/settings", change)


def _path(topic: str) -> str:
    return f"/v1/topics/{quote(_checked(topic), safe='')}"


def _checked(topic: str) -> str:
    reason = illegal_name(topic)
    if reason:
        raise cannot_run(reason)
    return topic


def _ask(kind: type[_Answer], server: _Server, path: str, change: object = None) -> _Answer:
    """Send a request; end the command if it fails."""
    try:
        return kind.model_validate(ask(server.url, path, change, server.security))
    except UnreachableError as error:
        raise cannot_run(str(error)) from None
    except ServerRefusedError as error:
        raise _refused(error) from None
    except ValidationError:
        raise cannot_run(
            f"the server at {server.url} is no pidlease of this version; check --url"
        ) from None


def _refused(error: ServerRefusedError) -> typer.Exit:
    answer = error.answer if isinstance(error.answer, dict) else {}
    # A server of the previous version has no `detail`.
    detail = answer.get("detail") or answer.get("error")
    if not isinstance(detail, str):
        return cannot_run(str(error))
    # With a field, the topic or a setting is wrong; without one, the path is unknown.
    if error.code in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND) and answer.get("field"):
        return refused(detail)
    if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
        return cannot_run(detail)
    return cannot_run(str(error))


# ---------------------------------------------------------------------- output


def _print(found: _Shown, *, as_json: bool) -> None:
    if as_json:
        print_json(found.model_dump())
        return
    title = "all topics that have no settings of their own"
    if isinstance(found, TopicAnswer):
        title = f"{found.name}, {found.partitions:,} partitions"
    table = _texts_table("", "setting", "value", "set by")
    table.title = Text(title)  # a topic's name may look like markup
    for name, row in found.settings.items():
        style = "bold" if row.source == "topic" else ""
        table.add_row(Text(name), Text(row.value, style), _SET_BY[row.source])
    print_table(table)


def _print_partitions(rows: list[PartitionRow]) -> None:
    table = plain_table("", "partition", "log start", "log end")
    table.columns[0].justify = "right"
    for each in rows:
        offsets = ("unknown" if at is None else f"{at:,}" for at in (each.log_start, each.log_end))
        table.add_row(f"{each.partition:,}", *offsets, style="red" if each.reason else None)
    print_table(table)
    for each in rows:
        if each.reason:
            stdout().print(Text(f"partition {each.partition}: {each.reason}", style="red"))


def _texts_table(title: str, *columns: str) -> Table:
    table = plain_table(title, *columns)
    for column in table.columns:
        column.justify = "left"
        column.no_wrap = False
    return table


_SET_BY: Final = {
    "topic": "the topic",
    "all topics": "all topics",
    "start": "the server's start",
    "default": "default",
}
