"""Summarizes an audit: the first rows of its tables, for the console and the report."""

from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pidlease.spark.audit.first_pass import MINUTE_MS
from pidlease.spark.audit.log_audit import Audit, Totals

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

    Attributes:
        log: the name of the log.
        topics: sums by topic and policy.
        violations: in the order of the log.
        records: records over time, by policy.
        wrong: violations over time, by kind.
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


def summary(audit: Audit, log: str, rows: int = SHOWN) -> Summary:
    """Summarize an audit.

    Parameters:
        log: the name of the log.
        rows: the most rows of a table.
    """
    order = ("topic", "partition", "offset")
    records, wrong = _over_time(audit)
    return Summary(
        log=log,
        totals=audit.totals,
        topics=_rows(_topics(audit.producers), rows),
        producers=_rows(
            audit.producers.where(F.col("policy") != "none").orderBy(
                F.desc("violations"), F.desc("notices"), F.desc("records"), *order[:2], "pid"
            ),
            rows,
        ),
        violations=_rows(audit.violations.orderBy(*order), rows),
        notices=_rows(audit.notices.orderBy(*order), rows),
        damages=_rows(audit.damages.orderBy(*order), rows),
        records=records,
        wrong=wrong,
    )


def _rows(table: DataFrame, limit: int) -> list[Row]:
    return [row.asDict() for row in table.limit(limit).collect()]


def _topics(producers: DataFrame) -> DataFrame:
    sums = ("records", "sends", "bytes", "duplicates", "gaps", "fenced", "violations", "notices")
    return (
        producers.groupBy("topic", "policy")
        .agg(F.count("*").alias("producers"), *(F.sum(each).alias(each) for each in sums))
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
        for each in sums.agg(F.sum(number).alias("number")).collect():
            numbers.setdefault(each[name], [0] * count)[each["column"]] = each["number"]
        return TimeSeries(begin * MINUTE_MS, step * MINUTE_MS, numbers)

    minute = F.floor(F.col("timestamp") / MINUTE_MS).cast("long").alias("minute")
    wrong = audit.violations.select("kind", minute, F.lit(1).alias("one"))
    return series(timeline, "policy", "records"), series(wrong, "kind", "one")
