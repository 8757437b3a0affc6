"""The dashboard of copies between clusters, by copiers and by Spark."""

from typing import Final

from deploy.grafana.panels import (
    BYTES_PER_SECOND,
    COUNT,
    PER_SECOND,
    RECORDS,
    SECONDS,
    Board,
    Limits,
    Panel,
    Query,
    Row,
    Variable,
    graph,
    number,
)
from deploy.grafana.promql import WINDOW, gained, rate, series, total
from pidlease.observability import metric_catalogue as metrics

_COPIER: Final = Variable("copier", "Copier", "label_values(pidlease_copy_records_total, instance)")
_SPARK: Final = Variable(
    "spark", "Spark", "label_values(pidlease_spark_micro_batches_total, instance)"
)
_TOPIC: Final = Variable(
    "topic", "Topic",
    'label_values({__name__=~"pidlease_copy_offset|pidlease_spark_high"}, topic)',
)  # fmt: skip
_PLACE: Final = "{{topic}}-{{partition}}"


def _copied(name: str) -> Query:
    return Query(rate(metrics.COPY[name], "instance", variable="copier"), "{{instance}} " + name)


def _gained(name: str, title: str, text: str, limits: Limits | None = None) -> Panel:
    return number(title, text, COUNT, gained(metrics.COPY[name], variable="copier"), limits=limits)


_LEFT: Final = total(metrics.COPY_LAG, "topic", variable="copier")
_PACE: Final = f"sum by (topic) (deriv({series(metrics.COPY_OFFSET, variable='copier')}[{WINDOW}]))"

_COPIERS_NOW: Final = Row("Copiers", (
    number(
        "Records left to copy", "Near 0 once a copy has caught up. Growing: it is too slow; start"
        " another copier in the same group.",
        COUNT, total(metrics.COPY_LAG, variable="copier"), limits=Limits(100_000, 1_000_000),
    ),
    _gained(
        "commit_failures", "Checkpoints not saved",
        "0 within the time shown. The copy goes on; after a restart it begins at the last one, and"
        " doubles nothing. Look at the source's group coordinator.", Limits(1, 10),
    ),
    _gained("commits", "Checkpoints saved", "One in commit-seconds (1 s) while records come."),
    _gained(
        "assigned", "Partitions assigned",
        "At a start, and when copiers come or go. Often: a copier is restarted all the time.",
    ),
    _gained(
        "carried", "PIDs replaced", "At most one for each partition in a lease length (24 h).",
    ),
    number(
        "Copiers", "As many as you run.", COUNT,
        f"count ({series(metrics.COPY['records'], variable='copier')})",
        limits=Limits(1, 1, falling=True),
    ),
))  # fmt: skip

_COPIERS: Final = Row("Copiers over time", (
    graph(
        "Records left by partition",
        "Near 0. One that does not fall while others do: its copier hangs, or the source's leader"
        " is down.",
        COUNT, Query(series(metrics.COPY_LAG, variable="copier"), _PLACE),
    ),
    graph(
        "Time to catch up",
        "Seconds, at the pace of the last minutes. Very large: the copy makes no progress.",
        SECONDS, Query(f"{_LEFT} / clamp_min({_PACE}, 0.001)", "{{topic}}"),
    ),
    graph(
        "Records copied, and duplicates of them",
        "Duplicates only after a restart: they had been copied, and were not stored again.",
        RECORDS, _copied("records"), _copied("duplicates"),
    ),
    graph("Bytes copied", "The bytes read from the source.", BYTES_PER_SECOND, _copied("bytes")),
    graph(
        "Batches acknowledged", "Large ones while it catches up, small ones afterwards.",
        PER_SECOND, _copied("batches"),
    ),
    graph(
        "Offset in the source", "Rising, or level where the source has nothing new.", COUNT,
        Query(series(metrics.COPY_OFFSET, variable="copier"), _PLACE),
    ),
))  # fmt: skip

_SPARK_NOW: Final = Row("Spark", (
    number(
        "Rows left to read", "About as many as arrive during a micro-batch.", COUNT,
        total(metrics.SPARK_LAG, variable="spark"), limits=Limits(1_000_000, 10_000_000),
    ),
    number(
        "Ended by an error", "0 within the time shown. Spark's log has the error; start it again:"
        " it resumes where it ended.",
        COUNT, gained(metrics.SPARK_FAILURES, variable="spark"), limits=Limits(1, 2),
    ),
    number(
        "Ended by another run", "0 within the time shown. Two runs with one checkpoint: end one.",
        COUNT, gained(metrics.SPARK_FENCED, variable="spark"), limits=Limits(1, 2),
    ),
    number(
        "Last micro-batch", "Shorter than the trigger's interval.", SECONDS,
        series(metrics.SPARK_SECONDS, variable="spark"), "{{instance}}",
    ),
    number(
        "Rows a second", "Of the last micro-batch.", RECORDS,
        series(metrics.SPARK_RATE, variable="spark"), "{{instance}}", width=8,
    ),
))  # fmt: skip

_SPARK_ROW: Final = Row("Spark over time", (
    graph(
        "Micro-batches", "One in the trigger's interval. None while rows are left: it hangs.",
        PER_SECOND,
        Query(rate(metrics.SPARK_BATCHES, "instance", variable="spark"), "{{instance}}"),
    ),
    graph(
        "Rows sent, and duplicates of them",
        "Duplicates only after a failed task: they had arrived, and were not stored again.",
        RECORDS,
        Query(rate(metrics.SPARK_SENT, "topic", variable="spark"), "{{topic}} sent"),
        Query(rate(metrics.SPARK_DUPLICATES, "topic", variable="spark"), "{{topic}} duplicates"),
    ),
    graph(
        "Rows left by partition", "Level. Growing: more cores, or longer micro-batches.", COUNT,
        Query(series(metrics.SPARK_LAG, variable="spark"), _PLACE),
    ),
    graph(
        "Last sequence number at the destination", "Rising. It never falls.", COUNT,
        Query(series(metrics.SPARK_HIGH, variable="spark"), _PLACE), width=24,
    ),
))  # fmt: skip

COPYING: Final = Board(
    "pidlease-copying", "pidlease: copiers and Spark",
    "The lag of copies, their pace, and the reasons why they stopped.",
    (_COPIER, _SPARK, _TOPIC), (_COPIERS_NOW, _COPIERS, _SPARK_NOW, _SPARK_ROW),
)  # fmt: skip
