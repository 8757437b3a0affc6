"""What all tests share."""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import Scheduling

from pidlease.observability.repeated_lines import LINES
from tests.property.profile import PROFILE
from tests.unit_scheduling import UnitScheduling, rank

# Its limit of 0.2 s for an example would fail on a busy machine.
settings.load_profile(PROFILE)


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes that tests start run without hypothesis, as where they are installed.

    kio imports it if it is there: a fifth of the processor time of a server's start.
    """
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        folder = TemporaryDirectory(prefix="pidlease-tests-")
        config.add_cleanup(folder.cleanup)
        absent = "raise ImportError('processes that are tested run without it')\n"
        Path(folder.name, "hypothesis.py").write_text(absent)
        before = filter(None, [os.environ.get("PYTHONPATH")])
        os.environ["PYTHONPATH"] = os.pathsep.join([folder.name, *before])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage neither while thousands of tests are collected, nor among them later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
