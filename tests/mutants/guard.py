"""A pytest plugin: what is tested is the broken copy, and not the tree it was copied from."""

import os
from pathlib import Path

import pidlease
import proxy

ROOT = "MUTANT_ROOT"


def pytest_configure() -> None:
    """See pytest."""
    root = Path(os.environ[ROOT])
    for package in (pidlease, proxy):
        found = Path(str(package.__file__))
        if not found.is_relative_to(root):
            raise RuntimeError(f"{found} is imported, and not the copy in {root}")
