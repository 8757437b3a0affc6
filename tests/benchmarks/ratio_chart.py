"""Draws the ratios of a run as SVG: docs/reference/benchmarks.svg, from build/bench.json.

    python -m tests.benchmarks.ratio_chart

draws it anew from the last run of `make bench`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = _ROOT / "docs" / "reference" / "benchmarks.svg"
RESULTS: Final = _ROOT / "build" / "bench.json"

_WIDTH: Final = 900
_LABEL: Final = 190
_NUMBERS: Final = 170
_ROW: Final = 26
_TOP: Final = 34
_STEP: Final = 0.5
_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.grid { stroke: #d0d7de } .equal { stroke: #57606a; stroke-width: 2 }
.ahead { fill: #2da44e } .short { fill: #bf8700 } .spread { stroke: #24292f; stroke-width: 1.5 }
.aim { stroke: #cf222e; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .grid { stroke: #30363d }
  .equal { stroke: #8b949e } .spread { stroke: #e6edf3 }
}
"""


def ratio_chart(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the chart: a bar for each comparison's median, a line from the least to the most.

    Parameters:
        results: those of build/bench.json: `name`, `unit`, `target` and `ratio`.
    """
    right = max([2.0, *(float(each["ratio"]["max"]) for each in results)])
    scale = (_WIDTH - _LABEL - _NUMBERS) / right
    height = _TOP + _ROW * len(results) + 10
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>Ratios of the benchmarks</title><style>{_STYLE}</style>",
        _text(_LABEL, 14, "ratio; 1: equal; line: least to most; red: the aim"),
    ]
    for step in range(int(right / _STEP) + 1):
        x = _LABEL + step * _STEP * scale
        kind = "equal" if step * _STEP == 1 else "grid"
        drawn.append(_line(kind, x, _TOP - 8, x, height - 6))
        drawn.append(_text(x, _TOP - 8, f"{step * _STEP:g}", "middle"))
    for row, result in enumerate(results):
        drawn += _bar(result, _TOP + row * _ROW, scale)
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _bar(result: Mapping[str, Any], y: float, scale: float) -> list[str]:
    low, middle, high = (float(result["ratio"][name]) for name in ("min", "median", "max"))
    target = result["target"]
    less_is_better = "ms" in str(result["unit"])
    good = target is None or (middle <= target if less_is_better else middle >= target)
    note = " (less is better)" if less_is_better else ""
    centre = y + _ROW / 2
    place = f'x="{_LABEL}" y="{y + 5:.1f}" width="{middle * scale:.1f}" height="{_ROW - 10}"'
    drawn = [
        _text(_LABEL - 8, centre + 4, result["name"], "end"),
        f'<rect class="{"ahead" if good else "short"}" {place}/>',
        _line("spread", _LABEL + low * scale, centre, _LABEL + high * scale, centre),
        _text(_WIDTH - _NUMBERS + 10, centre + 4, f"{middle:.2f}{note}"),
    ]
    if target is not None:
        x = _LABEL + float(target) * scale
        drawn.append(_line("aim", x, y + 2, x, y + _ROW - 2))
    return drawn


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def write_chart(results: Path = RESULTS, chart: Path = CHART) -> None:
    """Draw the chart of a run."""
    chart.write_text(ratio_chart(json.loads(results.read_text())["results"]), encoding="utf-8")


if __name__ == "__main__":
    write_chart()
