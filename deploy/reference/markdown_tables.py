"""Markdown of the generated pages: tables, and text that may stand in them."""

from collections.abc import Iterable, Sequence
from typing import Final

#: The second line of each generated page.
NOTE: Final = "<!-- Made by `make reference` from the code; do not edit. -->"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; empty without rows."""
    found = [[str(cell) for cell in row] for row in rows]
    if not found:
        return ""
    lines = [list(headings), ["---"] * len(headings), *found]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(text: str) -> str:
    """Return text as one line of Markdown that may stand in a table."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;").replace("*:", r"\*:")


def code(text: str) -> str:
    """Return text as inline code that may stand in a table; nothing stays nothing."""
    return f"`{text}`".replace("|", r"\|") if text else ""


def sentence(text: str) -> str:
    """Return text with a capital letter and a full stop."""
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if not text or text[-1] in ".!?:" else ".")
