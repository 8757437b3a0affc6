"""The files of an audit: two Parquet tables, and a report as one self-contained HTML file."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

from pidlease.spark.audit.audit_summary import Row, Summary, affected, unchecked
from pidlease.spark.audit.log_audit import Audit
from pidlease.spark.audit.send_history import VIOLATIONS
from pidlease.spark.audit.svg_charts import bars, over_time
from pidlease.storage.files import RealFiles, write_aside

_POLICIES: Final = ("strict", "kafka", "monotonic", "epoch", "none", "unknown")
_POLICY_CLASSES: Final = {name: f"p-{name}" for name in _POLICIES}
_KIND_CLASSES: Final = {name: f"k-{name}" for name in VIOLATIONS}
#: The number of producers in the chart.
_TOP: Final = 12
_TIMES: Final = "UTC, by the records' own timestamps: a copy has those of its source"

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
#: Cells without line breaks, and cells with sentences.
_WHOLE: Final = ("segment", "time")
_TEXTS: Final = ("detail", "damage")
_DAMAGED: Final = ("topic", "partition", "offset", "segment", "position", "damage")


_STYLE: Final = """
:root{color-scheme:light dark;--back:#fbfbfa;--card:#fff;--text:#22262b;--dim:#69717c;
--line:#e3e5e8;--good:#1c7c4a;--bad:#b3261e;--bad-back:#fdecea;--good-back:#e8f5ee;
--warn:#7a5a00;--warn-back:#fff4d6;
--a:#3b6fb6;--b:#d98324;--c:#4c9a6a;--d:#8a63b8;--e:#9aa3ad;--f:#c2453c;--g:#2e9aa6}
@media (prefers-color-scheme:dark){:root{--back:#14171a;--card:#1c2024;--text:#e4e7ea;
--dim:#98a1ac;--line:#30363c;--good:#6fcf9b;--bad:#ff8a80;--bad-back:#3a1f1d;--good-back:#183024;
--warn:#f0c75e;--warn-back:#352c12;
--a:#6ea0e4;--b:#eba65a;--c:#74c294;--d:#b493dc;--e:#717a84;--f:#ee7a72;--g:#5cc4cf}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 24px 60px}
header{display:flex;gap:14px;align-items:baseline;flex-wrap:wrap}
h1{font-size:26px;margin:0}h2{font-size:16px;margin:0 0 12px}
h2 small{font-weight:400;font-size:13px;color:var(--dim);margin-left:8px}
header p{margin:0;color:var(--dim)}header .log{color:var(--text);overflow-wrap:anywhere}
.verdict{padding:10px 14px;border-radius:8px;font-weight:600;margin:18px 0}
.sound{background:var(--good-back);color:var(--good)}
.wrong{background:var(--bad-back);color:var(--bad)}
.unchecked{background:var(--warn-back);color:var(--warn)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(120px,1fr));gap:10px}
.tiles div,section{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tiles div{padding:10px 14px}
.tiles b{display:block;font-size:19px;font-variant-numeric:tabular-nums}
.tiles span{color:var(--dim);font-size:12px}
section{padding:16px 18px;margin-top:16px}
svg{width:100%;height:auto;display:block}svg text{fill:var(--dim);font-size:12px}
svg .label{text-anchor:end}svg line{stroke:var(--line)}
.key{margin:8px 0 0;display:flex;gap:18px;flex-wrap:wrap;color:var(--dim)}
.key b{color:var(--text);font-weight:600}
.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px}
th{text-align:left;color:var(--dim);font-weight:500;white-space:nowrap}
th,td{padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
td{overflow-wrap:break-word;min-width:40px;max-width:340px}
.whole{white-space:nowrap}td.text{min-width:240px}
.number{font-variant-numeric:tabular-nums;white-space:nowrap}
.kind{padding:1px 8px;border-radius:9px;color:#fff;white-space:nowrap;font-size:12px}
.none{color:var(--dim);margin:8px 0 0}
.p-strict,.k-gap{fill:var(--a);background:var(--a)}
.p-kafka,.k-overlap{fill:var(--b);background:var(--b)}
.p-monotonic,.k-late{fill:var(--c);background:var(--c)}
.p-epoch,.k-fenced{fill:var(--d);background:var(--d)}
.p-none,.k-notice{fill:var(--e);background:var(--e)}
.p-unknown,.k-duplicate{fill:var(--f);background:var(--f)}
.k-malformed{fill:var(--g);background:var(--g)}
@media (prefers-color-scheme:dark){.kind{color:#14171a}}
"""


def write_audit(audit: Audit, summary: Summary, folder: Path, made_ms: int) -> None:
    """Write producers.parquet, violations.parquet and report.html.

    Existing files of these names are replaced.

    Parameters:
        summary: what the report shows.
        folder: created if missing; all of Spark's workers must see it.
        made_ms: time of the report, in ms since 1970.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write(audit.producers, folder / "producers.parquet")
    _write(audit.violations, folder / "violations.parquet")
    content = report(summary, made_ms).encode()
    write_aside(RealFiles(), folder / "report.html", [content])


def _write(table: DataFrame, path: Path) -> None:
    table.write.mode("overwrite").parquet(str(path.absolute()))


def report(summary: Summary, made_ms: int) -> str:
    """Return the report as HTML.

    Parameters:
        made_ms: time of the report, in ms since 1970.
    """
    totals = summary.totals
    wrong = sum(totals.violations.values())
    body = [
        _head(summary, made_ms),
        _section("Records over time, by policy",
                 over_time(summary.records, _POLICIES, _POLICY_CLASSES), _TIMES),
        _section("Records of violations over time, by kind",
                 over_time(summary.wrong, VIOLATIONS, _KIND_CLASSES), _TIMES) if wrong else "",
        _section("Producers", _top(summary),
                 "those with most violations" if wrong else "those with most records"),
        _table("Topics and policies", _TOPICS, summary.topics),
        _table("Damaged places", _DAMAGED, summary.damages, totals.damages),
        _table("Violations", _FOUND, _timed(summary.violations), wrong),
        _table("Notices", _FOUND, _timed(summary.notices), sum(totals.notices.values()),
               "no rule is broken"),
        _table("Producers by partition", _PRODUCERS, summary.producers),
    ]  # fmt: skip
    title = escape(f"Audit of {summary.log}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><main>"
        f"{''.join(body)}</main></body></html>\n"
    )


def _head(summary: Summary, made_ms: int) -> str:
    totals = summary.totals
    wrong = sum(totals.violations.values())
    verdict = ""
    if totals.wrong:
        parts = [f"{kind}: {affected(totals, kind)}" for kind in totals.violations]
        if totals.damages:
            places = "place" if totals.damages == 1 else "places"
            parts.append(f"{totals.damages:,} damaged {places}")
        verdict = f'<p class="verdict wrong">{escape("; ".join(parts))}</p>'
    elif totals.sound:
        verdict = '<p class="verdict sound">No violation, and nothing damaged.</p>'
    if totals.unchecked:
        verdict += f'<p class="verdict unchecked">{escape(unchecked(totals))}</p>'
    numbers = (
        ("records", totals.records), ("sends", totals.sends), ("producers", totals.producers),
        ("partitions", totals.partitions), ("bytes", totals.bytes),
        ("records not checked", totals.unchecked), ("violations", wrong),
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
        (f"{row['producer']} on {row['topic']}-{row['partition']}", row[by],
         _POLICY_CLASSES[row["policy"]])
        for row in rows if row[by]
    ])  # fmt: skip


def _section(title: str, content: str, note: str = "") -> str:
    small = f" <small>{escape(note)}</small>" if note else ""
    return f"<section><h2>{escape(title)}{small}</h2>{content}</section>"


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


def _timed(rows: Sequence[Row]) -> list[Row]:
    """Add the readable time to rows."""
    return [{**row, "time": _time(row["timestamp"])} for row in rows]


def _time(ms: int) -> str:
    if ms < 0:
        return ""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"  # a client's clock may be wrong
