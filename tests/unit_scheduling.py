"""How the tests are dealt out to the workers of xdist.

A worker takes one unit after the other. A unit is a file, or several files that share servers which
are slow to start: each of these starts in one worker, not in every one. The longest units come
first, so that no worker idles at the end.

`--dist loadgroup` alone does not group under the pytest that is locked: xdist marks the groups in
the names of the items, and pytest 9.2 keeps these elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer

#: Units of several files, the longest first: a name, and how the paths begin.
_SHARED: Final = {
    "three brokers": (
        "tests/kafka_backend/test_coordinator_away",
        "tests/kafka_backend/test_failover",
        "tests/kafka_backend/test_six_clients",
        "tests/kafka_backend/test_topic_awaited",
        "tests/kafka_backend/test_transactions",
    ),
    "several servers": (
        "tests/kafka_backend/test_shared",
        "tests/kafka_backend/test_workers",
    ),
    "Spark": ("tests/spark/",),
    "copier": ("tests/copier/",),
    "one Kafka": (
        "tests/kafka_backend/test_bad_clients",
        "tests/kafka_backend/test_clients",
        "tests/kafka_backend/test_kafka_coordination",
        "tests/kafka_backend/test_standby",
        "tests/kafka_backend/test_tools",
        "tests/kafka_backend/test_topic_just_made",
        "tests/kafka_backend/test_topic_policies",
        "tests/kafka_backend/test_topic_unseen",
        "tests/kafka_backend/test_writer",
    ),
    "Prometheus": ("tests/observability/",),
}
#: The other units start in this order of how their paths begin; each is one file.
_ORDER: Final = (
    "tests/kafka_backend/test_kills",
    "tests/docs/test_snippets",
    "tests/kafka_backend/test_forgetting",
    "tests/kafka_backend/test_produce_errors",
    "tests/kafka_backend/test_upstream_away",
    "tests/kafka_backend/",
    "tests/crash/",
    "tests/clients/",
    "tests/integration/",
    "tests/zookeeper/",
    "tests/sim/",
    "tests/unit/storage/test_snapshots",
    "tests/unit/engine/test_repair_crashes",
    "tests/unit/engine/test_kafka_appender",
    "tests/kafka_listener/test_turns",
    "tests/property/",
    "tests/servers/",
    "tests/http_api/",
    "tests/client/",
    "tests/kafka_listener/",
)


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Deals out units, in the order in which the workers collected their tests."""

    def __init__(self, config: pytest.Config, log: Producer | None) -> None:
        config.option.loadscopereorder = False  # by the number of tests, which says nothing here
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


def unit(nodeid: str) -> str:
    """Return the name of the unit that a test belongs to."""
    path = nodeid.partition("::")[0]
    for name, beginnings in _SHARED.items():
        if path.startswith(beginnings):
            return name
    return path


def rank(nodeid: str) -> int:
    """Return the place of a test's unit among the units; equal ones keep their order."""
    name = unit(nodeid)
    if name in _SHARED:
        return list(_SHARED).index(name)
    found = (place for place, beginning in enumerate(_ORDER) if name.startswith(beginning))
    return len(_SHARED) + next(found, len(_ORDER))
