"""What all tests share."""

from collections.abc import Iterator

import pytest

from pidlease.observability.repeated_lines import LINES


@pytest.fixture(autouse=True)
def _first_lines() -> Iterator[None]:
    """Each test sees the first line of each cause: what was counted before is written out."""
    LINES.flush(everything=True)
    yield
    LINES.flush(everything=True)
