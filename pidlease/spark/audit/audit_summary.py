"""Summarizes an audit: the first rows of its tables, for the console and the report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pidlease.spark.audit.first_pass import MINUTE_MS, NAMELESS
from pidlease.spark.audit.log_audit import Audit, Totals, total
from pidlease.spark.audit.send_history import GAP, LOST

#: Rows of a table on the console.
SHOWN: Final = 20
#: Rows of a table in the report.
REPORTED: Final = 500
#: The approximate number of columns of a chart.
_BUCKETS: Final = 72
_STEPS_MIN: Final = (1, 2, 5, 10, 15, 30, 60, 120, 240, 720, 1440, 7 * 1440, 30 * 1440, 365 * 1440)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """Numbers over time, for a chart.

    Attributes:
        begin_ms: when the first column begins, in ms since 1970.
        step_ms: the duration of a column.
        series: by name, a number for each column.
    """

    begin_ms: int = 0
    step_ms: int = MINUTE_MS
    series: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """The first rows of each table, the worst ones first.

    Rows of a producer have its name, or else its PID, as `producer`.

    Attributes:
        log: the name of the log.
        topics: sums by topic and policy.
        violations: in the order of the log.
        records: records over time, by policy.
        wrong: records of violations over time, by kind; of gaps the missing sequence numbers.
    """

    log: str
    totals: Totals
    topics: list[Row]
    producers: list[Row]
    violations: list[Row]
    notices: list[Row]
    damages: list[Row]
    records: TimeSeries
    wrong: TimeSeries


def summary(
    audit: Audit, log: str, rows: int = SHOWN, names: Mapping[int, str] | None = None
) -> Summary:
    """Summarize an audit.

    Parameters:
        log: the name of the log.
        rows: the most rows of a table.
        names: the producers' names, by PID (`LogDirectory.names`).
    """

    def named(table: DataFrame) -> list[Row]:
        return [{**row, "producer": _producer(row, names or {})} for row in _rows(table, rows)]

    order = ("topic", "partition", "offset")
    records, wrong = _over_time(audit)
    return Summary(
        log=log,
        totals=audit.totals,
        topics=_rows(_topics(audit.producers), rows),
        producers=named(
            audit.producers.where(F.col("policy") != NAMELESS).orderBy(
                F.desc("violations"), F.desc("notices"), F.desc("records"), *order[:2], "pid"
            )
        ),
        violations=named(audit.violations.orderBy(*order)),
        notices=named(audit.notices.orderBy(*order)),
        damages=_rows(audit.damages.orderBy(*order), rows),
        records=records,
        wrong=wrong,
    )


def verdict(totals: Totals) -> str:
    """Return the verdict on a log as a sentence part, after "the log is"."""
    if totals.wrong:
        return "not sound"
    if not totals.unchecked:
        return "sound"
    checked = "sound, as far as it was checked: " if totals.unchecked < totals.records else ""
    return f"{checked}{unchecked(totals)}"


def unchecked(totals: Totals) -> str:
    """Return how many records were not checked, and why."""
    return (
        f"not checked: {totals.unchecked:,} of {_counted(totals.records, 'record')}, which have no"
        " PID, or one of Kafka's own"
    )


def affected(totals: Totals, kind: str) -> str:
    """Return how many records the findings of a kind affect."""
    findings = totals.violations.get(kind, 0) + totals.notices.get(kind, 0)
    records = "missing sequence number" if kind in (GAP, LOST) else "record"
    return f"{_counted(totals.affected[kind], records)} in {_counted(findings, 'finding')}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _producer(row: Row, names: Mapping[int, str]) -> str:
    """Return a producer's id (policy epoch), its name and PID, or its PID."""
    pid = row["pid"]
    return row["producer_id"] or (f"{names[pid]} ({pid})" if pid in names else str(pid))


def _rows(table: DataFrame, limit: int) -> list[Row]:
    return [row.asDict() for row in table.limit(limit).collect()]


def _topics(producers: DataFrame) -> DataFrame:
    sums = ("records", "sends", "bytes", "duplicates", "gaps", "fenced", "violations", "notices")
    return (
        producers.groupBy("topic", "policy")
        .agg(F.count("*").alias("producers"), *(total(F.col(each)).alias(each) for each in sums))
        .orderBy(F.desc("violations"), "topic", "policy")
    )


def _over_time(audit: Audit) -> tuple[TimeSeries, TimeSeries]:
    """Return records by policy and violations by kind, over the same columns."""
    timeline = audit.timeline.where("minute > 0")  # a record without a timestamp has -1
    row = timeline.agg(F.min("minute").alias("first"), F.max("minute").alias("last")).first()
    if row is None or row["first"] is None:
        return TimeSeries(), TimeSeries()
    first, last = row["first"], row["last"]
    step = next((each for each in _STEPS_MIN if (last - first) // each < _BUCKETS),
                (last - first) // _BUCKETS + 1)  # fmt: skip
    begin = first // step * step
    count = (last - begin) // step + 1

    def series(table: DataFrame, name: str, number: str) -> TimeSeries:
        column = F.floor((F.col("minute") - begin) / step).cast("int").alias("column")
        sums = table.where(F.col("minute").between(begin, last)).groupBy(name, column)
        numbers: dict[str, list[int]] = {}
        for each in sums.agg(total(F.col(number)).alias("number")).collect():
            numbers.setdefault(each[name], [0] * count)[each["column"]] = each["number"]
        return TimeSeries(begin * MINUTE_MS, step * MINUTE_MS, numbers)

    minute = F.floor(F.col("timestamp") / MINUTE_MS).cast("long").alias("minute")
    wrong = audit.violations.select("kind", minute, "numbers")
    return series(timeline, "policy", "records"), series(wrong, "kind", "numbers")
