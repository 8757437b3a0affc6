"""Every public name has an example in its docstring; tests/docs/test_snippets.py runs them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("pidlease.client", "pidlease.copier", "pidlease.spark", "pidlease.testing")


def _docstrings(package: str) -> Iterator[tuple[str, str]]:
    """Find the docstring of each name in `__all__`, without an import: Spark may not be there."""
    init = _ROOT / package.replace(".", "/") / "__init__.py"
    tree = ast.parse(init.read_text())
    places = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    (names,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    for name in names:
        module = ast.parse((_ROOT / f"{places[name].replace('.', '/')}.py").read_text())
        (found,) = [
            node
            for node in module.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == name
        ]
        yield name, ast.get_docstring(found) or ""


@pytest.mark.parametrize("package", _PACKAGES)
def test_every_public_name_has_an_example(package: str) -> None:
    found = dict(_docstrings(package))
    assert found
    assert [name for name, text in found.items() if "```python" not in text] == []
