"""Builds PromQL queries from the metric catalogue, so that each metric in them exists.

Each selector gets the dashboard's variables: `$instance`, and `$topic` if the metric has it.
"""

from typing import Final

from pidlease.observability.metric_catalogue import Definition

#: The window of rates: Grafana sets it long enough for a few scrapes.
WINDOW: Final = "$__rate_interval"
_SERVER: Final = "instance"


def series(what: Definition, *matchers: str, suffix: str = "", variable: str = _SERVER) -> str:
    """Select a metric's series for the dashboard's chosen processes and topics.

    Parameters:
        matchers: further matchers, like `outcome="gap"`.
        suffix: of a histogram's series, like `_bucket`.
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
    """Add up the increases of a counter within the dashboard's time range."""
    return f"sum{_by(by)} (increase({series(what, *match, variable=variable)}[$__range]))"


def quantile(share: float, what: Definition, *by: str, match: tuple[str, ...] = ()) -> str:
    """Return a quantile of a histogram."""
    return f"histogram_quantile({share}, {rate(what, 'le', *by, match=match, suffix='_bucket')})"


def share(part: Definition, whole: Definition) -> str:
    """Divide one gauge by another, for each server."""
    return f"{series(part)} / {series(whole)}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""
