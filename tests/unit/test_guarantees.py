"""Each guarantee names tests, and they exist."""

import re
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_PAGE: Final = _ROOT / "docs" / "understand" / "guarantees.md"


def _rows(title: str) -> list[str]:
    """The rows of a section's table."""
    text = _PAGE.read_text().partition(f"\n## {title}")[2].partition("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| ")][1:]


def test_each_guarantee_names_a_test() -> None:
    rows = _rows("What is guaranteed")
    assert len(rows) >= 29
    assert [row for row in rows if "`tests/" not in row] == []


def test_the_non_guarantees_are_listed() -> None:
    assert len(_rows("What is not guaranteed")) >= 16


def test_what_is_named_exists() -> None:
    text = _PAGE.read_text()
    named = re.findall(r"`(tests/[\w/.]+)`", text)
    assert [each for each in named if not (_ROOT / each).exists()] == []
    found = {name for each in named for name in _tests(_ROOT / each)}
    assert set(re.findall(r"`(test_\w+)`", text)) <= found


def _tests(path: Path) -> set[str]:
    """The names of the tests in a file."""
    return set(re.findall(r"def (test_\w+)", path.read_text())) if path.suffix == ".py" else set()
