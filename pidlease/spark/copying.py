"""Deprecated: import `copy` from `pidlease.spark`."""

import warnings
from typing import Any

from pidlease.spark import topic_copy


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any attribute
    """Return an attribute of `topic_copy`, with a warning."""
    if name.startswith("__"):
        raise AttributeError(name)
    warnings.warn(
        "pidlease.spark.copying.copy is now pidlease.spark.copy", DeprecationWarning, stacklevel=2
    )
    return getattr(topic_copy, name)
