"""`pidlease spark audit`: check all sends of a log against the rules of their policies."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from proxy.cli.console import (
    WRONG,
    cannot_run,
    pairs_table,
    plain_table,
    print_table,
    printable,
    stderr,
    stdout,
)
from proxy.cli.spark.job_progress import progress
from proxy.cli.spark.spark_copy_command import is_spark
from proxy.cli.spark.spark_installed import needs_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pidlease.spark.audit import Summary
    from pidlease.spark.audit.log_audit import ReportStep

_KAFKA: Final = "kafka:"
#: Exit code: nothing is wrong, but some records could not be checked.
_UNCHECKED: Final = 3
_TOPICS: Final = ("topic", "policy", "producers", "records", "sends", "duplicates", "gaps",
                  "fenced", "violations", "notices")  # fmt: skip
_PRODUCERS: Final = ("records", "sends", "generation", "first_sequence", "last_sequence",
                     "duplicates", "gaps", "fenced", "violations")  # fmt: skip


def audit(
    log: Annotated[
        str, typer.Option(help="A data directory, or kafka:HOST:PORT,... of a Kafka port.")
    ],
    *,
    topics: Annotated[str, typer.Option(help="Topics, separated by commas; default: all.")] = "",
    topics_regex: Annotated[
        str, typer.Option(help="Or a regular expression that is searched for in their names.")
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for report.html, producers.parquet and violations.parquet."),
    ] = None,
    master: Annotated[str, typer.Option(help="Spark's master; default: this machine.")] = "",
) -> None:
    """Check all that producers have sent.

    Records without a PID of pidlease cannot be checked, and may be duplicates: those of producers without idempotence, and those under PIDs of Kafka's own, of transactions and of producers that write past pidlease. If all others are sound, the exit code is 3; choose topics without such records to get 0.

    Exit codes:
    0: sound: all records were checked
    1: violations, or damage
    2: it could not be checked
    3: no violation and no damage, but some records could not be checked
    """  # noqa: E501 - a paragraph is one line in the help
    needs_spark()
    from pidlease.spark.errors import text_of  # noqa: PLC0415 - PySpark is an extra
    from pidlease.spark.spark_session import session  # noqa: PLC0415

    options = _options(log, topics, topics_regex)
    spark = session(f"pidlease audit of {log}", master=master or None)
    spark.sparkContext.setLogLevel("OFF")
    try:
        with progress(spark.sparkContext) as report:
            shown = audit_log(spark, options, log, output, report)
    except OSError as error:
        raise cannot_run(f"{error}") from None
    except Exception as error:
        if not is_spark(error):
            raise
        raise cannot_run(text_of(error)) from None
    finally:
        spark.stop()
    _show(stdout(), shown)
    if output is not None:
        stdout().print(f"written to {output / 'report.html'}", markup=False, soft_wrap=True)
    if shown.totals.wrong:
        raise typer.Exit(WRONG)
    if not shown.totals.sound:
        raise typer.Exit(_UNCHECKED)


def audit_log(
    spark: "SparkSession",
    options: dict[str, str],
    log: str,
    output: Path | None,
    report: "ReportStep",
) -> "Summary":
    """Audit a log; write the report and the tables to `output`, unless None.

    Parameters:
        options: of Spark's source.
        log: the log's name in the report.
        report: called with the current step.

    Raises:
        OSError: a file cannot be written.
    """
    from pidlease.spark import audit as auditing  # noqa: PLC0415 - PySpark is an extra
    from pidlease.spark.audit.audit_summary import REPORTED, SHOWN  # noqa: PLC0415

    sends = spark.read.format("pidlease").options(**options).load()
    found = auditing.audit(sends, report)
    names = _names(options.get("path"))
    shown = auditing.summary(found, log, SHOWN if output is None else REPORTED, names)
    if output is not None:
        report("writing the report")
        auditing.write_audit(found, shown, output, int(time.time() * 1000))
    return shown


def _names(path: str | None) -> dict[int, str]:
    """Return the names of producers by PID; a log over the Kafka protocol has none."""
    from pidlease.spark.errors import ReadError  # noqa: PLC0415 - PySpark is an extra
    from pidlease.spark.reader.log_directory import LogDirectory  # noqa: PLC0415

    if path is None:
        return {}
    try:
        return LogDirectory(path).names()
    except ReadError as error:
        stderr().print(f"producers are shown without names: {error}", markup=False, soft_wrap=True)
        return {}


def _options(log: str, topics: str, regex: str) -> dict[str, str]:
    """Return the source's options.

    Raises:
        typer.Exit: they contradict each other.
    """
    if topics and regex:
        raise cannot_run("give either --topics or --topics-regex")
    options = {"rows": "sends", "failOnDataLoss": "false"}
    options |= {"subscribe": topics} if topics else {"subscribePattern": regex or ".*"}
    if log.startswith(_KAFKA):
        return {**options, "kafka.bootstrap.servers": log.removeprefix(_KAFKA)}
    return {**options, "path": str(Path(log).absolute())}


# ---------------------------------------------------------------------- output


def _show(console: Console, shown: "Summary") -> None:
    from pidlease.spark.audit.audit_summary import affected, verdict  # noqa: PLC0415

    totals = shown.totals
    _table(console, "topics and policies", _TOPICS, shown.topics, 0)
    wrong = [row for row in shown.producers if row["violations"]]
    if wrong:
        rows = [{**row, "on": f"{row['topic']}-{row['partition']}"} for row in wrong]
        columns = ("producer", "on", *_PRODUCERS)
        _table(console, "producers with violations", columns, rows, totals.violators)
    _lines(console, shown.damages, totals.damages, "red")
    _lines(console, shown.violations, sum(totals.violations.values()), "red")
    _lines(console, shown.notices, sum(totals.notices.values()), "yellow")
    table = pairs_table(shown.log)
    for name in ("partitions", "producers", "records", "sends", "bytes"):
        table.add_row(name, f"{getattr(totals, name):,}")
    table.add_row("records not checked", f"{totals.unchecked:,}")
    for kind in (*totals.violations, *totals.notices):
        table.add_row(kind, affected(totals, kind))
    table.add_row("damaged places", f"{totals.damages:,}")
    style = "green" if totals.sound else "red" if totals.wrong else "yellow"
    table.add_row("the log is", Text(verdict(totals), style=style))
    console.print(table)


def _table(
    console: Console, title: str, names: tuple[str, ...], rows: list[dict[str, Any]], total: int
) -> None:
    from pidlease.spark.audit.audit_summary import SHOWN  # noqa: PLC0415 - PySpark is an extra

    table = plain_table(title, *(name.replace("_", " ") for name in names))
    for row in rows[:SHOWN]:
        table.add_row(*(_cell(row[name]) for name in names))
    print_table(table)
    if total > SHOWN:
        console.print(f"and {total - SHOWN:,} more")


def _cell(value: Any) -> str:  # noqa: ANN401 - whatever a table holds
    return f"{value:,}" if isinstance(value, int) else str(value)


def _lines(console: Console, rows: list[dict[str, Any]], total: int, style: str) -> None:
    from pidlease.spark.audit.audit_summary import SHOWN  # noqa: PLC0415 - PySpark is an extra

    for row in rows[:SHOWN]:
        console.print(Text(_line(row), style=style), soft_wrap=True)
    if total > SHOWN:
        console.print(f"and {total - SHOWN:,} more like these")


def _line(row: dict[str, Any]) -> str:
    """Describe a finding or damage in one line."""
    where = f"{row['topic']}-{row['partition']} offset {row['offset']:,}"
    if "damage" in row:
        return f"damaged: {where}, {row['segment']} byte {row['position']}: {row['damage']}"
    numbers = f"generation {row['generation']}, sequences {row['first']}..{row['last']}"
    detail = f": {row['detail']}" if row["detail"] else ""
    return f"{row['kind']}: {where}, {printable(row['producer'])}, {numbers}{detail}"
