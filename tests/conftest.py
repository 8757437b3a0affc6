"""What all tests share."""

from collections.abc import Iterator

import pytest
from xdist.remote import Producer
from xdist.scheduler import Scheduling

from pidlease.observability.repeated_lines import LINES
from tests.unit_scheduling import UnitScheduling, rank


@pytest.fixture(autouse=True)
def _first_lines() -> Iterator[None]:
    """Each test sees the first line of each cause: what was counted before is written out."""
    LINES.flush(everything=True)
    yield
    LINES.flush(everything=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Deal out units under `--dist loadgroup`."""
    return UnitScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest units first, where workers take them."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))
