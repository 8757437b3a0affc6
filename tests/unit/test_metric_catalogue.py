"""The catalogue of metrics, and the exposition that is made of it."""

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pidlease.observability import metric_catalogue as metrics
from pidlease.observability.histogram import Histogram


@pytest.mark.parametrize("definition", metrics.CATALOGUE.values(), ids=lambda each: each.name)
def test_names_follow_prometheus(definition: metrics.Definition) -> None:
    """Base units, and no label that could have as many values as there are producers."""
    assert re.fullmatch(r"pidlease_[a-z_]+", definition.name)
    assert not re.search(r"_(total|ms|milliseconds|kb|mb|minutes)$", definition.name)
    assert not {"pid", "producer", "client", "peer", "name"} & set(definition.labels)
    if definition.kind == "histogram":
        assert definition.name.endswith("_seconds")


def test_two_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two metrics are called pidlease_ready"):
        metrics._define("gauge", "pidlease_ready", "again")


def test_what_is_exposed() -> None:
    """As Prometheus's own parser reads it."""
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    registry = CollectorRegistry()
    registry.register(
        metrics.PidleaseCollector(
            [
                lambda: [
                    metrics.READY.of(True),
                    metrics.LEASES_GRANTED.rows([(("strict",), 3)]),
                    metrics.APPEND_SECONDS.histogram(histogram),
                ]
            ]
        )
    )
    text = generate_latest(registry).decode()
    samples = {
        (each.name, *each.labels.values()): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }
    assert samples == {
        ("pidlease_ready",): 1,
        ("pidlease_leases_granted_total", "strict"): 3,
        ("pidlease_append_seconds_bucket", "0.1"): 2,
        ("pidlease_append_seconds_bucket", "1.0"): 3,
        ("pidlease_append_seconds_bucket", "+Inf"): 4,
        ("pidlease_append_seconds_count",): 4,
        ("pidlease_append_seconds_sum",): pytest.approx(7.65),
    }
