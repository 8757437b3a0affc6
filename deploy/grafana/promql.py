"""Queries, made from the catalogue: what no server exposes cannot be asked for.

The variables of the dashboards are put into each selector: `$instance`, and `$topic` where the
metric has that label.
"""

from typing import Final

from pidlease.observability.metric_catalogue import Definition

#: Over what rates are taken: Grafana sees to it that it holds a few scrapes.
WINDOW: Final = "$__rate_interval"
_SERVER: Final = "instance"


def series(what: Definition, *matchers: str, suffix: str = "", who: str = _SERVER) -> str:
    """All series of a metric that the dashboard is about.

    Parameters:
        what: the metric.
        matchers: further ones: `outcome="gap"`.
        suffix: of a histogram's series: `_bucket`.
        who: the variable that says whose they are.
    """
    wanted = [f'instance=~"${who}"']
    if "topic" in what.labels:
        wanted.append('topic=~"$topic"')
    return f"{what.exposed}{suffix}{{{','.join([*wanted, *matchers])}}}"


def total(what: Definition, *by: str, match: tuple[str, ...] = (), who: str = _SERVER) -> str:
    """A gauge, added up."""
    return f"sum{_by(by)} ({series(what, *match, who=who)})"


def rate(
    what: Definition,
    *by: str,
    match: tuple[str, ...] = (),
    suffix: str = "",
    who: str = _SERVER,
) -> str:
    """A counter by second, added up; with a suffix, one of a histogram's."""
    return f"sum{_by(by)} (rate({series(what, *match, suffix=suffix, who=who)}[{WINDOW}]))"


def gained(what: Definition, *by: str, match: tuple[str, ...] = (), who: str = _SERVER) -> str:
    """By how much a counter went up within what is shown, added up."""
    return f"sum{_by(by)} (increase({series(what, *match, who=who)}[$__range]))"


def quantile(share: float, what: Definition, *by: str, match: tuple[str, ...] = ()) -> str:
    """What that share of a histogram's values lies below."""
    return f"histogram_quantile({share}, {rate(what, 'le', *by, match=match, suffix='_bucket')})"


def share(part: Definition, whole: Definition) -> str:
    """A gauge as a part of another one, for each server."""
    return f"{series(part)} / {series(whole)}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""
