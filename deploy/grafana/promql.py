"""Queries, made from the catalogue: each metric in them is one that a server exposes.

The variables of the dashboards are put into each selector: `$instance`, and `$topic` where the
metric has that label.
"""

from typing import Final

from pidlease.observability.metric_catalogue import Definition

#: The window of rates: Grafana makes it long enough for a few scrapes.
WINDOW: Final = "$__rate_interval"
_SERVER: Final = "instance"


def series(what: Definition, *matchers: str, suffix: str = "", variable: str = _SERVER) -> str:
    """Select the series of a metric that the dashboard is about.

    Parameters:
        what: the metric.
        matchers: further ones: `outcome="gap"`.
        suffix: of a histogram's series: `_bucket`.
        variable: the dashboard's variable with the chosen processes.
    """
    wanted = [f'instance=~"${variable}"']
    if "topic" in what.labels:
        wanted.append('topic=~"$topic"')
    return f"{what.exposed}{suffix}{{{','.join([*wanted, *matchers])}}}"


def total(what: Definition, *by: str, match: tuple[str, ...] = (), variable: str = _SERVER) -> str:
    """Add up a gauge."""
    return f"sum{_by(by)} ({series(what, *match, variable=variable)})"


def rate(
    what: Definition,
    *by: str,
    match: tuple[str, ...] = (),
    suffix: str = "",
    variable: str = _SERVER,
) -> str:
    """Add up the rates of a counter; with a suffix, of a histogram's series."""
    return (
        f"sum{_by(by)} (rate({series(what, *match, suffix=suffix, variable=variable)}[{WINDOW}]))"
    )


def gained(what: Definition, *by: str, match: tuple[str, ...] = (), variable: str = _SERVER) -> str:
    """Add up the increases of a counter within the time that is shown."""
    return f"sum{_by(by)} (increase({series(what, *match, variable=variable)}[$__range]))"


def quantile(share: float, what: Definition, *by: str, match: tuple[str, ...] = ()) -> str:
    """Return a quantile of a histogram."""
    return f"histogram_quantile({share}, {rate(what, 'le', *by, match=match, suffix='_bucket')})"


def share(part: Definition, whole: Definition) -> str:
    """Divide one gauge by another one, for each server."""
    return f"{series(part)} / {series(whole)}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""
