"""Charts as SVG, without any library, so that the report loads nothing."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from pidlease.spark.audit.audit_summary import TimeSeries

_WIDTH: Final = 1040
_HEIGHT: Final = 220
_LEFT: Final = 64
_TOP: Final = 10
_BOTTOM: Final = 26
_LINES: Final = 4
_LABELS: Final = 6
_DAY_MS: Final = 86_400_000
_TIME_WIDTH: Final = 72
_BAR_HEIGHT: Final = 26
_BAR_LABEL: Final = 330
_BAR_NUMBER: Final = 96
#: The longest label of a bar.
_LETTERS: Final = 46


def over_time(chart: TimeSeries, order: Sequence[str], classes: Mapping[str, str]) -> str:
    """Draw stacked columns over time.

    Parameters:
        order: the order of the series, from the bottom.
        classes: the CSS class of each series.
    """
    names = [name for name in order if any(chart.series.get(name, ()))]
    if not names:
        return '<p class="none">Nothing to show.</p>'
    count = len(chart.series[names[0]])
    sums = [sum(chart.series[name][at] for name in names) for at in range(count)]
    top = _round_up(max(sums))
    height, width = _HEIGHT - _TOP - _BOTTOM, _WIDTH - _LEFT
    step = width / count
    drawn = [_grid(top, height)]
    for at in range(count):
        below = 0
        for name in names:
            number = chart.series[name][at]
            if not number:
                continue
            tall = max(number / top * height, 1)
            y = _TOP + height - below / top * height - tall
            below += number
            x, wide = _LEFT + at * step, min(max(step * 0.82, 0.8), 48)
            title = escape(f"{_time(chart, at)}: {number:,} {name}")
            drawn.append(
                f'<rect class="{classes[name]}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}"'
                f' height="{tall:.1f}"><title>{title}</title></rect>'
            )
    drawn += (
        f'<text x="{_LEFT + at * step:.1f}" y="{_HEIGHT - 8}">{_time(chart, at)}</text>'
        for at in range(0, count, max(count // _LABELS, 1))
        if at * step < width - _TIME_WIDTH
    )
    keys = "".join(
        f'<span><i class="{classes[name]}"></i>{escape(name)}'
        f" <b>{sum(chart.series[name]):,}</b></span>"
        for name in names
    )
    return _svg(drawn, _HEIGHT) + f'<p class="key">{keys}</p>'


def bars(rows: Sequence[tuple[str, int, str]]) -> str:
    """Draw horizontal bars.

    Parameters:
        rows: label, number and CSS class of each.
    """
    if not rows:
        return '<p class="none">Nothing to show.</p>'
    top = max(number for _, number, _ in rows) or 1
    width = _WIDTH - _BAR_LABEL - _BAR_NUMBER
    drawn = []
    for at, (label, number, css) in enumerate(rows):
        y = at * _BAR_HEIGHT
        shown = label if len(label) <= _LETTERS else f"…{label[1 - _LETTERS :]}"
        long = max(number / top * width, 1)
        drawn.append(
            f'<text class="label" x="{_BAR_LABEL - 10}" y="{y + 17}">{escape(shown)}</text>'
            f'<rect class="{css}" x="{_BAR_LABEL}" y="{y + 4}" width="{long:.1f}" height="18"'
            f' rx="2"/><text x="{_BAR_LABEL + long + 8:.1f}" y="{y + 17}">{number:,}</text>'
        )
    return _svg(drawn, len(rows) * _BAR_HEIGHT)


def _svg(drawn: Sequence[str], height: int) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(drawn)}</svg>'


def _grid(top: int, height: int) -> str:
    drawn = []
    for line in range(_LINES + 1):
        y = _TOP + height - line / _LINES * height
        drawn.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="label" x="{_LEFT - 8}" y="{y + 4:.1f}">{_short(top * line / _LINES)}'
            "</text>"
        )
    return "".join(drawn)


def _round_up(number: int) -> int:
    """Return the next number that four grid lines divide well."""
    power = 1
    while True:
        for digit in (4, 8, 12, 20):
            if digit * power >= number:
                return digit * power
        power *= 10


def _short(number: float) -> str:
    for unit, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:g}{letter}"
    return f"{number:g}"


def _time(chart: TimeSeries, at: int) -> str:
    form = "%Y-%m-%d" if chart.step_ms >= _DAY_MS else "%m-%d %H:%M"
    return datetime.fromtimestamp((chart.begin_ms + at * chart.step_ms) / 1000, UTC).strftime(form)
