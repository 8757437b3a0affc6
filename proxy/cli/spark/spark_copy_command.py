"""`pidlease spark copy`: copy topics by Spark, each record exactly once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from proxy.cli.console import cannot_run, stderr, stdout
from proxy.cli.spark.spark_installed import needs_spark

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from pidlease.spark.topic_copy import SourceName, Transform

#: Exit code: another run has taken over.
FENCED: Final = 3
_SOURCES: "Final[dict[str, SourceName]]" = {"kafka": "kafka", "pidlease": "pidlease"}
_POLL_SECONDS: Final = 1


def copy(  # noqa: PLR0913 - an option each
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="kafka:HOST:PORT,... by Spark's Kafka source; pidlease:HOST:PORT,... or"
            " pidlease:DIRECTORY by pidlease's, which needs no connector.",
        ),
    ],
    destination: Annotated[
        str, typer.Option("--to", help="HOST:PORT,... of a pidlease's Kafka port.")
    ],
    checkpoint: Annotated[str, typer.Option(help="Spark's checkpoint of this copy.")],
    *,
    topics: Annotated[str, typer.Option(help="Topics, separated by commas.")] = "",
    topics_regex: Annotated[
        str, typer.Option(help="Or a regular expression that is searched for in their names.")
    ] = "",
    leases: Annotated[
        str,
        typer.Option(help="URL of the destination's HTTP port; default: port 8080 of --to."),
    ] = "",
    topic: Annotated[str, typer.Option(help="The topic's name at the destination.")] = "{topic}",
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Copy the present records, then end.")
    ] = False,
    trigger_seconds: Annotated[float, typer.Option(help="How often a micro-batch begins.")] = 0,
    starting_offsets: Annotated[
        str, typer.Option(help="Where a new copy begins, as for Spark's Kafka source.")
    ] = "earliest",
    max_offsets_per_trigger: Annotated[
        int, typer.Option(help="The most records of a micro-batch; 0: no limit.")
    ] = 0,
    transform: Annotated[
        str, typer.Option(help="MODULE:FUNCTION, which takes and returns a DataFrame.")
    ] = "",
    option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, of the sink; may be repeated.")
    ] = None,
    source_option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, of the source; may be repeated.")
    ] = None,
    jars: Annotated[str, typer.Option(help="Jars to load, separated by commas.")] = "",
    master: Annotated[str, typer.Option(help="Spark's master; default: this machine.")] = "",
    conf: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, of Spark; may be repeated.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Prometheus metrics, on this machine's loopback.")
    ] = None,
) -> None:
    """Copy topics by Spark, each record exactly once, over any crash.

    Exit codes:
    0: done, or stopped
    2: it cannot continue
    3: another run has taken over
    """
    needs_spark()
    from pidlease.spark.errors import SparkPieceError, is_fenced, text_of  # noqa: PLC0415
    from pidlease.spark.listener import summary, watch  # noqa: PLC0415
    from pidlease.spark.spark_session import session  # noqa: PLC0415
    from pidlease.spark.topic_copy import copy as start  # noqa: PLC0415 - PySpark is an extra

    kind, read = _source(source, topics, topics_regex)
    read |= {"startingOffsets": starting_offsets, **_pairs(source_option, "--source-option")}
    if max_offsets_per_trigger:
        read["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    written = {
        "kafka.bootstrap.servers": destination,
        "leases": leases or f"http://{destination.split(',')[0].rpartition(':')[0]}:8080",
        "topic": topic,
        "checkpointLocation": checkpoint,
        **_pairs(option, "--option"),
    }
    trigger: dict[str, Any] = {}
    if available_now:
        trigger = {"availableNow": True}
    elif trigger_seconds:
        trigger = {"processingTime": f"{trigger_seconds} seconds"}
    changed = _function(transform) if transform else None
    spark = session(
        f"pidlease copy to {destination}",
        master=master or None,
        jars=[Path(each) for each in jars.split(",") if each],
        config=_pairs(conf, "--conf"),
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        listener = watch(spark, written, metrics_port)
        query = start(spark, read, written, source_format=kind, transform=changed,
                      trigger=trigger)  # fmt: skip
        _until_done(query)
        stdout().print(summary(listener), markup=False)
    except Exception as error:
        if not isinstance(error, SparkPieceError) and not is_spark(error):
            raise
        if is_fenced(error):
            stderr().print(f"pidlease: fenced: {text_of(error)}", style="red", markup=False)
            raise typer.Exit(FENCED) from None
        raise cannot_run(text_of(error)) from None
    finally:
        spark.stop()


def is_spark(error: BaseException) -> bool:
    """Whether an error is Spark's own, of the driver or of a task."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - PySpark is an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415

    return isinstance(error, PySparkException | Py4JError)


def _until_done(query: "StreamingQuery") -> None:
    """Wait for the end of a query; stop it at a signal.

    Raises:
        StreamingQueryException: the query has failed.
    """
    with _signals() as stopped:
        while not query.awaitTermination(_POLL_SECONDS):
            if stopped.is_set():
                query.stop()


@contextmanager
def _signals() -> Iterator[threading.Event]:
    stopped = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopped.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _source(source: str, topics: str, regex: str) -> "tuple[SourceName, dict[str, str]]":
    """Return the source's format, and its connection and topic options.

    Raises:
        typer.Exit: the arguments are invalid.
    """
    named, _, where = source.partition(":")
    kind = _SOURCES.get(named)
    if kind is None or not where:
        raise cannot_run(f"--from {source}: it begins with {' or '.join(_SOURCES)} and a colon")
    if bool(topics) == bool(regex):
        raise cannot_run("give either --topics or --topics-regex")
    names = {"subscribe": topics} if topics else {"subscribePattern": regex}
    if kind == "pidlease" and Path(where).is_dir():
        return kind, {"path": where, **names}
    return kind, {"kafka.bootstrap.servers": where, **names}


def _pairs(given: list[str] | None, name: str) -> dict[str, str]:
    pairs = {}
    for each in given or ():
        key, equals, value = each.partition("=")
        if not equals:
            raise cannot_run(f"{name} {each}: give NAME=VALUE")
        pairs[key] = value
    return pairs


def _function(name: str) -> "Transform":
    """Import a user's function.

    Raises:
        typer.Exit: it does not exist.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise cannot_run(f"--transform {name}: {error}; give MODULE:FUNCTION") from None
    return found  # type: ignore[no-any-return] # the user's
