"""The parts of a dashboard."""

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from deploy.grafana.promql import quantile
from pidlease.observability.metric_catalogue import Definition

Kind = Literal["timeseries", "stat", "table"]
#: Grafana's names of units.
BATCHES: Final = "suffix: batches/s"
RECORDS: Final = "suffix: records/s"
PER_SECOND: Final = "ops"
SECONDS: Final = "s"
BYTES: Final = "bytes"
BYTES_PER_SECOND: Final = "Bps"
SHARE: Final = "percentunit"
COUNT: Final = "short"


class Query(NamedTuple):
    """A query, and the legend of its series."""

    expr: str
    legend: str = ""


class Limits(NamedTuple):
    """The values from which on a panel is orange, and red; `falling`: below which."""

    orange: float
    red: float
    falling: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        text: the normal values, and what to do about others.
        unit: one of Grafana's.
        width: in columns, of 24.
        limits: the values at which the panel changes its colour.
        words: texts for values that are states, such as 0 and 1.
    """

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    limits: Limits | None = None
    words: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """Panels that belong together."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A dashboard's variable: the user chooses any number of a label's values.

    Attributes:
        name: its name in queries, after a `$`.
        label: its name for the user.
        query: returns the values.
        narrow: whether "All" means these values, not any value.
    """

    name: str
    label: str
    query: str
    narrow: bool = False


@dataclass(frozen=True)
class Board:
    """A dashboard."""

    uid: str
    title: str
    text: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


def number(title: str, text: str, unit: str, expr: str, legend: str = "", **more: object) -> Panel:
    """Show the current value, large."""
    kept = {"width": 4, **more}
    return Panel(title, text, unit, (Query(expr, legend),), "stat", **kept)  # type: ignore[arg-type]


def graph(title: str, text: str, unit: str, *queries: Query, width: int = 8) -> Panel:
    """Show lines over time."""
    return Panel(title, text, unit, queries, width=width)


def table(title: str, text: str, unit: str, expr: str, width: int = 8) -> Panel:
    """Show the labels of each series, and its current value."""
    return Panel(title, text, unit, (Query(expr),), "table", width)


def latency(
    title: str, text: str, what: Definition, *by: str, match: tuple[str, ...] = (), width: int = 8
) -> Panel:
    """Show the median and the 99th percentile of a histogram."""
    named = " ".join(f"{{{{{label}}}}}" for label in by)
    queries = [
        Query(quantile(share, what, *by, match=match), f"{named} {called}".strip())
        for share, called in ((0.5, "p50"), (0.99, "p99"))
    ]
    return graph(title, text, SECONDS, *queries, width=width)
