"""pidlease on Apache Spark: an exactly-once sink, a copier, a source, an audit, and a rebuild.

The names are loaded when they are used: each of Spark's Python workers imports this package, and
needs few of its modules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pidlease.spark.errors import SinkError, SinkFencedError, SparkPieceError
    from pidlease.spark.exactly_once_writers import exactly_once, exactly_once_table
    from pidlease.spark.spark_session import register, session
    from pidlease.spark.topic_copy import copy

__all__ = [
    "SinkError",
    "SinkFencedError",
    "SparkPieceError",
    "copy",
    "exactly_once",
    "exactly_once_table",
    "register",
    "session",
]

#: The module of each name. No module is called as a name: its import would replace the name.
_MODULES: Final = {
    "SinkError": "errors",
    "SinkFencedError": "errors",
    "SparkPieceError": "errors",
    "copy": "topic_copy",
    "exactly_once": "exactly_once_writers",
    "exactly_once_table": "exactly_once_writers",
    "register": "spark_session",
    "session": "spark_session",
}


if not TYPE_CHECKING:  # otherwise any name would be one of type Any

    def __getattr__(name: str) -> object:
        """Load a name's module."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the names, loaded or not."""
    return sorted({*globals(), *__all__})
