"""Every metric, once. The engine counts in plain numbers; they are read when somebody scrapes.

So the hot path pays nothing for a metric but an addition. No PID is ever a label.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Source(Protocol):
    """Something that can tell its metrics."""

    def __call__(self) -> Iterable[Metric]:
        """The metrics as they are now."""


class PidleaseCollector(Collector):
    """Asks the sources each time it is scraped.

    Parameters:
        sources: where the numbers are.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources: Final = list(sources)

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        for source in self._sources:
            yield from source()


def counter(name: str, text: str, value: float) -> Metric:
    """A counter without labels; the exposition adds _total."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(name, text, value=value)


def labelled_counter(
    name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    """A counter with labels, of which there are few values."""
    return _labelled(CounterMetricFamily(name, text, labels=labels), values)


def labelled_gauge(
    name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    """A gauge with labels, of which there are few values."""
    return _labelled(GaugeMetricFamily(name, text, labels=labels), values)


def _labelled(
    family: CounterMetricFamily | GaugeMetricFamily,
    values: Iterable[tuple[tuple[str, ...], float]],
) -> Metric:
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family
