"""Deprecated: the copier is `pidlease.copier`."""

import importlib
import warnings
from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the copier exports
    """Return what `pidlease.copier` has under this name, with a warning."""
    if name.startswith("__"):
        raise AttributeError(name)
    warnings.warn("pidlease.client.copier is now pidlease.copier", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module("pidlease.copier"), name)
