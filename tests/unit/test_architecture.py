"""ARCHITECTURE.md has a line for each file: the first of the file's docstring.

`python -m tests.unit.test_architecture` writes the tree anew.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "ARCHITECTURE.md"
_PACKAGES = ("pidlease", "proxy")
_BEGIN, _END = "<!-- tree -->\n", "<!-- end of the tree -->"
_WIDTH = 34


def _line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text, f"{path} has no docstring"
    return text.partition("\n")[0]


def _tree(folder: Path, depth: int) -> Iterator[str]:
    name = f"{'  ' * depth}{folder.name}/"
    yield f"{name:{_WIDTH}}{_line(folder / '__init__.py')}"
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            name = f"{'  ' * (depth + 1)}{path.name}"
            yield f"{name:{_WIDTH}}{_line(path)}"
    for path in sorted(each.parent for each in folder.glob("*/__init__.py")):
        yield from _tree(path, depth + 1)


def _made() -> str:
    lines = [line for package in _PACKAGES for line in _tree(_ROOT / package, 0)]
    return "\n".join(["```text", *lines, "```", ""])


def _parts() -> tuple[str, str, str]:
    before, begin, rest = _PAGE.read_text().partition(_BEGIN)
    tree, end, after = rest.partition(_END)
    assert begin, f"{_BEGIN!r} is missing"
    assert end, f"{_END!r} is missing"
    return before + begin, tree, end + after


def test_the_tree_is_true() -> None:
    assert _parts()[1] == _made(), "python -m tests.unit.test_architecture writes it anew"


def test_the_files_that_it_names_exist() -> None:
    names = set(re.findall(r"`((?:pidlease|proxy|tests|deploy)/[\w/.]+)`", _PAGE.read_text()))
    assert len(names) > 10
    assert {name for name in names if not (_ROOT / name).exists()} == set()


if __name__ == "__main__":
    head, _, tail = _parts()
    _PAGE.write_text(head + _made() + tail)
