"""The report: one HTML file that needs nothing else, to be looked at and handed on."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from pidlease.spark.audit.audit_summary import Row, Summary
from pidlease.spark.audit.findings import VIOLATIONS
from pidlease.spark.audit.report_style import STYLE
from pidlease.spark.audit.svg_charts import bars, over_time

_POLICIES: Final = ("strict", "kafka", "monotonic", "epoch", "none", "unknown")
_POLICY_CLASSES: Final = {name: f"p-{name}" for name in _POLICIES}
_KIND_CLASSES: Final = {name: f"k-{name}" for name in VIOLATIONS}
#: Producers in the chart.
_TOP: Final = 12

_TOPICS: Final = (
    "topic", "policy", "producers", "records", "sends", "duplicates", "gaps", "fenced",
    "violations", "notices",
)  # fmt: skip
_PRODUCERS: Final = (
    "producer", "topic", "partition", "policy", "records", "sends", "generation",
    "first_sequence", "last_sequence", "duplicates", "gaps", "late", "fenced", "malformed",
    "violations",
)  # fmt: skip
_FOUND: Final = (
    "kind", "producer", "topic", "partition", "offset", "generation", "first", "last", "records",
    "numbers", "time", "detail",
)  # fmt: skip
#: Cells that are not broken into lines, and those that hold sentences.
_WHOLE: Final = ("segment", "time")
_TEXTS: Final = ("detail", "damage")
_DAMAGED: Final = ("topic", "partition", "offset", "segment", "position", "damage")


def report(summary: Summary, made_ms: int) -> str:
    """The file's content.

    Parameters:
        summary: what is shown.
        made_ms: when, in ms since 1970.
    """
    totals = summary.totals
    wrong = sum(totals.violations.values())
    body = [
        _head(summary, made_ms),
        _section("Records over time, by policy",
                 over_time(summary.records, _POLICIES, _POLICY_CLASSES)),
        _section("Violations over time, by kind",
                 over_time(summary.wrong, VIOLATIONS, _KIND_CLASSES)) if wrong else "",
        _section("Producers", _top(summary),
                 "those with most violations" if wrong else "those with most records"),
        _table("Topics and policies", _TOPICS, summary.topics),
        _table("Damaged places", _DAMAGED, summary.damages, totals.damages),
        _table("Violations", _FOUND, _named(summary.violations), wrong),
        _table("Notices", _FOUND, _named(summary.notices), sum(totals.notices.values()),
               "no rule is broken; they are told because somebody may want to know"),
        _table("Producers by partition", _PRODUCERS, _named(summary.producers)),
    ]  # fmt: skip
    title = escape(f"Audit of {summary.log}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>"
        f"{''.join(body)}</main></body></html>\n"
    )


def _head(summary: Summary, made_ms: int) -> str:
    totals = summary.totals
    wrong = sum(totals.violations.values())
    verdict = '<p class="verdict sound">No violation, and nothing damaged.</p>'
    if not totals.sound:
        told = [f"{count:,} {escape(kind)}" for kind, count in totals.violations.items()]
        if totals.damages:
            places = "place" if totals.damages == 1 else "places"
            told.append(f"{totals.damages:,} damaged {places}")
        verdict = f'<p class="verdict wrong">{", ".join(told)}</p>'
    numbers = (
        ("records", totals.records), ("sends", totals.sends), ("producers", totals.producers),
        ("partitions", totals.partitions), ("bytes", totals.bytes), ("violations", wrong),
        ("notices", sum(totals.notices.values())), ("damaged places", totals.damages),
    )  # fmt: skip
    tiles = "".join(f"<div><b>{value:,}</b><span>{name}</span></div>" for name, value in numbers)
    return (
        f'<header><h1>Audit</h1><p class="log">{escape(summary.log)}</p><p>{_time(made_ms)}</p>'
        f'</header>{verdict}<div class="tiles">{tiles}</div>'
    )


def _top(summary: Summary) -> str:
    by = "violations" if summary.totals.violations else "records"
    rows = sorted(summary.producers, key=lambda row: -row[by])[:_TOP]
    return bars([
        (f"{_producer(row)} on {row['topic']}-{row['partition']}", row[by],
         _POLICY_CLASSES[row["policy"]])
        for row in rows if row[by]
    ])  # fmt: skip


def _section(title: str, content: str, note: str = "") -> str:
    said = f" <small>{escape(note)}</small>" if note else ""
    return f"<section><h2>{escape(title)}{said}</h2>{content}</section>"


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Row], total: int = 0, note: str = ""
) -> str:
    if not rows:
        return ""
    heads = "".join(f"<th>{escape(each.replace('_', ' '))}</th>" for each in columns)
    lines = "".join(
        f"<tr>{''.join(_cell(name, row.get(name)) for name in columns)}</tr>" for row in rows
    )
    table = f'<div class="wide"><table><thead><tr>{heads}</tr></thead>{lines}</table></div>'
    more = total - len(rows)
    if more > 0:
        table += f'<p class="none">and {more:,} more, in the Parquet files</p>'
    return _section(title, table, note)


def _cell(name: str, value: Any) -> str:  # noqa: ANN401 - whatever a table holds
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td class="number">{value:,}</td>'
    text = escape("" if value is None else str(value))
    if name == "kind":
        return (
            f'<td><span class="kind {_KIND_CLASSES.get(str(value), "k-notice")}">{text}</span></td>'
        )
    css = "whole" if name in _WHOLE else "text" if name in _TEXTS else ""
    return f'<td class="{css}">{text}</td>'


def _named(rows: Sequence[Row]) -> list[Row]:
    """With a producer's name, and the time to be read."""
    return [
        {**row, "producer": _producer(row), "time": _time(row.get("timestamp", -1))} for row in rows
    ]


def _producer(row: Row) -> str:
    """Who it is: the producer id, or the PID."""
    return str(row["producer_id"] or row["pid"])


def _time(ms: int) -> str:
    if ms < 0:
        return ""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"  # a client's clock may say anything
