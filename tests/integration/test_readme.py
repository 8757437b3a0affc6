"""README is one page. Its example runs with those of all pages (tests/docs/test_snippets.py)."""

from pathlib import Path
from typing import Final

_README: Final = Path(__file__).resolve().parents[2] / "README.md"


def test_the_page_is_short() -> None:
    assert len(_README.read_text().splitlines()) < 120
